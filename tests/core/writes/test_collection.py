"""A collection has the points of a dictionary that takes the same writes."""

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
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
    precondition,
    rule,
    run_state_machine_as_test,
)

from divgrpc import Collection, Index
from divgrpc.errors import ConditionFailedError, InvalidArgumentError, UnfitIndexError
from divgrpc.types import HashFamily, Metric, Points, Progress, Search, WriteMode
from divgrpc.types.filters import Condition, Exists, Field, HasId
from support.data.written_points import (
    DIMS,
    Id,
    Model,
    Point,
    a_collection,
    as_kind,
    check_exact,
    check_points,
    columns_of,
    drawn_points,
    kind_of,
    passing,
    upsert,
)

QUERIES = np.random.default_rng(8).normal(size=(3, DIMS)).astype(np.float32)
# Few points are drawn, so that many of those written are equal.
POINTS = drawn_points(60, 2)
# Points of a collection with `vectors_optional`: half of them have no vector.
OPTIONAL_POINTS = [
    replace(point, vector=point.vector if place % 4 < 2 else None)
    for place, point in enumerate(POINTS)
]
Test = tuple[Condition, Callable[[Point], bool]]
TESTS: list[Test] = [
    (Field("colour") == "red", lambda point: point.colour == "red"),
    (Field("size") < 4, lambda point: point.size is not None and point.size < 4),
    (~Exists("size"), lambda point: point.size is None),
    (Field("tags").is_in(["y", "z"]), lambda point: bool({"y", "z"} & {*point.tags})),
    (
        (Field("colour") == "blue") | (Field("tags") == "x"),
        lambda point: point.colour == "blue" or "x" in point.tags,
    ),
]
NUMBERS = st.integers(0, 30)
some_numbers = st.lists(NUMBERS, min_size=1, max_size=8, unique=True)
some_points = st.integers(0, len(POINTS) - 1)
some_tests = st.sampled_from(TESTS)


def read_all(index: Index) -> list[Any]:
    """Return all points with their vectors and labels, and answers of two searches, as bytes."""
    values: list[Any] = []
    for page in index.scroll(with_vectors=True, with_labels=True):
        for record in page:
            numbers = record.vector if isinstance(record.vector, tuple) else (record.vector,)
            vector = [None if part is None else part.tobytes() for part in numbers]
            annotations = (record.labels, record.category, record.subtopic)
            values.append((record.id, vector, record.attributes, record.payload, annotations))
    queries = as_kind(QUERIES, kind_of(index))
    searches: list[tuple[Search, Condition | None]] = [("tables", None), ("scan", TESTS[0][0])]
    for search, condition in searches:
        result = index.query(queries, k=5, search=search, filter=condition, diversity=0.4)
        scores = result.scores.tobytes() + result.selection_scores.tobytes()
        values.append((search, result.ids.tolist(), scores))
    return values


class _Writes(RuleBasedStateMachine):
    """Writes to a collection and to a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.collection: Collection | None = None
        self.sequence = 0
        # Number of attributes that the collection got later.
        self.added = 0

    @initialize(
        family=st.sampled_from(["cells", "lsh_div"]),
        metric=st.sampled_from(["cosine", "euclidean", "inner_product"]),
        kind=st.sampled_from(["dense", "sparse"]),
        is_optional=st.booleans(),
        has_labels=st.booleans(),
        has_texts=st.booleans(),
        count=st.integers(1, 40),
    )
    def build(  # what a collection is drawn from
        self,
        *,
        family: HashFamily,
        metric: Metric,
        kind: Points,
        is_optional: bool,
        has_labels: bool,
        has_texts: bool,
        count: int,
    ) -> None:
        self.metric, self.has_texts, self.is_optional = metric, has_texts, is_optional
        self.no_labels: tuple[()] | None = () if has_labels else None
        points = OPTIONAL_POINTS if is_optional else POINTS
        self.points = [p if has_labels else replace(p, labels=None) for p in points]
        self.model: Model = {self.id_of(i): self.points[i] for i in range(count)}
        self.path = self.folder / "points"
        options: Any = {"vectors_optional": True} if is_optional else {}
        self.collection = a_collection(self.path, self.model, family, metric, kind, **options)

    def id_of(self, number: int) -> Id:
        return f"p{number}" if self.has_texts else 10 * number

    @property
    def open(self) -> Collection:
        assert self.collection is not None
        return self.collection

    def put(self, points: Model) -> None:
        """Replace points of the model; they lack values of the attributes that came later."""
        self.model |= {n: replace(p, added=(None,) * self.added) for n, p in points.items()}

    def written(self, sequence: int) -> None:
        self.sequence += 1
        assert sequence == self.sequence

    @rule(numbers=some_numbers, first=some_points, at_once=st.booleans())
    def upsert(self, numbers: list[int], first: int, *, at_once: bool) -> None:
        points = {
            self.id_of(number): self.points[(first + place) % len(self.points)]
            for place, number in enumerate(numbers)
        }
        for name, point in points.items() if not at_once else ():
            self.written(upsert(self.open, {name: point}))
        if at_once:
            self.written(upsert(self.open, points))
        self.put(points)

    @rule(number=NUMBERS, point=some_points, mode=st.sampled_from(["insert_only", "update_only"]))
    def upsert_on_condition(self, number: int, point: int, mode: WriteMode) -> None:
        name = self.id_of(number)
        if (name in self.model) == (mode == "update_only"):
            self.written(upsert(self.open, {name: self.points[point]}, mode=mode))
            self.put({name: self.points[point]})
        else:
            with pytest.raises(ConditionFailedError, match=mode):
                upsert(self.open, {name: self.points[point]}, mode=mode)

    @rule(numbers=some_numbers, payload=st.binary(max_size=3), colour=st.booleans())
    def upsert_without_vectors(self, numbers: list[int], payload: bytes, *, colour: bool) -> None:
        names = [self.id_of(number) for number in numbers]
        attributes = {"colour": ["red"] * len(names)} if colour else None
        arguments: Any = {"payloads": [payload] * len(names), "attributes": attributes}
        is_known = {*names} <= {*self.model}
        if not is_known and not self.is_optional:
            with pytest.raises(InvalidArgumentError, match="must be given for new points"):
                self.open.upsert(names, **arguments)
            return
        self.written(self.open.upsert(names, **arguments).sequence)
        new = Point(None, labels=self.no_labels)
        self.put({name: new for name in names if name not in self.model})
        for name in names:
            changes: Any = {"payload": payload} | ({"colour": "red"} if colour else {})
            self.model[name] = replace(self.model[name], **changes)

    @rule(numbers=some_numbers)
    def upsert_vectors_alone(self, numbers: list[int]) -> None:
        """Points then have no attributes and no payloads."""
        points = {
            self.id_of(number): Point(self.points[number].vector, labels=self.no_labels)
            for number in numbers
        }
        vectors = columns_of([*points.values()], kind_of(self.open))["vectors"]
        self.written(self.open.upsert(list(points), vectors).sequence)
        self.put(points)

    @precondition(lambda self: self.is_optional and self.model)
    @rule(share=st.floats(0, 1), first=some_points)
    def give_and_take_vectors(self, share: float, first: int) -> None:
        """Points without a vector get one, and the others lose theirs."""
        names = [*self.model][: max(1, int(share * len(self.model)))]
        points = {}
        for place, name in enumerate(names):
            point = self.model[name]
            vector = POINTS[(first + place) % len(POINTS)].vector if point.vector is None else None
            points[name] = replace(point, vector=vector)
        self.written(upsert(self.open, points))
        self.put(points)

    @rule(numbers=st.lists(NUMBERS, max_size=12))
    def delete(self, numbers: list[int]) -> None:
        names = [self.id_of(number) for number in numbers]
        present = {*names} & {*self.model}
        result = self.open.delete(names)
        assert result.rows == len(present)
        self.sequence += bool(present)
        assert result.sequence == self.sequence
        for name in present:
            del self.model[name]

    @rule(test=some_tests, numbers=st.none() | some_numbers)
    def delete_by_filter(self, test: Test, numbers: list[int] | None) -> None:
        names = None if numbers is None else [self.id_of(number) for number in numbers]
        removed = passing(self.model, test[1])
        if names is not None:
            removed = {name: point for name, point in removed.items() if name in names}
        result = self.open.delete(names, filter=test[0])
        assert result.rows == len(removed)
        self.sequence += bool(removed)
        for name in removed:
            del self.model[name]

    @rule()
    def compact(self) -> None:
        before = read_all(self.open)
        self.open.compact()
        assert not self.open.compact()
        assert read_all(self.open) == before

    @rule()
    def vacuum(self) -> None:
        before = read_all(self.open)
        self.open.compact(vacuum=True)
        assert read_all(self.open) == before

    @property
    def has_vectors(self) -> bool:
        return any(point.vector is not None for point in self.model.values())

    @precondition(lambda self: self.model and not self.has_vectors)
    @rule()
    def add_attribute_without_vectors(self) -> None:
        with pytest.raises(UnfitIndexError, match="no point with a vector"):
            self.open.add_attributes({f"added{self.added}": [1]}, ids=[*self.model][:1])

    @precondition(lambda self: self.has_vectors)
    @rule(share=st.floats(0, 1), payload=st.binary(max_size=3), seed=st.integers(0, 9))
    def add_attribute(self, share: float, payload: bytes, seed: int) -> None:
        """Add values of some points, one of which another caller changes meanwhile."""
        names = sorted(self.model, key=str)
        np.random.default_rng(seed).shuffle(names)
        names = names[: max(1, int(share * len(names)))]
        values: dict[Id, int | None] = {name: place for place, name in enumerate(names)}
        number, changed = self.added, names[seed % len(names)]

        def change(progress: Progress) -> None:
            if progress.stage == "copying" and self.added == number:
                self.added += 1
                self.written(self.open.upsert([changed], payloads=[payload]).sequence)

        self.open.add_attributes(
            {f"added{number}": list(values.values())}, ids=names, progress=change
        )
        # Without writes, nothing is copied.
        if self.added > number:
            self.model[changed] = replace(self.model[changed], payload=payload)
        self.added = number + 1
        for name, point in self.model.items():
            self.model[name] = replace(point, added=(*point.added, values.get(name)))

    @precondition(lambda self: self.added)
    @rule(numbers=some_numbers, value=st.integers(0, 9))
    def upsert_added(self, numbers: list[int], value: int) -> None:
        """Values of attributes that came later are written as others are."""
        names = [n for n in map(self.id_of, numbers) if n in self.model]
        if names:
            attributes = {f"added{self.added - 1}": [value] * len(names)}
            self.written(self.open.upsert(names, attributes=attributes).sequence)
        for name in names:
            point = self.model[name]
            self.model[name] = replace(point, added=(*point.added[:-1], value))

    @rule()
    def reopen(self) -> None:
        self.open.close()
        self.collection = Collection.open(self.path, durability="process")

    @rule()
    def query(self) -> None:
        check_exact(self.open, self.model, self.metric, QUERIES)

    @rule(test=some_tests)
    def query_with_filter(self, test: Test) -> None:
        check_exact(self.open, self.model, self.metric, QUERIES, test)

    @precondition(lambda self: self.model)
    @rule(number=st.integers(0, 100))
    def query_with_ids(self, number: int) -> None:
        names = sorted(self.model, key=str)
        name = names[number % len(names)]
        test: Test = HasId((name,)), lambda point: point is self.model[name]
        assert self.open.count(test[0]) == 1
        queries = as_kind(QUERIES, kind_of(self.open))
        result = self.open.query(queries, filter=test[0], k=2)
        is_searched = self.model[name].vector is not None
        assert result.counts.tolist() == [int(is_searched)] * len(QUERIES)
        assert (name in result.ids) == is_searched
        rest = self.open.query(queries, exclude_ids=[name], k=len(names) + 1, search="exact")
        assert name not in rest.ids.ravel().tolist()

    @rule()
    def open_beside(self) -> None:
        beside = Index.open(self.path)
        check_points(beside, self.model)
        check_exact(beside, self.model, self.metric, QUERIES, TESTS[0])
        assert beside.query(as_kind(QUERIES, kind_of(beside)), k=1).sequence == self.sequence

    @precondition(lambda self: self.collection)
    @invariant()
    def points_are_those_of_the_model(self) -> None:
        assert self.open.sequence == self.sequence
        check_points(self.open, self.model)

    def teardown(self) -> None:
        if self.collection is not None:
            self.collection.close()
        shutil.rmtree(self.folder)


@pytest.mark.usefixtures("no_syncs")
def test_a_collection_has_the_points_of_a_dictionary() -> None:
    run_state_machine_as_test(_Writes, settings=settings(max_examples=32, stateful_step_count=20))
