"""Label sets, categories and sub-topics of points that are written."""

import shutil
import tempfile
import tracemalloc
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from scipy import sparse

from divgrpc import Collection, Field, Index
from divgrpc.doctor import check_folder
from divgrpc.errors import ConditionFailedError, InvalidArgumentError, UnfitIndexError
from divgrpc.metrics import Labels, Topics
from divgrpc.types import HashFamily, IntArray, LabelResult, Vote, WriteResult
from divgrpc.types.records import Parts
from reference import labels as reference

pytestmark = pytest.mark.usefixtures("no_syncs")

GOLDEN = Path(__file__).parent.parent.parent / "golden"
DIMS, LABELS = 5, 6
NAMES = ["art", "film", "music", "physics", "biology", "chess"]
# Nodes 6 and 7 are groups.
EDGES = np.array([(8, 6), (8, 7), (6, 0), (6, 1), (6, 2), (7, 3), (7, 4), (7, 5)])
DOCUMENTS = np.random.default_rng(8).normal(size=(3, DIMS)).astype(np.float32)
VOTES: dict[str, Any] = {"mode": "neighbour_vote", "top_k": LABELS, "neighbours": 4}
EXACT: dict[str, Any] = VOTES | {"search": "exact", "selector": "nearest"}
NUMBERS = st.integers(0, 24)
some_numbers = st.lists(NUMBERS, min_size=1, max_size=6, unique=True)


@dataclass(frozen=True)
class Point:
    """A point, with what its label set and its topics are in a model of a collection."""

    vector: tuple[float, ...]
    labels: frozenset[int] = frozenset()
    category: int = -1
    subtopic: int = -1
    is_red: bool = False


Model = dict[Any, Point]


def drawn_points(count: int, seed: int) -> list[Point]:
    """Draw points; a fifth of them has no labels, and a fifth no category."""
    rng = np.random.default_rng(seed)
    return [
        Point(
            tuple(rng.normal(size=DIMS).astype(np.float32).tolist()),
            frozenset(np.flatnonzero(rng.random(LABELS) < rng.choice([0, 0.4, 0.8])).tolist()),
            int(rng.integers(-1, 4)),
            int(rng.integers(-1, 3)),
            bool(rng.integers(2)),
        )
        for _ in range(count)
    ]


POINTS = drawn_points(60, 2)


def label_matrix(points: list[Point]) -> IntArray:
    matrix = np.zeros((len(points), LABELS), np.int64)
    for row, point in enumerate(points):
        matrix[row, sorted(point.labels)] = 1
    return matrix


def annotations_of(points: list[Point]) -> dict[str, Any]:
    return {
        "labels": label_matrix(points),
        "categories": [point.category for point in points],
        "subtopics": [point.subtopic for point in points],
    }


def columns_of(points: list[Point]) -> dict[str, Any]:
    return {
        "vectors": np.array([point.vector for point in points], np.float32),
        "attributes": {"red": [point.is_red for point in points]},
        **annotations_of(points),
    }


def build(kind: type[Index], model: Model, **options: Any) -> Any:  # noqa: ANN401  # Index or Collection
    """Build an index of a model, whose metric is euclidean unless `options` says otherwise."""
    return kind.build(
        ids=list(model), **columns_of(list(model.values())), **{"metric": "euclidean"} | options
    )


def upsert(collection: Collection, points: Model) -> None:
    collection.upsert(list(points), **columns_of(list(points.values())))


def same_bytes(a: LabelResult, b: LabelResult) -> bool:
    columns = ("labels", "scores", "selection_scores", "counts")
    return all(getattr(a, name).tobytes() == getattr(b, name).tobytes() for name in columns)


def check_votes(index: Index, model: Model) -> None:
    """Compare the votes of exact neighbours with the definition."""
    points = list(model.values())
    sets = [set(point.labels) for point in points]
    vectors = np.array([point.vector for point in points], np.float64).reshape(-1, DIMS)
    votes: tuple[Vote, ...] = ("plain", "weighted")
    for vote in votes:
        result = index.predict_labels(DOCUMENTS, vote=vote, **EXACT)
        for row, document in enumerate(DOCUMENTS.astype(float)):
            squares = ((vectors - document) ** 2).sum(axis=1)
            nearest = np.argsort(squares)[: EXACT["neighbours"]]
            weights = np.ones(len(nearest))
            if vote == "weighted" and len(nearest):
                weights = 1 / (1 + squares[nearest] / squares[nearest].mean())
            shares = reference.vote(nearest.tolist(), weights.tolist(), sets)
            count = int(result.counts[row])
            assert count == len(shares)
            voted_labels = result.labels[row, :count].tolist()
            assert result.scores[row, :count] == pytest.approx(
                sorted(shares.values(), reverse=True), rel=1e-5
            )
            assert [shares[label] for label in voted_labels] == pytest.approx(
                result.scores[row, :count], rel=1e-5
            )


def check_topics(index: Index, model: Model) -> None:
    """Compare how evaluations judge all points with how the points of the model are judged."""
    names = list(model)
    engine = index.engine
    numbers = np.array(names)
    if numbers.dtype.kind == "U":
        numbers = engine.numbers_of(names, "ids")
    points = list(model.values())
    truth = Topics.of_categories(
        Labels.of(
            categories=[point.category for point in points],
            subtopics=[point.subtopic for point in points],
            ids=numbers,
        )
    )
    assert engine.topics.names.tolist() == truth.names.tolist()
    assert engine.topics.totals.tolist() == truth.totals.tolist()
    categories = truth.names
    if len(categories):
        lists = np.tile(numbers, (len(categories), 1))
        judged, expected = engine.topics.judge(lists, categories), truth.judge(lists, categories)
        for field in ("relevant", "subtopics", "categories", "relevant_total", "depths"):
            assert (getattr(judged, field) == getattr(expected, field)).all()


class _Writes(RuleBasedStateMachine):
    """Writes to a collection and to a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp()) / "points"
        self.collection: Collection | None = None

    @initialize(
        family=st.sampled_from(["cells", "lsh_div"]),
        has_texts=st.booleans(),
        count=st.integers(1, 25),
    )
    def build(self, *, family: HashFamily, has_texts: bool, count: int) -> None:
        self.has_texts = has_texts
        self.model: Model = {self.id_of(i): self.point(i, i) for i in range(count)}
        self.collection = build(
            Collection, self.model, path=self.path, hash_family=family, hierarchy=EDGES
        )

    def id_of(self, number: int) -> Any:  # noqa: ANN401  # a text or an integer
        return f"p{number}" if self.has_texts else 10 * number

    def point(self, number: int, place: int) -> Point:
        """Return a drawn point, with a vector that no other id has."""
        point = POINTS[place % len(POINTS)]
        return replace(point, vector=(point.vector[0] + number / 1_000, *point.vector[1:]))

    @property
    def open(self) -> Collection:
        assert self.collection is not None
        return self.collection

    @rule(numbers=some_numbers, first=st.integers(0, 59), at_once=st.booleans())
    def upsert(self, numbers: list[int], first: int, *, at_once: bool) -> None:
        points = {self.id_of(n): self.point(n, first + i) for i, n in enumerate(numbers)}
        for part in [points] if at_once else [{name: point} for name, point in points.items()]:
            upsert(self.open, part)
        self.model |= points

    @rule(numbers=some_numbers, first=st.integers(0, 59))
    def upsert_without_annotations(self, numbers: list[int], first: int) -> None:
        points = {
            self.id_of(n): Point(self.point(n, first + i).vector) for i, n in enumerate(numbers)
        }
        columns = columns_of(list(points.values()))
        self.open.upsert(list(points), columns["vectors"], attributes=columns["attributes"])
        self.model |= points

    @rule(
        numbers=some_numbers,
        first=st.integers(0, 59),
        kinds=st.sets(st.sampled_from(["labels", "categories", "subtopics"])),
    )
    def upsert_without_vectors(self, numbers: list[int], first: int, kinds: set[str]) -> None:
        """Points keep the annotations that are not given."""
        names = [name for name in map(self.id_of, numbers) if name in self.model]
        if not names:
            return
        other_points = [POINTS[(first + place) % 60] for place in range(len(names))]
        arguments = {
            name: values for name, values in annotations_of(other_points).items() if name in kinds
        }
        self.open.upsert(names, attributes={"red": [True] * len(names)}, **arguments)
        fields = {"labels": "labels", "categories": "category", "subtopics": "subtopic"}
        for name, other in zip(names, other_points, strict=True):
            changes: Any = {fields[kind]: getattr(other, fields[kind]) for kind in kinds}
            self.model[name] = replace(self.model[name], is_red=True, **changes)

    @rule(numbers=st.lists(NUMBERS, max_size=9))
    def delete(self, numbers: list[int]) -> None:
        names = list(map(self.id_of, numbers))
        self.open.delete(names)
        self.model = {name: point for name, point in self.model.items() if name not in names}

    @rule(how=st.sampled_from(["merge", "vacuum", "retrain", "open"]))
    def renew(self, how: str) -> None:
        before = self.open.predict_labels(DOCUMENTS, **VOTES)
        if how == "merge":
            self.open.compact()
        elif how == "vacuum":
            self.open.compact(vacuum=True)
        elif how == "retrain":
            self.open.retrain()
            return
        else:
            self.open.close()
            self.collection = Collection.open(self.path)
        assert same_bytes(self.open.predict_labels(DOCUMENTS, **VOTES), before)

    @invariant()
    def the_annotations_are_those_of_the_model(self) -> None:
        if self.collection is None:
            return
        points = list(self.model.values())
        counts = self.open.engine.label_counts
        assert counts is not None
        assert counts.tolist() == label_matrix(points).sum(axis=0).tolist()
        check_topics(self.open, self.model)
        check_votes(self.open, self.model)
        red_points = {name: point for name, point in self.model.items() if point.is_red}
        if red_points:
            truth = build(Index, red_points, hierarchy=EDGES)
            options = EXACT | {"selector": "hierarchy"}
            expected = truth.predict_labels(DOCUMENTS, **options)
            votes = self.open.predict_labels(DOCUMENTS, filter=Field("red") == True, **options)  # noqa: E712  # a condition
            assert same_bytes(votes, expected)

    def teardown(self) -> None:
        if self.collection is not None:
            self.collection.close()
            # Another process sees the same.
            opened = Index.open(self.path)
            assert opened.count() == len(self.model)
            check_topics(opened, self.model)
            check_votes(opened, self.model)


def test_annotations_are_those_of_a_dictionary_with_the_same_writes() -> None:
    run_state_machine_as_test(
        _Writes, settings=settings(max_examples=12, stateful_step_count=12, deadline=None)
    )


MODEL: Model = {10 * i: replace(POINTS[i], vector=POINTS[i].vector) for i in range(40)}
LATER: Model = {10 * i + 5 * (i % 2): POINTS[i] for i in range(20, 60)}


def trained(path: Path, model: Model, **options: Any) -> Collection:  # noqa: ANN401  # of `build`
    """Build a collection with a label model, names and a hierarchy."""
    labelling: dict[str, Any] = {"label_model": "leml", "label_names": NAMES, "hierarchy": EDGES}
    collection: Collection = build(Collection, model, path=path, **labelling | options)
    return collection


def codes(result: LabelResult) -> list[str]:
    return [warning.code for warning in result.warnings]


def test_a_label_model_is_stale_after_a_write_and_not_after_a_retraining(tmp_path: Path) -> None:
    path = tmp_path / "points"
    with trained(path, MODEL) as collection:
        collection.delete([7])  # no point has this id
        before = collection.predict_labels(DOCUMENTS)
        assert codes(before) == []
        upsert(collection, {1_000: POINTS[50]})
        after = collection.predict_labels(DOCUMENTS)
        assert same_bytes(before, after)
        assert codes(after) == ["LABEL_MODEL_STALE"]
        assert codes(collection.predict_labels(DOCUMENTS, **VOTES | {"top_k": 1})) == []
        collection.delete([1_000])
        for vacuum in (False, True):  # after a vacuum there are as many rows as were trained on
            assert collection.compact(vacuum=vacuum)
            after = collection.predict_labels(DOCUMENTS)
            assert same_bytes(before, after)
            assert codes(after) == ["LABEL_MODEL_STALE"]
    assert codes(Index.open(path).predict_labels(DOCUMENTS)) == ["LABEL_MODEL_STALE"]
    with Collection.open(path) as collection:
        assert collection.retrain()
        assert codes(collection.predict_labels(DOCUMENTS)) == []
        upsert(collection, {1_000: POINTS[50]})
        assert codes(collection.predict_labels(DOCUMENTS)) == ["LABEL_MODEL_STALE"]


@pytest.mark.parametrize("options", [{}, {"rank": 2, "iterations": 3}])
def test_a_retraining_trains_the_label_model_that_a_build_trains(
    options: dict[str, Any], tmp_path: Path
) -> None:
    with trained(tmp_path / "points", MODEL, **options) as collection:
        upsert(collection, LATER)
        collection.delete([0, 10])
        assert collection.retrain()
        rows = {k: v for k, v in MODEL.items() if k not in LATER} | LATER
        model = {name: point for name, point in rows.items() if name not in {0, 10}}
        with trained(tmp_path / "fresh", model, **options) as fresh:
            assert collection.engine.manifest.labels == fresh.engine.manifest.labels
            for mode in ("embedding", "neighbour_vote"):
                result, truth = (
                    index.predict_labels(DOCUMENTS, mode=mode, top_k=4)
                    for index in (collection, fresh)
                )
                assert same_bytes(result, truth)
                assert result.names == truth.names
            check_topics(collection, model)


def test_a_given_label_model_is_never_stale(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    factors = (rng.normal(size=(LABELS, 3)), rng.normal(size=(DIMS, 3)))
    with trained(tmp_path / "points", MODEL, label_model=factors) as collection:
        before = collection.predict_labels(DOCUMENTS)
        upsert(collection, LATER)
        assert same_bytes(collection.predict_labels(DOCUMENTS), before)
        assert collection.retrain()
        after = collection.predict_labels(DOCUMENTS)
        assert same_bytes(after, before)
        assert codes(after) == []


def test_a_retraining_without_labels_is_refused(tmp_path: Path) -> None:
    with trained(tmp_path / "points", MODEL) as collection:
        collection.upsert(list(MODEL), labels=np.zeros((len(MODEL), LABELS)))
        with pytest.raises(UnfitIndexError, match="no point has a label"):
            collection.retrain()
        result = collection.predict_labels(DOCUMENTS, **VOTES)
        assert (result.labels == -1).all()
        assert collection.count() == len(MODEL)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"labels": np.ones((2, LABELS))}, "labels must have one row per id, 1, got 2"),
        ({"labels": []}, "labels must have one row per id, 1, got 0"),
        ({"labels": np.ones((1, 7))}, "labels must have 6 columns, one per label, got 7"),
        ({"labels": np.full((1, LABELS), np.nan)}, "labels must be finite"),
        ({"labels": [["art"]]}, "labels must be a matrix of numbers"),
        ({"categories": [1.5]}, "categories must be whole numbers"),
        ({"categories": [-2]}, "categories must be at least -1"),
        ({"subtopics": [2**31]}, "subtopics must be whole numbers in range"),
        ({"subtopics": [1, 2]}, "subtopics must have one entry per row, 1"),
    ],
)
def test_wrong_annotations_are_refused(
    arguments: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with build(Collection, MODEL, path=tmp_path / "points") as collection:
        with pytest.raises(InvalidArgumentError, match=message) as fault:
            collection.upsert([10], **arguments)
        assert fault.value.field == next(iter(arguments))
        assert collection.sequence == 0
        check_topics(collection, MODEL)


@pytest.mark.parametrize("name", ["labels", "categories", "subtopics"])
def test_annotations_must_be_of_a_kind_that_the_index_has(name: str, tmp_path: Path) -> None:
    points = list(MODEL.values())
    columns = columns_of(points)
    values = columns.pop(name)
    with Collection.build(ids=list(MODEL), path=tmp_path / "points", **columns) as collection:
        with pytest.raises(InvalidArgumentError, match="must not be given: the index was built"):
            collection.upsert([10], **{name: values[:1]})
        del columns["attributes"]
        collection.upsert([10], **{key: columns[key][:1] for key in columns})
        assert collection.sequence == 1


def test_no_records_need_no_labels(tmp_path: Path) -> None:
    with build(Collection, MODEL, path=tmp_path / "points") as collection:
        no_labels: tuple[Any, ...] = (None, [], np.empty((0, LABELS)))
        for labels in no_labels:
            assert collection.upsert_records([], labels=labels) == WriteResult(1, 0, 0)
        with pytest.raises(InvalidArgumentError, match="one row per record, 0, got 1"):
            collection.upsert_records([], labels=[[0] * LABELS])


def test_labels_of_one_point_may_be_one_row(tmp_path: Path) -> None:
    row = [0, 0, 1, 0, 0, 1]
    index = Index.build(np.eye(1, 4), labels=row)
    assert index.engine.label_sets is not None
    with build(Collection, MODEL, path=tmp_path / "points") as collection:
        collection.upsert([10], labels=row)
        assert collection.engine.label_sets is not None
        sets = [
            index.engine.label_sets[np.array([0])],
            collection.engine.label_sets[collection.engine.find([10])],
        ]
        assert [s.indices.tolist() for s in sets] == [[2, 5], [2, 5]]


def test_sparse_label_sets_are_those_of_dense_ones(tmp_path: Path) -> None:
    points = list(LATER.values())
    matrix = label_matrix(points)
    results = []
    for number, labels in enumerate([matrix, sparse.csr_array(matrix * 0.5), matrix.tolist()]):
        with build(Collection, MODEL, path=tmp_path / str(number)) as collection:
            collection.upsert(list(LATER), columns_of(points)["vectors"], labels=labels)
            results.append(collection.predict_labels(DOCUMENTS, **VOTES))
    assert all(same_bytes(result, results[0]) for result in results)


def test_a_write_of_the_same_name_must_have_the_same_annotations(tmp_path: Path) -> None:
    with build(Collection, MODEL, path=tmp_path / "points") as collection:
        arguments: dict[str, Any] = {
            "labels": [[1, 0, 0, 0, 0, 1]],
            "categories": [1],
            "subtopics": [0],
        }
        other_values = {"labels": [[0, 1, 0, 0, 0, 1]], "categories": [2], "subtopics": [1]}
        first = collection.upsert([10], write_id="a", **arguments)
        assert collection.upsert([10], write_id="a", **arguments) == first
        for name, values in other_values.items():
            with pytest.raises(ConditionFailedError, match="other contents"):
                collection.upsert([10], write_id="a", **arguments | {name: values})
        with pytest.raises(ConditionFailedError, match="other contents"):
            collection.upsert([10], write_id="a", labels=arguments["labels"])


def test_an_older_index_with_labels_can_be_written_to(tmp_path: Path) -> None:
    for folder in ("format-6", "format-7", "families"):
        path = shutil.copytree(GOLDEN / folder / "labels", tmp_path / folder)
        with Collection.open(path) as collection:
            documents = np.eye(3, collection.dims, dtype=np.float32)
            before = collection.predict_labels(documents)
            labels = np.zeros((1, 6))
            labels[0, 2] = 1
            collection.upsert([70_000], documents[:1], labels=labels)
            assert codes(collection.predict_labels(documents)) == ["LABEL_MODEL_STALE"]
            assert same_bytes(collection.predict_labels(documents), before)
            votes = collection.predict_labels(documents[:1], mode="neighbour_vote", neighbours=1)
            assert votes.labels[0, 0] == 2
            assert collection.retrain()
            assert codes(collection.predict_labels(documents)) == []
            assert collection.info.labels is not None
            assert collection.info.labels.rank == 4
        assert check_folder(path)[0].findings == ()


def test_the_size_of_labels_is_known_before_they_are_read(tmp_path: Path) -> None:
    """A request may name one point with many labels many times."""
    sets = sparse.csr_array(np.ones((3, 20_000), np.int8))
    topics: Any = {"categories": [-1, 0, 1], "subtopics": [-1, 0, 1]}
    parts = Parts(attributes=False, payload=False, labels=True)
    rows = np.arange(4).repeat(1_000)
    with Collection.build(np.eye(3), labels=sets, **topics, path=tmp_path / "a") as collection:
        collection.upsert([3], np.ones((1, 3)), labels=sets[:1] * (np.arange(20_000) < 7))
        tracemalloc.start()
        try:
            sizes = collection._engine.bytes_of_rows(rows, parts)
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    # Labels and the end of a label set take 5 bytes each, topics 10, and ids the same for all.
    assert (sizes - sizes[-1]).tolist() == [5 * (20_000 - 7)] * 3_000 + [0] * 1_000
    assert sizes[-1] >= 5 * 8 + 2 * 10
    assert peak_bytes < 2**20


def test_labels_that_get_returns_are_written(tmp_path: Path) -> None:
    labels = np.eye(4, 5)
    with Collection.build(np.eye(4), labels=labels, path=tmp_path / "points") as collection:
        records = collection.get([2, 0], with_labels=True)
        collection.upsert([1, 7], np.eye(4)[:2], labels=records.labels, write_id="a")
        assert collection.upsert(
            [1, 7], np.eye(4)[:2], labels=records.labels, write_id="a"
        ).sequence == (collection.sequence)
        assert [r.labels for r in collection.get([1, 7], with_labels=True)] == [(2,), (0,)]
        copied: Any = records.labels
        again = Index.build(np.eye(2), labels=copied).get([0, 1], with_labels=True)
        assert [record.labels for record in again] == [(2,), (0,)]
        advice = "got 10: leave out the columns of other labels, or build the index anew"
        with pytest.raises(InvalidArgumentError, match=f"5 columns, one per label, {advice}"):
            collection.upsert([0], np.eye(1, 4), labels=np.ones((1, 10)))
        with pytest.raises(InvalidArgumentError, match="got 2: add columns of zeros"):
            collection.upsert([0], np.eye(1, 4), labels=[[1, 1]])
        assert collection.upsert_records([], labels=[], categories=[]).rows == 0


def test_categories_that_are_none_are_named(tmp_path: Path) -> None:
    lists: list[Any] = [[1, None], np.array([1, None], object)]
    for values in lists:
        with pytest.raises(InvalidArgumentError, match="-1 for none, got None in row 1"):
            Index.build(np.eye(2), categories=values, path=tmp_path / "points")
