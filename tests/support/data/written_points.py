"""A model of a collection: a dictionary of points, from which an index is built anew."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from divgrpc import Collection, Index
from divgrpc.types import FloatArray, HashFamily, Metric, Points, QueryResult, QueryStats
from divgrpc.types.filters import Condition
from divgrpc.types.records import AttributeTypes

DIMS = 6
# Number of columns of sparse points for each dimension.
LEVELS = 8
LABELS = 5
# Integers or texts, and one kind in a model.
Id = Any
TYPES: AttributeTypes = {"colour": "keyword", "size": "integer", "tags": "keyword"}
# Number of probes of an exhaustive search.
_PROBED_MAX = 500
COLOURS = ["red", "green", "blue", None]


@dataclass(frozen=True)
class Point:
    """What a collection stores of one point.

    vector: a tuple of numbers, or None for a point without a vector.
    added: values of the attributes `added0`, `added1` and so on, which the collection got later.
    """

    vector: Any
    colour: str | None = None
    size: int | None = None
    tags: tuple[str, ...] = ()
    payload: bytes = b""
    labels: Any = ()  # None if no point of the index can have labels
    category: int = -1
    subtopic: int = -1
    added: tuple[int | None, ...] = ()

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes by name."""
        added = {f"added{number}": value for number, value in enumerate(self.added)}
        return {"colour": self.colour, "size": self.size, "tags": self.tags} | added


Model = dict[Id, Point]


def drawn_names(count: int) -> dict[str, list[Id]]:
    """Return `count` ids of each kind, by the name of the kind."""
    return {
        "integers": list(range(0, 10 * count, 10)),
        "texts": [f"point {number}" for number in range(count)],
    }


def drawn_points(count: int, seed: int) -> list[Point]:
    """Draw points; some of them have the same vector, and some lack attributes or labels."""
    rng, rng_of_labels = np.random.default_rng(seed), np.random.default_rng((seed, 1))
    vectors = rng.integers(-3, 4, (count, DIMS)) / 2 + 0.25
    vectors[rng.random(count) < 0.2] = vectors[0]
    words = [*"xyz"]
    return [
        Point(
            tuple(vector),
            COLOURS[rng.integers(4)],
            None if rng.random() < 0.2 else int(rng.integers(10)),
            tuple(words[: rng.integers(4)]),
            bytes(rng.integers(0, 256, rng.integers(3)).astype(np.uint8)),
            tuple(np.flatnonzero(rng_of_labels.random(LABELS) < 0.3).tolist()),
            int(rng_of_labels.integers(-1, 3)),
            int(rng_of_labels.integers(-1, 3)),
        )
        for vector in vectors
    ]


def as_kind(vectors: FloatArray, kind: Points) -> Any:  # noqa: ANN401  # dense or sparse
    """Return vectors (n, DIMS) as they are, or as sparse rows of DIMS * LEVELS columns.

    Each number takes a column that depends on the number, and the smallest numbers are left out.
    """
    if kind == "dense":
        return vectors
    rows, dims = vectors.shape
    levels = np.rint(2 * vectors - 0.5).astype(np.int64) % LEVELS
    columns = np.arange(dims) * LEVELS + levels
    is_stored = (np.abs(vectors) > 0.3) | (np.arange(dims) == 0)
    row_numbers = np.broadcast_to(np.arange(rows)[:, None], vectors.shape)
    entries = (vectors[is_stored], (row_numbers[is_stored], columns[is_stored]))
    return sparse.csr_array(entries, shape=(rows, dims * LEVELS), dtype=np.float32)


def kind_of(index: Index) -> Points:
    kind: Points = index.engine.manifest.points
    return kind


def annotations_of(points: Sequence[Point]) -> dict[str, Any]:
    """Return labels, categories and sub-topics; none for points that cannot have them."""
    if any(point.labels is None for point in points):
        return {}
    labels = np.zeros((len(points), LABELS), np.int8)
    for row, point in enumerate(points):
        labels[row, list(point.labels)] = 1
    return {
        "labels": labels,
        "categories": [point.category for point in points],
        "subtopics": [point.subtopic for point in points],
    }


def vectors_of(points: Sequence[Point], kind: Points) -> Any:  # noqa: ANN401  # dense or sparse, or a list
    """Return vectors as a matrix or, if a point has none, as a list with None."""
    flags = [point.vector is not None for point in points]
    present = [point.vector for point in points if point.vector is not None]
    matrix = as_kind(np.array(present, np.float32).reshape(-1, DIMS), kind)
    if all(flags):
        return matrix
    rows = iter([matrix[[row]] if kind == "sparse" else matrix[row] for row in range(len(present))])
    return [next(rows) if has else None for has in flags]


def columns_of(points: Sequence[Point], kind: Points = "dense") -> dict[str, Any]:
    """Return the arguments of `build` and `upsert` with an entry for each point, except ids."""
    return annotations_of(points) | {
        "vectors": vectors_of(points, kind),
        "attributes": {
            "colour": [point.colour for point in points],
            "size": [point.size for point in points],
            "tags": [list(point.tags) for point in points],
        },
        "payloads": [point.payload for point in points],
    }


def _build(kind: type[Index], model: Model, points: Points, **options: Any) -> Any:  # noqa: ANN401  # Index or Collection
    """Build an index of the points of a model."""
    if any(point.vector is None for point in model.values()):
        options["vectors_optional"] = True
    columns = columns_of(list(model.values()), points)
    return kind.build(ids=list(model), attribute_types=TYPES, **columns, **options)


def a_collection(
    path: Path,
    model: Model,
    family: HashFamily = "cells",
    metric: Metric = "cosine",
    points: Points = "dense",
    **options: Any,  # noqa: ANN401  # of `build`
) -> Collection:
    options |= {"hash_family": family, "metric": metric, **bits_of(family)}
    collection: Collection = _build(Collection, model, points, path=path, **options)
    return collection


def bits_of(family: HashFamily) -> dict[str, Any]:
    """Return the sizes of hash tables; those of `lsh_sdiv` have a list of keys for 500 points."""
    sizes = {"n_tables": 3, "n_bits": 11} if family == "lsh_sdiv" else {"n_tables": 2, "n_bits": 3}
    return {} if family == "cells" else sizes


def fresh(model: Model, metric: Metric, points: Points = "dense") -> Index:
    """Build an index of the points of a model, whose exact search is to be compared."""
    options: dict[str, Any] = {"hash_family": "lsh_div", "n_tables": 1, "n_bits": 1}
    index: Index = _build(Index, model, points, metric=metric, **options)
    return index


def upsert(collection: Collection, points: Model, **options: Any) -> int:  # noqa: ANN401  # of `upsert`
    """Write points; return the number of the write."""
    columns = columns_of(list(points.values()), kind_of(collection))
    return collection.upsert(list(points), **columns, **options).sequence


def passing(model: Model, test: Callable[[Point], bool]) -> Model:
    return {name: point for name, point in model.items() if test(point)}


def same_answers(a: QueryResult, b: QueryResult) -> bool:
    """Tell whether two results have the same bytes of ids, scores and selection scores."""
    ids = a.ids.tolist() == b.ids.tolist() and a.counts.tolist() == b.counts.tolist()
    columns = ("scores", "selection_scores")
    return ids and all(getattr(a, c).tobytes() == getattr(b, c).tobytes() for c in columns)


def same_stats(a: QueryResult, b: QueryResult) -> bool:
    """Tell whether two results have the same statistics."""
    columns = [field.name for field in fields(QueryStats)]
    return all(getattr(a.stats, c).tolist() == getattr(b.stats, c).tolist() for c in columns)


def check_records(records: Iterable[Any], model: Model) -> None:
    """Check that records have the attributes and payloads of the points in a model."""
    for record in records:
        point = model[record.id]
        assert record.attributes == point.attributes
        assert record.payload == point.payload


def check_annotations(index: Index, model: Model) -> None:
    """Check the label sets of all points, and what evaluations know of those with a vector."""
    engine, points = index.engine, list(model.values())
    rows = engine.find(list(model)) if model else np.empty(0, np.int64)
    assert engine.label_sets is not None
    sets = engine.label_sets[rows]
    assert np.diff(sets.indptr).tolist() == [len(point.labels) for point in points]
    labels = [label for point in points for label in point.labels]
    assert sets.indices.tolist() == labels
    flags = np.array([point.vector is not None for point in points], np.bool_)
    rows, points = rows[flags], [point for point in points if point.vector is not None]
    labels = [label for point in points for label in point.labels]
    assert engine.label_counts is not None
    assert engine.label_counts.tolist() == np.bincount(labels, minlength=LABELS).tolist()
    topics = engine.topics
    assert topics.labels.categories[rows].tolist() == [point.category for point in points]
    assert topics.labels.subtopics[rows].tolist() == [point.subtopic for point in points]
    categories = [point.category for point in points if point.category >= 0]
    assert topics.names.tolist() == sorted(set(categories))
    assert topics.totals.sum() == len(categories)


def check_points(index: Index, model: Model) -> None:
    """Check that an index has the points of a model, by all calls that search for nothing."""
    assert index.count() == len(index) == len(model)
    if "labels" in annotations_of(list(model.values())):
        check_annotations(index, model)
    absent = {name for name, point in model.items() if point.vector is None}
    assert index.info.rows_without_vector == len(absent)
    pages = list(index.scroll(page_size=7))
    names = [record.id for page in pages for record in page]
    assert len(names) == len(set(names))
    assert set(names) == set(model)
    some_names: Any = names
    records = index.get(some_names, with_vectors=True, with_labels=True)
    assert {record.id for record in records if record.vector is None} == absent
    for record in records:
        point = model[record.id]
        annotations: Any = (point.labels, point.category, point.subtopic)
        if point.labels is None:
            annotations = (None, None, None)
        assert (record.labels, record.category, record.subtopic) == annotations
    if names and isinstance(names[0], int):
        assert names == sorted(names)
    for page in pages:
        check_records(page, model)
    ids = [*list(model)[::3], *list(model)[:1]]
    if ids:
        records = index.get(ids)
        assert [record.id for record in records] == ids
        check_records(records, model)


def check_exact(
    index: Index,
    model: Model,
    metric: Metric,
    queries: FloatArray,
    test: tuple[Condition, Callable[[Point], bool]] | None = None,
) -> None:
    """Check that exact queries have the answers of an index that is built of the model.

    So has a search that looks into all buckets or cells.
    """
    condition = None if test is None else test[0]
    expected = model if test is None else passing(model, test[1])
    assert index.count(condition) == len(expected)
    # No query finds a point without a vector.
    expected = passing(expected, lambda point: point.vector is not None)
    kind = kind_of(index)
    truth, queries = fresh(expected, metric, kind) if expected else None, as_kind(queries, kind)
    options: dict[str, Any] = {"search": "exact", "keep_duplicates": True, "k": 5}
    for selector in ("nearest", "greedy", "mmr"):
        result = index.query(queries, filter=condition, selector=selector, **options)
        if truth is None:
            assert not result.counts.any()
        else:
            assert same_answers(result, truth.query(queries, selector=selector, **options))
    parameters = index.engine.manifest.parameters
    n_probes = (parameters.n_tables or 0) << (parameters.n_bits or 0)
    if truth is not None and n_probes <= _PROBED_MAX:
        options |= {"selector": "nearest"}
        every_bucket: Any = {"search": "tables", "n_probes": _PROBED_MAX, "hash_limit": 0}
        result = index.query(queries, filter=condition, **options | every_bucket)
        assert same_answers(result, truth.query(queries, **options))
