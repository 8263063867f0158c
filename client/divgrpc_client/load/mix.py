"""A mix of calls. All messages are encoded before the measured time starts.

A mix is a file in TOML; paths in it are relative to it. A list, of `batch` or of an option, makes
one kind of call for each of its values:

    [[call]]
    index = "products"
    data = "queries.npy"       # also .npz (with key), .fvecs, svmlight, scipy's sparse .npz
    share = 3                  # of the calls, beside the other shares; default 1
    batch = [1, 16]            # rows a call
    k = [10, 100]              # any option of divgrpc query
    diversity = [0, 0.3]

    [[call]]
    method = "QueryStream"     # the same queries, on streams that stay open
    index = "products"
    data = "queries.npy"

    [[call]]
    method = "PredictLabels"
    index = "papers"
    data = "documents.npz"
    top_k = 5                  # any option of divgrpc predict
"""

import itertools
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

import numpy as np
from google.protobuf.message import Message

from divgrpc.errors import InvalidArgumentError
from divgrpc_client.formats.files import pick_rows, read_vectors
from divgrpc_client.messages import arguments, requests
from divgrpc_client.messages.options import PredictOptions, QueryOptions
from divgrpc_client.messages.vectors import as_matrix
from divgrpc_protos.arrays import Matrix, picked, row_count, take
from divgrpc_protos.v1 import query_pb2

Method: TypeAlias = Literal["Query", "QueryStream", "PredictLabels"]

# Most messages of one kind of call, and most bytes of all kinds. Every process holds a copy.
_MESSAGES_MAX: Final = 2_000
BYTES_MAX: Final = 2**26
_OWN_KEYS: Final = ("method", "index", "data", "key", "dims", "rows", "share", "batch")


@dataclass(frozen=True, slots=True)
class Call:
    """One kind of call: rows of `vectors` (n, dims), `batch` at a time, asked of `index`.

    `options` are those of `Client.query`, or of `Client.predict_labels` for the method
    "PredictLabels". `share` is its part of the calls, beside the shares of the other kinds.
    """

    index: str
    vectors: Matrix
    options: Mapping[str, Any] = field(default_factory=dict)
    method: Method = "Query"
    batch: int = 1
    share: float = 1.0

    def __post_init__(self) -> None:
        if self.method not in get_args(Method):
            known = " or ".join(get_args(Method))
            raise InvalidArgumentError("method", f"method must be {known}, got {self.method!r}")
        object.__setattr__(self, "vectors", as_matrix("vectors", self.vectors))
        arguments.count("batch", self.batch)
        if not 0 < self.share < float("inf"):
            raise InvalidArgumentError("share", f"share must be above 0, got {self.share!r}")
        if row_count(self.vectors) < self.batch:
            raise InvalidArgumentError(
                "batch",
                f"a batch of {self.batch} rows cannot be made of {row_count(self.vectors)}",
            )

    @property
    def name(self) -> str:
        """What tells it from the other calls of a mix."""
        options = [f"{name} {value}" for name, value in self.options.items()]
        rows = [f"{self.batch} rows"] if self.batch > 1 else []
        return ", ".join([f"{self.method} {self.index}", *rows, *options])

    def messages(self, seed: int, room: int = BYTES_MAX) -> list[bytes]:
        """Return its requests on the wire, of different rows as far as there are any; seeded.

        They take about `room` bytes at most. Raises `InvalidArgumentError` for a wrong option.
        """
        fields, make = self._fields()
        order = np.random.default_rng([seed, 2]).permutation(row_count(self.vectors))
        whole = len(order) - len(order) % self.batch
        messages: list[bytes] = []
        size = 0
        for rows in order[:whole].reshape(-1, self.batch):
            message = make(fields, picked(self.vectors, rows), 0, self.batch)
            messages.append(message.SerializeToString())
            size += len(messages[-1])
            if len(messages) == _MESSAGES_MAX or size >= room:
                break
        return messages

    def _fields(self) -> tuple[dict[str, object], Callable[..., Message]]:
        if self.method == "PredictLabels":
            predict = PredictOptions(**self.options)  # type: ignore[typeddict-item]  # checked next
            return requests.predict_fields(self.index, predict), requests.predict
        options = QueryOptions(**self.options)  # type: ignore[typeddict-item]  # checked next
        make = requests.query if self.method == "Query" else _streamed
        return requests.query_fields(self.index, options), make


def _streamed(
    fields: dict[str, object], rows: Matrix, start: int, stop: int
) -> query_pb2.QueryStreamRequest:
    """Return a query of a stream; the sender puts its number before it."""
    return query_pb2.QueryStreamRequest(query=requests.query(fields, rows, start, stop))


def read_mix(path: Path) -> list[Call]:
    """Read a mix; raises `InvalidArgumentError` where the file is missing or is not a mix."""
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
            calls += list(_calls(path.parent, table))
        except KeyError as error:
            raise InvalidArgumentError(
                "mix", f"{path}, call {number}: {error.args[0]} is missing"
            ) from None
        except (InvalidArgumentError, TypeError) as error:
            raise InvalidArgumentError("mix", f"{path}, call {number}: {error}") from None
    return calls


def _calls(folder: Path, table: Mapping[str, Any]) -> Iterator[Call]:
    """Yield the calls of one table: every combination of its lists, in equal shares."""
    index, data = table["index"], table["data"]
    vectors = read_vectors(folder / data, table.get("key"), dims=table.get("dims"))
    rows = pick_rows(table.get("rows"), row_count(vectors))
    vectors = take(vectors, rows.start, rows.stop)
    options = {name: value for name, value in table.items() if name not in _OWN_KEYS}
    options["batch"] = table.get("batch", 1)
    lists = [value if isinstance(value, list) else [value] for value in options.values()]
    for name, choices in zip(options, lists, strict=True):
        if not choices:
            raise InvalidArgumentError(name, f"{name} is an empty list")
    combinations = list(itertools.product(*lists))
    for values in combinations:
        combination = dict(zip(options, values, strict=True))
        yield Call(
            index=index,
            vectors=vectors,
            method=table.get("method", "Query"),
            batch=combination.pop("batch"),
            options=combination,
            share=table.get("share", 1) / len(combinations),
        )
