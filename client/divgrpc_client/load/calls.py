"""Kinds of calls, whose messages are all encoded before the measured time starts.

A mix is a TOML file that describes kinds of calls. Its paths are relative to the file. If the value
of `batch` or of an option is a list, the table describes one kind of call for each item:

    [[call]]
    index = "products"
    data = "queries.npy"       # also .npz (with key), .fvecs, svmlight, scipy's sparse .npz
    share = 3                  # weight among the calls; default 1
    batch = [1, 16]            # rows per call
    k = [10, 100]              # any option of divgrpc query
    diversity = [0, 0.3]

    [[call]]
    method = "PredictLabels"   # or "QueryStream": queries on streams that stay open
    index = "papers"
    data = "documents.npz"
    top_k = 5                  # any option of divgrpc predict
"""

import itertools
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

import numpy as np

from divgrpc.errors import InvalidArgumentError, invalid
from divgrpc_client.formats.files import pick_rows, read_vectors
from divgrpc_client.messages import arguments, requests
from divgrpc_client.messages.options import PredictOptions, QueryOptions
from divgrpc_client.messages.vectors import as_matrix
from divgrpc_protos.arrays import Matrix, picked, row_count, take
from divgrpc_protos.v1 import query_pb2

Method: TypeAlias = Literal["Query", "QueryStream", "PredictLabels"]

# Maximum number of messages of one kind of call, and maximum total size of the messages of all
# kinds. Every process holds a copy of the messages.
_MESSAGES_MAX: Final = 2_000
BYTES_MAX: Final = 2**26
_KEYS: Final = ("method", "index", "data", "key", "index_base", "dims", "rows", "share", "batch")


@dataclass(frozen=True, slots=True)
class Call:
    """One kind of call.

    index: name of the index.
    vectors: (n, dims) rows to send, queries or documents.
    options: options of `Client.query`, or of `Client.predict_labels` if `method` is
        "PredictLabels".
    method: the RPC to call. Each query of a "QueryStream" counts as one call.
    batch: number of rows in one call.
    share: relative frequency of this kind among all kinds, above 0.
    """

    index: str
    vectors: Matrix
    options: Mapping[str, Any] = field(default_factory=dict)
    method: Method = "Query"
    batch: int = 1
    share: float = 1.0

    def __post_init__(self) -> None:
        if self.method not in get_args(Method):
            methods = " or ".join(get_args(Method))
            raise invalid("method", f"must be {methods}, got {self.method!r}")
        object.__setattr__(self, "vectors", as_matrix("vectors", self.vectors))
        arguments.count("batch", self.batch)
        if not 0 < self.share < float("inf"):
            raise invalid("share", f"must be above 0, got {self.share!r}")
        if row_count(self.vectors) < self.batch:
            raise InvalidArgumentError(
                "batch",
                f"a batch of {self.batch} rows cannot be made of {row_count(self.vectors)}",
            )

    @property
    def name(self) -> str:
        """Method, index, batch and options, which identify this kind in reports."""
        options = [f"{name} {value}" for name, value in self.options.items()]
        rows = [f"{self.batch} rows"] if self.batch > 1 else []
        return ", ".join([f"{self.method} {self.index}", *rows, *options])

    def messages(self, seed: int, room: int = BYTES_MAX) -> list[bytes]:
        """Return serialised requests, each with different rows of `vectors`.

        Their total size is about `room` bytes at most. Raises `InvalidArgumentError` for a wrong
        option.
        """
        make: Callable[..., Any] = requests.query
        if self.method == "PredictLabels":
            predict = PredictOptions(**self.options)  # type: ignore[typeddict-item]  # checked next
            fields, make = requests.predict_fields(self.index, predict), requests.predict
        else:
            query = QueryOptions(**self.options)  # type: ignore[typeddict-item]  # checked next
            fields = requests.query_fields(self.index, query)
        order = np.random.default_rng([seed, 2]).permutation(row_count(self.vectors))
        whole = len(order) - len(order) % self.batch
        messages: list[bytes] = []
        size = 0
        for rows in order[:whole].reshape(-1, self.batch):
            request = make(fields, picked(self.vectors, rows), 0, self.batch)
            if self.method == "QueryStream":
                # The generator prepends the correlation id when it sends the query.
                request = query_pb2.QueryStreamRequest(query=request)
            messages.append(request.SerializeToString())
            size += len(messages[-1])
            if len(messages) == _MESSAGES_MAX or size >= room:
                break
        return messages


def read_mix(path: Path) -> list[Call]:
    """Read a mix; raises `InvalidArgumentError` if the file is missing or is not a mix."""
    try:
        content = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidArgumentError("mix", f"{path} cannot be read as TOML: {reason}") from None
    tables = content.pop("call", None)
    if content or not tables or not isinstance(tables, list):
        raise InvalidArgumentError("mix", f"{path} must hold [[call]] tables and nothing else")
    calls = []
    for number, table in enumerate(tables, 1):
        try:
            calls += calls_of(table, path.parent)
        except KeyError as error:
            raise InvalidArgumentError(
                "mix", f"{path}, call {number}: {error.args[0]} is missing"
            ) from None
        except (InvalidArgumentError, TypeError) as error:
            raise InvalidArgumentError("mix", f"{path}, call {number}: {error}") from None
    return calls


def calls_of(table: Mapping[str, Any], folder: Path) -> list[Call]:
    """Return the calls of one table of a mix, one for each combination of its lists.

    All combinations have equal shares.
    """
    path = folder / table["data"]
    base = table.get("index_base", "auto")
    vectors = read_vectors(path, table.get("key"), base=base, dims=table.get("dims"))
    rows = pick_rows(table.get("rows"), row_count(vectors))
    axes = {name: value for name, value in table.items() if name not in _KEYS}
    axes["batch"] = table.get("batch", 1)
    lists = [value if isinstance(value, list) else [value] for value in axes.values()]
    for name, choices in zip(axes, lists, strict=True):
        if not choices:
            raise invalid(name, "is an empty list")
    combinations = [dict(zip(axes, values, strict=True)) for values in itertools.product(*lists)]
    return [
        Call(
            index=table["index"],
            vectors=take(vectors, rows.start, rows.stop),
            method=table.get("method", "Query"),
            batch=options.pop("batch"),
            options=options,
            share=table.get("share", 1) / len(combinations),
        )
        for options in combinations
    ]
