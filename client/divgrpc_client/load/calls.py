"""Kinds of calls; all messages are encoded before the measured time starts.

A mix is a TOML file with one table for each kind of call. Paths are relative to the file:

    [[call]]
    index = "products"
    data = "queries.npy"       # also .npz (with key), .fvecs, svmlight, scipy's sparse .npz
    share = 3                  # weight among the calls; default 1
    batch = 16                 # rows per call; default 1
    diversity = 0.3            # any parameter of divgrpc query, but no filter

    [[call]]
    method = "PredictLabels"
    index = "papers"
    data = "documents.npz"
    top_k = 5                  # any option of divgrpc predict

    [[call]]
    method = "Upsert"          # or "Delete", which takes the ids alone
    index = "products"
    data = "new.npy"
    first_id = 100000          # the id of row 0 of the file, default 0; row 1 has the next id
    id_prefix = "new-"         # for an index with text ids: new-100000, new-100001, ...
"""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

import numpy as np

from divgrpc.errors import InvalidArgumentError, invalid
from divgrpc.types import IntArray
from divgrpc_client.formats.files import pick_rows, read_vectors
from divgrpc_client.messages import arguments, requests, writes
from divgrpc_client.messages.options import PredictOptions, QueryOptions
from divgrpc_client.messages.vectors import as_matrix
from divgrpc_protos.arrays import Matrix, picked, row_count, take

Method: TypeAlias = Literal["Query", "PredictLabels", "Upsert", "Delete"]
_MakeMessage: TypeAlias = Callable[[IntArray], Any]

# Maximum number of messages of one kind of call, and maximum total bytes of the messages of all
# kinds. Every process holds a copy of the messages.
_MESSAGES_MAX: Final = 2_000
BYTES_MAX: Final = 2**26
_WRITES: Final = ("Upsert", "Delete")
_WRITE_OPTIONS: Final = ("first_id", "id_prefix")
_KEYS: Final = ("method", "index", "data", "key", "index_base", "dims", "rows", "share", "batch")


@dataclass(frozen=True, slots=True)
class Call:
    """One kind of call.

    index: name of the index.
    vectors: (n, dims) rows to send: queries, documents or points.
    options: options of `Client.query`, or of `Client.predict_labels` if `method` is
        "PredictLabels". Writes have `first_id`, the id of row 0 of `vectors` (default 0), and
        `id_prefix`, a text that makes text ids.
    method: the RPC to call: "Query", "PredictLabels", "Upsert" or "Delete".
    batch: number of rows in one call, 1 to n.
    share: relative frequency of this kind among all kinds, above 0.

    Raises `InvalidArgumentError` for an out-of-range value.
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
        rows = row_count(self.vectors)
        if rows < self.batch:
            reason = f"a batch of {self.batch} rows cannot be made of {rows}"
            raise InvalidArgumentError("batch", reason)

    @property
    def name(self) -> str:
        """Method, index, batch and options, which identify this kind in reports."""
        options = [f"{name} {value}" for name, value in self.options.items()]
        rows = [f"{self.batch} rows"] if self.batch > 1 else []
        return ", ".join([f"{self.method} {self.index}", *rows, *options])

    def messages(self, seed: int, room: int = BYTES_MAX) -> list[bytes]:
        """Return serialised requests, each with different rows of `vectors`.

        There are at most `_MESSAGES_MAX` requests, and none is added after their total size has
        reached `room` bytes. Raises `InvalidArgumentError` for a wrong option.
        """
        make = self._write() if self.method in _WRITES else self._read()
        order = np.random.default_rng([seed, 2]).permutation(row_count(self.vectors))
        whole = len(order) - len(order) % self.batch
        messages: list[bytes] = []
        for rows in order[:whole].reshape(-1, self.batch)[:_MESSAGES_MAX]:
            messages.append(make(rows).SerializeToString())
            room -= len(messages[-1])
            if room <= 0:
                break
        return messages

    def _read(self) -> _MakeMessage:
        """Return a function that makes the request with given rows."""
        make: Callable[..., Any] = requests.query
        if self.method == "PredictLabels":
            predict = PredictOptions(**self.options)  # type: ignore[typeddict-item]  # checked next
            fields, make = requests.predict_fields(self.index, predict), requests.predict
        else:
            query = QueryOptions(**self.options)  # type: ignore[typeddict-item]  # checked next
            fields = requests.query_fields(self.index, query)
        return lambda rows: make(fields, picked(self.vectors, rows), 0, self.batch)

    def _write(self) -> _MakeMessage:
        """Return a function that makes the write with given rows.

        The writes have no `write_id`: the server would make a message that is sent again only once.
        """
        unknown = self.options.keys() - set(_WRITE_OPTIONS)
        if unknown:
            raise invalid(min(unknown), f"a write has the options {', '.join(_WRITE_OPTIONS)}")
        first = arguments.not_negative("first_id", self.options.get("first_id", 0))
        prefix = self.options.get("id_prefix")
        if prefix is not None and not isinstance(prefix, str):
            raise invalid("id_prefix", f"must be a text, got {prefix!r:.80}")

        def make(rows: IntArray) -> Any:  # noqa: ANN401  # one of two messages
            ids: Any = rows + first
            if prefix is not None:
                ids = [f"{prefix}{number}" for number in ids.tolist()]
            if self.method == "Delete":
                return writes.delete_request(self.index, ids)
            points = writes.RowArguments(ids, picked(self.vectors, rows))
            return writes.upsert_request(self.index, points)

        return make


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
            calls.append(call_of(table, path.parent))
        except (InvalidArgumentError, KeyError, TypeError) as error:
            reason = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
            raise InvalidArgumentError("mix", f"{path}, call {number}: {reason}") from None
    return calls


def call_of(table: Mapping[str, Any], folder: Path) -> Call:
    """Return the call that a table of a mix describes; the data path is relative to `folder`.

    Raises `InvalidArgumentError` for a wrong value or file, and KeyError for a missing key.
    """
    base, dims = table.get("index_base", "auto"), table.get("dims")
    vectors = read_vectors(folder / table["data"], table.get("key"), base=base, dims=dims)
    rows = pick_rows(table.get("rows"), row_count(vectors))
    options = {name: value for name, value in table.items() if name not in _KEYS}
    if table.get("method") in _WRITES and rows.start:
        # Ids count from row 0 of the file.
        first = arguments.not_negative("first_id", options.get("first_id", 0))
        options["first_id"] = first + rows.start
    return Call(
        index=table["index"],
        vectors=take(vectors, rows.start, rows.stop),
        options=options,
        **{name: table[name] for name in ("method", "batch", "share") if name in table},
    )
