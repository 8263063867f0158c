"""What is asked: a mix of calls, every message of which is made before the clock runs.

A mix is a file in TOML; paths in it are relative to it. A list, of `batch` or of an option, is a
choice of its own:

    [[call]]
    index = "products"
    data = "queries.npy"       # also .npz (with key), .fvecs, svmlight, scipy's sparse .npz
    share = 3                  # of the calls, beside the other shares; default 1
    batch = [1, 16]            # rows a call
    k = [10, 100]              # any option of divgrpc query
    diversity = [0, 0.3]
    categories = "asked.npy"   # of its rows; with points --quality measures h too

    [call.points]              # what the index was built of: --quality measures J
    data = "products.npz"
    key = "vectors"            # and ids, categories, subtopics, as divgrpc build takes them
    subtopics = "subtopics"

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
import numpy.typing as npt
from google.protobuf.message import Message

from divgrpc.errors import InvalidArgumentError
from divgrpc.types import IntArray
from divgrpc_client.formats.files import pick_rows, read_column, read_vectors
from divgrpc_client.load.points import Points
from divgrpc_client.messages import arguments, requests
from divgrpc_client.messages.options import PredictOptions, QueryOptions
from divgrpc_client.messages.vectors import as_matrix
from divgrpc_protos.arrays import Matrix, picked, row_count, take
from divgrpc_protos.v1 import query_pb2

Method: TypeAlias = Literal["Query", "QueryStream", "PredictLabels"]

# Of one kind of call, and of all kinds together. More would take memory in every process.
_MESSAGES_MAX: Final = 2_000
BYTES_MAX: Final = 2**26
_OWN: Final = (
    *("method", "index", "data", "key", "dims", "rows", "share", "batch"),
    *("points", "categories"),
)


@dataclass(frozen=True, slots=True)
class Call:
    """One kind of call: rows of `vectors`, `batch` at a time, asked of `index` with `options`.

    `share` is its part of the calls, beside those of the other kinds. By `points` its results are
    measured, and by the `categories` (rows,) that its rows ask for.
    """

    index: str
    vectors: Matrix
    options: Mapping[str, Any] = field(default_factory=dict)
    method: Method = "Query"
    batch: int = 1
    share: float = 1.0
    points: Points | None = None
    categories: IntArray | None = None

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
        self._check_measured()

    def _check_measured(self) -> None:
        if self.points is not None and self.method == "PredictLabels":
            raise InvalidArgumentError("points", "points measure queries, not labels")
        if self.categories is None:
            return
        if self.points is None or self.categories.shape != (row_count(self.vectors),):
            raise InvalidArgumentError(
                "categories", "categories need points, and to be one for each row"
            )
        self.points.check(np.empty(0, np.int64), self.categories)

    @property
    def name(self) -> str:
        """Return what tells it from the others."""
        told = [f"{name} {value}" for name, value in self.options.items()]
        rows = [f"{self.batch} rows"] if self.batch > 1 else []
        return ", ".join([f"{self.method} {self.index}", *rows, *told])

    def messages(self, seed: int, room: int = BYTES_MAX) -> list[bytes]:
        """Return its requests on the wire, of different rows while there are any; seeded.

        There are no more once they take `room` bytes.
        Raises `InvalidArgumentError` or TypeError for options that no request can carry.
        """
        fields, ask = self._fields()
        made: list[bytes] = []
        size = 0
        for rows in self.drawn(seed):
            message = ask(fields, picked(self.vectors, rows), 0, self.batch)
            made.append(message.SerializeToString())
            size += len(made[-1])
            if len(made) == _MESSAGES_MAX or size >= room:
                break
        return made

    def drawn(self, seed: int) -> npt.NDArray[np.int64]:
        """Return the rows (n, batch) of all messages that there could be, in their order."""
        order = np.random.default_rng([seed, 2]).permutation(row_count(self.vectors))
        whole = len(order) - len(order) % self.batch
        return order[:whole].reshape(-1, self.batch)

    def _fields(self) -> tuple[dict[str, object], Callable[..., Message]]:
        if self.method == "PredictLabels":
            told = PredictOptions(**self.options)  # type: ignore[typeddict-item]  # checked next
            return requests.predict_fields(self.index, told), requests.predict
        options = QueryOptions(**self.options)  # type: ignore[typeddict-item]  # checked next
        ask = requests.query if self.method == "Query" else _streamed
        return requests.query_fields(self.index, options), ask


def _streamed(
    fields: dict[str, object], rows: Matrix, start: int, stop: int
) -> query_pb2.QueryStreamRequest:
    """Return a query of a stream; whoever sends it puts its number before it."""
    return query_pb2.QueryStreamRequest(query=requests.query(fields, rows, start, stop))


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
    points, categories = table.get("points"), table.get("categories")
    if points is not None:
        points = _points(folder, **points)
    if categories is not None:
        categories = _column(folder, categories, folder / data)[chosen.start : chosen.stop]
    options = {name: value for name, value in table.items() if name not in _OWN}
    options["batch"] = table.get("batch", 1)
    lists = [value if isinstance(value, list) else [value] for value in options.values()]
    for name, choices in zip(options, lists, strict=True):
        if not choices:
            raise InvalidArgumentError(name, f"{name} is an empty list")
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
            points=points,
            categories=categories,
        )


def _points(
    folder: Path, data: str, key: str | None = None, dims: int | None = None, **columns: str
) -> Points:
    """Read the points of an index; `columns` are those that `Points` takes."""
    path = folder / data
    told: dict[str, Any] = {name: _column(folder, columns[name], path) for name in columns}
    return Points(read_vectors(path, key, dims=dims), **told)


def _column(folder: Path, source: str, path: Path) -> npt.NDArray[Any]:
    """Read a column as `read_column` does, its file too relative to the mix."""
    return read_column(str(folder / source) if Path(source).suffix else source, path)
