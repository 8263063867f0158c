"""The records of the log: what a write adds to a collection, with all that was computed for it.

A record has a JSON object and arrays. It holds the codes, cells and scan terms of its rows, so that
applying a record computes nothing. A record therefore has the same effect in every process and on
every processor.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from divgrpc.arrays import Array
from divgrpc.columns.annotations import Annotations, annotations_in, join
from divgrpc.columns.filters import Flags
from divgrpc.columns.values import DTYPES, Column
from divgrpc.types import IntArray
from divgrpc.types.records import Attribute
from divgrpc.vectors import Rows as Vectors
from divgrpc.vectors import SparseRows, concatenate_rows

# Arrays of the rows that have a vector, beside the vectors.
_OF_VECTORS: Final = ("cells", "terms", "codes")
_ALIGNMENT_BYTES: Final = 8
_HEAD_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows that an upsert adds, m of them.

    keys: (m,) int64 ids, or keys of text ids.
    texts: m text ids as UTF-8; empty if ids are integers.
    vectors: (m, d), dense float32 or sparse, scaled for the metric.
    cells: (m,) int32 numbers of cells, -1 without cells.
    terms: (m,) uint32 scan terms.
    codes: (m, bits / 8) uint8, as `kernels.encode` packs them.
    columns: a column of each declared attribute.
    payloads: m payloads, or empty if the collection has none.
    annotations: label sets, categories and sub-topics, of the kinds that the collection has.
    has_vector: (m,) whether a point has a vector; None if all have. For a point without one, the
        arrays have zeros, and a sparse row has no values.
    """

    keys: IntArray
    texts: tuple[bytes, ...]
    vectors: Vectors
    cells: npt.NDArray[np.int32]
    terms: npt.NDArray[np.uint32]
    codes: npt.NDArray[np.uint8]
    columns: Mapping[Attribute, Column] = field(default_factory=dict)
    payloads: tuple[bytes, ...] = ()
    annotations: Annotations = field(default_factory=dict)
    has_vector: Flags | None = None

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def with_vector(self) -> Flags | slice:
        """Selects the rows that have a vector."""
        return slice(None) if self.has_vector is None else self.has_vector


@dataclass(frozen=True, slots=True)
class Record:
    """One write.

    rows: the rows that are added; None if none are.
    removed: (m,) int64 keys of the points that are deleted. Points that `rows` replace are not
        among them.
    write_id: the name that the caller gave the request; a repeated request has the same one.
    digest: `digest_of` the request, if it has a name.
    """

    rows: Rows | None
    removed: IntArray
    write_id: str = ""
    digest: str = ""


def rows_of_columns(
    keys: IntArray,
    texts: Sequence[bytes],
    columns: Mapping[Attribute, Column],
    payloads: Sequence[bytes],
    annotations: Annotations,
) -> Rows:
    """Return rows whose vectors and codes nobody reads."""
    return Rows(
        keys,
        tuple(texts),
        np.empty((0, 0), np.float32),
        np.empty(0, np.int32),
        np.empty(0, np.uint32),
        np.empty((0, 0), np.uint8),
        columns,
        tuple(payloads),
        annotations,
    )


def pack(record: Record) -> bytes:
    """Return a record as bytes."""
    arrays: dict[str, Array] = {"removed": record.removed}
    head: dict[str, Any] = {}
    if record.write_id:
        head["write_id"] = record.write_id
        head["digest"] = record.digest
    if record.rows is not None:
        rows = record.rows
        arrays["keys"] = rows.keys
        if rows.has_vector is None:
            arrays |= _arrays_of(rows.vectors)
        else:
            arrays |= _arrays_of(rows.vectors[rows.has_vector])
            arrays["has_vector"] = rows.has_vector
        for name in _OF_VECTORS:
            arrays[name] = getattr(rows, name)[rows.with_vector]
        arrays |= rows.annotations
        _put_texts(arrays, "texts", rows.texts)
        _put_texts(arrays, "payloads", rows.payloads)
        words = []
        for number, column in enumerate(rows.columns.values()):
            arrays[f"values.{number}"], arrays[f"ends.{number}"] = column.values, column.ends
            words.append(column.words)
        head["words"] = words
        if isinstance(rows.vectors, SparseRows):
            head["dims"] = rows.vectors.dims
    head["arrays"] = [[name, a.dtype.str, list(a.shape)] for name, a in arrays.items()]
    text = json.dumps(head, separators=(",", ":")).encode()
    parts = [len(text).to_bytes(_HEAD_BYTES, "little"), text, _padding(_HEAD_BYTES + len(text))]
    for array in arrays.values():
        parts += [np.ascontiguousarray(array).tobytes(), _padding(array.nbytes)]
    return b"".join(parts)


def unpack(body: bytes, attributes: Sequence[Attribute]) -> Record:
    """Return the record of `pack`; `attributes` are those that the collection declares."""
    size = int.from_bytes(body[:_HEAD_BYTES], "little")
    head = json.loads(body[_HEAD_BYTES : _HEAD_BYTES + size])
    start = _HEAD_BYTES + size + len(_padding(_HEAD_BYTES + size))
    arrays: dict[str, Array] = {}
    for name, dtype, shape in head["arrays"]:
        count = int(np.prod(shape, dtype=np.int64))
        arrays[name] = np.frombuffer(body, dtype, count, start).reshape(shape)
        start += arrays[name].nbytes + len(_padding(arrays[name].nbytes))
    rows = None
    if "keys" in arrays:
        columns = {
            attribute: Column(arrays[f"values.{n}"], arrays[f"ends.{n}"], tuple(words))
            for n, (attribute, words) in enumerate(zip(attributes, head["words"], strict=True))
        }
        has_vector = arrays.get("has_vector")
        rows = Rows(
            keys=arrays["keys"],
            texts=_take_texts(arrays, "texts"),
            vectors=spread_vectors(_vectors_of(arrays, head), has_vector),
            **{name: spread(arrays[name], has_vector) for name in _OF_VECTORS},
            columns=columns,
            payloads=_take_texts(arrays, "payloads"),
            annotations=annotations_in(arrays),
            has_vector=has_vector,
        )
    return Record(rows, arrays["removed"], head.get("write_id", ""), head.get("digest", ""))


def _arrays_of(vectors: Vectors) -> dict[str, Array]:
    if isinstance(vectors, SparseRows):
        return {"indptr": vectors.indptr, "indices": vectors.indices, "values": vectors.values}
    return {"vectors": vectors}


def _vectors_of(arrays: Mapping[str, Array], head: Mapping[str, Any]) -> Vectors:
    if "dims" in head:
        indptr, indices, values = (arrays[name] for name in ("indptr", "indices", "values"))
        return SparseRows(indptr, indices, values, head["dims"])
    return arrays["vectors"]


def spread_vectors(vectors: Vectors, has_vector: Flags | None) -> Vectors:
    """Return the vectors that are there as rows of all points, with zeros for the others."""
    if not isinstance(vectors, SparseRows):
        return spread(vectors, has_vector)
    widths = spread(np.diff(vectors.indptr), has_vector)
    ends = np.concatenate(([0], np.cumsum(widths, dtype=np.int64)))
    return replace(vectors, indptr=ends)


def spread(array: Array, has_vector: Flags | None) -> Array:
    """Return an array of the rows with a vector as one of all rows, with zeros for the others."""
    if has_vector is None:
        return array
    whole = np.zeros((len(has_vector), *array.shape[1:]), array.dtype)
    whole[has_vector] = array
    return whole


def _put_texts(arrays: dict[str, Array], name: str, texts: Sequence[bytes]) -> None:
    if texts:
        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        arrays[f"{name}.bytes"] = np.frombuffer(b"".join(texts), np.uint8)
        arrays[f"{name}.ends"] = np.cumsum(lengths)


def _take_texts(arrays: Mapping[str, Array], name: str) -> tuple[bytes, ...]:
    if f"{name}.ends" not in arrays:
        return ()
    joined, ends = arrays[f"{name}.bytes"].tobytes(), arrays[f"{name}.ends"].tolist()
    return tuple(joined[a:b] for a, b in zip([0, *ends[:-1]], ends, strict=True))


def _padding(size: int) -> bytes:
    """Return the zeros that align what follows."""
    return b"\0" * (-size % _ALIGNMENT_BYTES)


def join_rows(parts: Sequence[Rows], attributes: Sequence[Attribute]) -> Rows:
    """Return several blocks of rows as one."""
    if len(parts) == 1:
        return parts[0]
    columns = {a: _join_columns(a, [part.columns[a] for part in parts]) for a in attributes}
    payloads = tuple(p for part in parts for p in part.payloads or (b"",) * len(part))
    return Rows(
        np.concatenate([part.keys for part in parts]),
        tuple(text for part in parts for text in part.texts),
        concatenate_rows([part.vectors for part in parts]),
        np.concatenate([part.cells for part in parts]),
        np.concatenate([part.terms for part in parts]),
        np.concatenate([part.codes for part in parts]),
        columns,
        payloads if any(payloads) else (),
        join([part.annotations for part in parts]),
        _join_flags(parts),
    )


def _join_flags(parts: Sequence[Rows]) -> Flags | None:
    if all(part.has_vector is None for part in parts):
        return None
    flags = (np.ones(len(p), np.bool_) if p.has_vector is None else p.has_vector for p in parts)
    return np.concatenate([*flags])


def _join_columns(attribute: Attribute, columns: Sequence[Column]) -> Column:
    words: dict[str, int] = {}
    values, ends, end = [], [], 0
    for column in columns:
        numbers = column.values
        if attribute.type == "keyword":
            places = [words.setdefault(word, len(words)) for word in column.words]
            # The last place is for missing values, whose number is -1.
            numbers = np.array([*places, -1], DTYPES["keyword"])[column.values]
        values.append(numbers)
        ends.append(column.ends + end)
        end += len(numbers)
    return Column(np.concatenate(values), np.concatenate(ends), tuple(words))
