"""What is asked: a mix of calls, every message of which is made before the clock runs.

A mix is a file in TOML; paths in it are relative to it, and every list is a choice of its own:

    [[call]]
    index = "products"
    data = "queries.npy"       # also .npz (with key), .fvecs, svmlight, scipy's sparse .npz
    share = 3                  # of the calls, beside the other shares; default 1
    batch = [1, 16]            # rows a call
    k = [10, 100]              # any option of divgrpc query
    diversity = [0, 0.3]

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
from divgrpc_client import arguments, requests
from divgrpc_client.files import pick_rows, read_vectors
from divgrpc_client.label_inputs import picked
from divgrpc_client.options import PredictOptions, QueryOptions
from divgrpc_client.vectors import as_matrix
from divgrpc_protos.arrays import Matrix, row_count, take

Method: TypeAlias = Literal["Query", "PredictLabels"]

# Of one kind of call. More would take memory in every process.
_MESSAGES_MAX: Final = 2_000
_BYTES_MAX: Final = 2**26
_OWN: Final = ("method", "index", "data", "key", "dims", "rows", "share", "batch")


@dataclass(frozen=True, slots=True)
class Call:
    """One kind of call: rows of `vectors`, `batch` at a time, asked of `index` with `options`.

    `share` is its part of the calls, beside those of the other kinds.
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
        """Return what tells it from the others."""
        told = [f"{name} {value}" for name, value in self.options.items()]
        rows = [f"{self.batch} rows"] if self.batch > 1 else []
        return ", ".join([f"{self.method} {self.index}", *rows, *told])

    def messages(self, seed: int) -> list[bytes]:
        """Return its requests on the wire, of different rows while there are any; seeded.

        Raises `InvalidArgumentError` or TypeError for options that no request can carry.
        """
        fields, ask = self._fields()
        order = np.random.default_rng([seed, 2]).permutation(row_count(self.vectors))
        made: list[bytes] = []
        size = 0
        for start in range(0, len(order) - self.batch + 1, self.batch):
            rows = picked(self.vectors, order[start : start + self.batch])
            made.append(ask(fields, rows, 0, self.batch).SerializeToString())
            size += len(made[-1])
            if len(made) == _MESSAGES_MAX or size >= _BYTES_MAX:
                break
        return made

    def _fields(self) -> tuple[dict[str, object], Callable[..., Message]]:
        if self.method == "Query":
            options = QueryOptions(**self.options)  # type: ignore[typeddict-item]  # checked next
            return requests.query_fields(self.index, options), requests.query
        told = PredictOptions(**self.options)  # type: ignore[typeddict-item]  # checked next
        return requests.predict_fields(self.index, told), requests.predict


def read_mix(path: Path) -> list[Call]:
    """Read a mix; raises `InvalidArgumentError` where the file is missing or is none."""
    try:
        told = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidArgumentError("mix", f"{path} cannot be read as TOML: {reason}") from None
    tables = told.pop("call", None)
    if told or not tables or not isinstance(tables, list):
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
    """Yield the calls of one table: every combination of what its lists hold, in equal shares."""
    index, data = table["index"], table["data"]
    vectors = read_vectors(folder / data, table.get("key"), dims=table.get("dims"))
    chosen = pick_rows(table.get("rows"), row_count(vectors))
    vectors = take(vectors, chosen.start, chosen.stop)
    options = {name: value for name, value in table.items() if name not in _OWN}
    options["batch"] = table.get("batch", 1)
    lists = [value if isinstance(value, list) else [value] for value in options.values()]
    combinations = list(itertools.product(*lists))
    for values in combinations:
        own = dict(zip(options, values, strict=True))
        yield Call(
            index=index,
            vectors=vectors,
            method=table.get("method", "Query"),
            batch=own.pop("batch"),
            options=own,
            share=table.get("share", 1) / len(combinations),
        )
