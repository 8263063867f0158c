"""Points that show which write has made them, and an index of which every point is checked."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from divgrpc import Index
from divgrpc.types import Points
from divgrpc.types.records import SparseVector
from support.data.written_points import as_kind, kind_of

DIMS = 4
# Numbers of the ids. There are few, so that most are written several times.
IDS = 40
# Number of bits of a stamp that labels show.
LABELS = 16
Stamps = dict[int, int]


@dataclass(frozen=True)
class Write:
    """A write: of the ids that it adds or deletes; `stamp` is different for each write."""

    is_deletion: bool
    ids: list[int]
    stamp: int


def vectors_of(ids: list[int], stamp: int, kind: Points = "dense") -> Any:  # noqa: ANN401  # dense or sparse
    """Return the vectors (m, d) that a write gives to points."""
    numbers = np.outer(np.array(ids) + 1, np.arange(1, DIMS + 1)) * (stamp % 1_009 + 1)
    return as_kind(np.asarray(np.sin(numbers), np.float32), kind)


def has_vector(point_id: int, stamp: int) -> bool:
    """Tell whether a write to an index with `vectors_optional` gives a point a vector."""
    return (7 * point_id + stamp) % 5 != 4


def written_vectors_of(ids: list[int], stamp: int, kind: Points, *, is_optional: bool) -> Any:  # noqa: ANN401  # as of `vectors_of`, or a list
    """Return what a write gives to points: their vectors, with None for a point without one."""
    vectors = vectors_of(ids, stamp, kind)
    if not is_optional:
        return vectors
    rows = [vectors[[row]] if kind == "sparse" else vectors[row] for row in range(len(ids))]
    return [row if has_vector(i, stamp) else None for i, row in zip(ids, rows, strict=True)]


def is_optional(index: Index) -> bool:
    """Tell whether the points of an index may lack a vector."""
    return index.engine.manifest.parameters.vectors_optional


def columns_of(stamps: list[int], *, has_labels: bool = True) -> dict[str, Any]:
    """Return what a build and a write give to points beside vectors; all of it shows the stamps."""
    columns: dict[str, Any] = {"attributes": {"stamp": stamps}, "payloads": list(map(str, stamps))}
    if has_labels:
        columns["labels"] = (np.array(stamps, np.int64).reshape(-1, 1) >> np.arange(LABELS)) & 1
    return columns


def after(stamps: Stamps, write: Write) -> Stamps:
    """Return the stamps of the points after a write."""
    if write.is_deletion:
        return {name: stamp for name, stamp in stamps.items() if name not in write.ids}
    return stamps | dict.fromkeys(write.ids, write.stamp)


def is_a_write(stamps: Stamps, write: Write) -> bool:
    """Tell whether a write has a sequence number: a deletion of no point has none."""
    return not write.is_deletion or not stamps.keys().isdisjoint(write.ids)


def stamps_of(index: Index) -> Stamps:
    """Return the stamps of all points; each point must be whole."""
    stamps: Stamps = {}
    kind, optional = kind_of(index), is_optional(index)
    for page in index.scroll(with_vectors=True):
        for record in page:
            stamp = int(record.payload)
            assert record.attributes["stamp"] == stamp
            if optional and not has_vector(int(record.id), stamp):
                assert record.vector is None
            else:
                assert _shown_by(record.vector) == _vector_of(int(record.id), stamp, kind)
            stamps[int(record.id)] = stamp
    assert index.count() == len(stamps)
    if index.engine.label_sets is not None:
        check_labels(index, stamps)
    return stamps


@cache
def _vector_of(point_id: int, stamp: int, kind: Points) -> tuple[list[int], str, bytes]:
    """Return the columns, the type and the bytes of a point's vector; a dense one has no columns.

    Simulations look at the same points very often.
    """
    vectors = vectors_of([point_id], stamp, kind)
    columns, values = (vectors.indices, vectors.data) if kind == "sparse" else ([], vectors[0])
    return [int(column) for column in columns], values.dtype.str, values.tobytes()


def _shown_by(vector: Any) -> tuple[list[int], str, bytes]:  # noqa: ANN401  # an array or a SparseVector
    """Return what `_vector_of` returns, of the vector of a record."""
    is_sparse = isinstance(vector, SparseVector)
    columns, values = (vector.indices.tolist(), vector.values) if is_sparse else ([], vector)
    return columns, values.dtype.str, values.tobytes()


def check_labels(index: Index, stamps: Stamps) -> None:
    """Check that the labels of all points show their stamps."""
    engine, values = index.engine, list(stamps.values())
    rows = engine.find(list(stamps)) if stamps else np.empty(0, np.int64)
    assert engine.label_sets is not None
    sets = engine.label_sets[rows]
    points = np.repeat(np.arange(len(rows)), np.diff(sets.indptr))
    bits = np.bincount(points, 2.0**sets.indices, minlength=len(rows))
    assert bits.astype(int).tolist() == [value % 2**LABELS for value in values]


def check_answers(index: Index, stamps: Stamps) -> None:
    """Compare answers with exact ones of an index that is built of the points.

    They are those of an exact search, and of one that looks into all buckets or cells.
    """
    if is_optional(index):
        stamps = {name: stamp for name, stamp in stamps.items() if has_vector(name, stamp)}
    kind = kind_of(index)
    queries = vectors_of([90, 91], 5, kind)
    for k, search in ((IDS + 1, "exact"), (3, "tables")):
        options: Any = {"k": k, "keep_duplicates": True, "selector": "nearest"}
        every_bucket: Any = {"search": search, "hash_limit": 0, "n_probes": 4_096}
        result = index.query(queries, **options | every_bucket)
        assert result.counts.tolist() == [min(k, len(stamps))] * 2
        if stamps:
            blocks = [vectors_of([name], stamp) for name, stamp in stamps.items()]
            vectors = as_kind(np.concatenate(blocks), kind)
            fresh = Index.build(vectors, ids=list(stamps), metric="euclidean", hash_family="cells")
            truth = fresh.query(queries, search="exact", **options)
            assert result.ids.tolist() == truth.ids.tolist()
            assert result.scores.tobytes() == truth.scores.tobytes()
