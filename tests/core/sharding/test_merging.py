"""Replies of shards are merged as slow twins merge them."""

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divgrpc.kernels import replies
from divgrpc.kernels.records import Plan
from divgrpc.parameters import QueryParameters
from divgrpc.search.plan import QueryPlan
from divgrpc.sharding import layouts
from divgrpc.sharding.gathering import Buffers
from divgrpc.sharding.merging import Candidates, Form, Merger, Question, Replies, Sources
from divgrpc.sharding.placement import priorities
from divgrpc.sharding.rounds import ShardFaultError
from support.data.mixed_indexes import an_index

_BY_PROBES = (replies.BY_PROBE, replies.BY_EXTRA_PROBE)
_RULES = (replies.BY_DISTANCE, replies.BY_ESTIMATE, replies.BY_SCORE, *_BY_PROBES)
_STOP = 3
_DIMS = 3
_DENSE = Form(_DIMS, False, False)


class Point(NamedTuple):
    """A point of a reply."""

    id: int
    code: float
    distance: float
    tag: int
    shard: int
    has_vector: bool


@st.composite
def points_of_shards(draw: st.DrawFn) -> list[list[Point]]:
    """Draw the points of some shards, with many ties."""
    sizes = draw(st.lists(st.integers(0, 12), min_size=1, max_size=5))
    ids = draw(
        st.lists(st.integers(0, 2**63 - 1), min_size=sum(sizes), max_size=sum(sizes), unique=True)
    )
    shards = []
    for shard, size in enumerate(sizes):
        n_vectors, points = draw(st.integers(0, size)), []
        for place in range(size):
            code, distance = draw(st.integers(-2, 2)), draw(st.integers(0, 3)) / 4
            tag = draw(st.integers(0, 4))
            points.append(Point(ids.pop(), code, distance, tag, shard, place < n_vectors))
        shards.append(sorted(points, key=lambda point: point.tag))
    return shards


def vector_of(point: Point) -> list[float]:
    return [point.id % 1000, point.distance, point.shard]


def message_of(points: list[Point], rule: int, total: int, form: Form) -> bytes:
    """Return the reply of a shard that has these points, of `total`."""
    by_code = rule in (replies.BY_ESTIMATE, replies.BY_SCORE)
    # A shard whose points are all of the first probes need not say so.
    is_extra = any(point.tag >= _STOP for point in points)
    by_probe = rule == replies.BY_PROBE or (rule == replies.BY_EXTRA_PROBE and is_extra)
    nearest = [place for place, point in enumerate(points) if point.has_vector]
    vectors = np.array([vector_of(points[place]) for place in nearest], np.float32)
    columns: dict[str, Any] = {
        "numbers": np.array([total, len(points), 5]),
        "ids": np.array([point.id for point in points], np.int64),
        "codes": np.array([point.code for point in points if by_code], np.float32),
        "distances": np.array([point.distance for point in points], np.float32),
        "tags": np.array([point.tag for point in points if by_probe], np.int32),
        "nearest": np.array(nearest, np.int32),
    }
    if form.has_inverse_lengths:
        columns["inverse_lengths"] = np.array(nearest, np.float32)
    if form.is_sparse:
        # A row stores its first columns only.
        widths = [points[place].id % (_DIMS + 1) for place in nearest]
        ranges = [np.arange(width, dtype=np.int32) for width in widths]
        values = [row[:width] for row, width in zip(vectors, widths, strict=True)]
        columns["indptr"] = np.cumsum([0, *widths])
        columns["indices"] = np.concatenate([np.empty(0, np.int32), *ranges])
        columns["values"] = np.concatenate([np.empty(0, np.float32), *values])
        columns["squares"] = np.array([point.id % 7 for point in points if point.has_vector], float)
    else:
        columns["vectors"] = vectors.reshape(-1, _DIMS)
    return layouts.FIND_REPLY.pack(columns)


def plan_of(**fields: Any) -> QueryPlan:  # noqa: ANN401  # fields of any type
    engine = an_index("lsh_div", "cosine", "dense").engine
    plan = engine.plan(QueryParameters(), dense=False)
    kernel = plan.kernel._replace(**fields)
    return QueryPlan(plan.parameters, kernel, tuple(kernel), plan.candidates_max, plan.one_by_one)


def total_of(points: list[Point], rule: int, more: int) -> int:
    """Return how many points a shard has that sends `points` and may have `more`.

    A shard whose points have tags sends all of them.
    """
    is_limited = rule != replies.BY_PROBE
    if rule == replies.BY_EXTRA_PROBE:
        is_limited = len(points) > 0 and all(point.tag < _STOP for point in points)
    return len(points) + (more if is_limited else 0)


def joined(
    shards: list[list[Point]], rule: int, more: int = 0, form: Form = _DENSE
) -> tuple[Merger, Replies]:
    """Return a merger and the replies of shards that have `more` points than they send."""
    merger = Merger(form)
    messages: dict[int, bytes | memoryview] = {}
    amounts = np.zeros((len(shards), 2), np.int64)
    for shard, points in enumerate(shards):
        messages[shard] = message_of(points, rule, total_of(points, rule, more), form)
        vectors = sum(point.has_vector for point in points)
        amounts[shard] = len(points), vectors if vectors < len(points) else len(points) + 1
    return merger, merger.join(Sources.of(layouts.FIND_REPLY, messages), rule, amounts)


def hashed_by(points: list[Point], plan: Plan, rule: int, stop: int) -> list[Point]:
    """Return the points within the hash limit of a plan."""
    limit = plan.hash_limit

    def priority(point: Point) -> int:
        return int(priorities(int(plan.seed), np.array([point.id]))[0])

    if rule == replies.BY_DISTANCE:
        return points
    if rule == replies.BY_ESTIMATE:
        return sorted(points, key=lambda point: (point.code, point.id))[:limit]
    if rule == replies.BY_SCORE and plan.uniform:
        return sorted(points, key=lambda point: (point.code, priority(point)))[:limit]
    if rule == replies.BY_SCORE:
        return sorted(points, key=lambda point: (point.code, point.distance, point.id))[:limit]
    points = [point for point in points if point.tag < stop]
    if not 0 < limit < len(points):
        return points
    if plan.uniform:
        return sorted(points, key=priority)[:limit]
    return sorted(points, key=lambda point: (point.tag == stop - 1, priority(point)))[:limit]


@given(
    shards=points_of_shards(),
    rule=st.sampled_from(_RULES),
    numbers=st.tuples(
        st.integers(1, 30), st.integers(1, 30), st.integers(0, 30), st.integers(0, 2)
    ),
    uniform=st.booleans(),
    seed=st.sampled_from([0, 7, 2**64 - 1]),
)
def test_candidates_are_those_of_a_slow_twin(
    shards: list[list[Point]],
    rule: int,
    numbers: tuple[int, int, int, int],
    uniform: bool,
    seed: int,
) -> None:
    limit, most, vectors, more = numbers
    uniform = uniform or rule == replies.BY_EXTRA_PROBE
    plan = plan_of(hash_limit=limit, uniform=uniform, seed=np.uint64(seed))
    points = [point for shard in shards for point in shard]
    stop = _STOP
    if not uniform:
        # A search stops before a bucket that begins beyond the limit.
        while sum(point.tag < stop - 1 for point in points) >= limit:
            stop -= 1
    merger, received = joined(shards, rule, more)
    kept_at_most = most if rule == replies.BY_DISTANCE else limit
    question = Question(plan, rule, kept_at_most, most, vectors)
    candidates, n_absent, n_short = merger.select(received, question, stop)
    hashed = hashed_by(points, plan.kernel, rule, stop)
    expected = sorted(hashed, key=lambda point: (point.distance, point.id))[:most]
    first = min(vectors, len(expected))
    assert candidates.ids[:first].tolist() == [point.id for point in expected[:first]]
    assert sorted(candidates.ids.tolist()) == sorted(point.id for point in expected)
    assert sorted(candidates.distances.tolist()) == [point.distance for point in expected]
    assert (candidates.n_hashed, candidates.n_scored) == (len(hashed), len(points))
    assert n_absent == sum(not point.has_vector for point in expected[:first])
    owners = {point.id: point.shard for point in points}
    assert candidates.owners.tolist() == [owners[key] for key in candidates.ids.tolist()]
    members = expected if rule == replies.BY_DISTANCE else hashed
    counts = [sum(point.shard == shard for point in members) for shard in range(len(shards))]
    assert received.sizes[:, replies.KEPT].tolist() == counts
    short = [
        number
        for number, points in enumerate(shards)
        if counts[number] == len(points) < min(kept_at_most, total_of(points, rule, more))
    ]
    assert (received.short, n_short) == (short, len(short))


@pytest.mark.parametrize("rule", [replies.BY_DISTANCE, replies.BY_PROBE])
def test_only_some_searches_need_no_tags(rule: int) -> None:
    message = message_of([Point(5, 1, 0.5, 0, 0, False)], replies.BY_EXTRA_PROBE, 1, _DENSE)
    sources = Sources.of(layouts.FIND_REPLY, {3: message})
    assert Merger(_DENSE).join(sources, replies.BY_EXTRA_PROBE, (1, 0)).points == 1
    with_tags = message_of([Point(5, 1, 0.5, 4, 0, False)], replies.BY_EXTRA_PROBE, 1, _DENSE)
    wrong = message if rule == replies.BY_PROBE else with_tags
    with pytest.raises(ShardFaultError, match="lacks a number"):
        Merger(_DENSE).join(Sources.of(layouts.FIND_REPLY, {3: wrong}), rule, (1, 0))


@given(
    shards=points_of_shards(),
    numbers=st.tuples(st.integers(0, 6), st.integers(0, 30), st.integers(0, 30)),
    absent=st.integers(0, 20),
)
def test_the_last_probe_is_that_of_a_slow_twin(
    shards: list[list[Point]], numbers: tuple[int, int, int], absent: int
) -> None:
    """Shards have not sent some points of the first buckets."""
    n_probes, min_points, enough = numbers
    merger, received = joined(shards, replies.BY_PROBE)
    received.sizes[0, replies.TOTAL] += 0 if enough else absent
    plan = plan_of(n_probes=n_probes, min_points=min_points)
    tags = [point.tag for shard in shards for point in shard]
    tags += [-1] * (0 if enough else absent)
    expected = next(
        (
            stop
            for stop in range(1, 8)
            if (stop >= n_probes and sum(tag < stop for tag in tags) >= min_points)
            or 0 < enough <= sum(tag < stop for tag in tags)
        ),
        2**31 - 1,
    )
    assert merger.last_probe(plan, received, enough) == expected


_FORMS = [Form(_DIMS, is_sparse, has) for is_sparse in (False, True) for has in (False, True)]


def gathered(form: Form, candidates: Candidates) -> dict[str, Any]:
    buffers = Buffers(form, 100, 300)
    buffers.put(candidates, len(candidates.ids))
    return buffers.arrays


@pytest.mark.parametrize("form", _FORMS)
@given(shards=points_of_shards())
def test_vectors_are_gathered_in_the_order_of_the_candidates(
    form: Form, shards: list[list[Point]]
) -> None:
    shards = [[point._replace(has_vector=True) for point in shard] for shard in shards]
    merger, received = joined(shards, replies.BY_DISTANCE, form=form)
    question = Question(plan_of(), replies.BY_DISTANCE, 100, 100, 100)
    candidates, n_absent, _ = merger.select(received, question)
    assert not n_absent
    arrays = gathered(form, candidates)
    points = {point.id: point for shard in shards for point in shard}
    places = {point.id: place for shard in shards for place, point in enumerate(shard)}
    for row, key in enumerate(candidates.ids.tolist()):
        vector = np.array(vector_of(points[key]), np.float32)
        assert arrays["ids"][row] == key
        if form.has_inverse_lengths:
            assert arrays["inverse_lengths"][row] == places[key]
        if not form.is_sparse:
            assert arrays["vectors"][row].tolist() == vector.tolist()
            continue
        start, stop = arrays["indptr"][row : row + 2]
        assert arrays["indices"][start:stop].tolist() == list(range(key % (_DIMS + 1)))
        assert arrays["values"][start:stop].tolist() == vector[: key % (_DIMS + 1)].tolist()
        assert arrays["squares"][row] == key % 7


def test_more_points_than_there_was_room_for() -> None:
    shards = [[Point(i, 0, i / 8, 0, 0, False) for i in range(5_000)]]
    merger, received = joined(shards, replies.BY_DISTANCE)
    question = Question(plan_of(), replies.BY_DISTANCE, 4_500, 4_500, 4_500)
    candidates, n_absent, _ = merger.select(received, question)
    assert candidates.ids.tolist() == list(range(4_500))
    assert n_absent == 4_500


@pytest.mark.parametrize("offset", [1, 4])
def test_a_message_at_an_odd_address_is_copied(offset: int) -> None:
    points = [Point(7, 0, 0.5, 0, 0, True)]
    message = message_of(points, replies.BY_DISTANCE, 1, Form(_DIMS, False, False))
    view = memoryview(bytes(offset) + message)[offset:]
    sources = Sources.of(layouts.FIND_REPLY, {4: view})
    assert (sources.registers[:, :, 0] % 8 == 0).all()
    received = Merger(Form(_DIMS, False, False)).join(sources, replies.BY_DISTANCE, (1, 1))
    assert received.points == 1


_LIES: list[tuple[str, dict[str, Any], str]] = [
    ("fewer numbers", {"numbers": np.array([2, 2])}, "impossible number"),
    ("a negative number", {"numbers": np.array([2, -1, 0])}, "impossible number"),
    ("a huge number", {"numbers": np.array([2, 2, 2**31])}, "impossible number"),
    ("another total", {"numbers": np.array([1, 2, 0])}, "another number of points"),
    ("fewer points", {"ids": np.array([5])}, "another number of points"),
    ("fewer vectors", {"nearest": np.zeros(1, np.int32)}, "another number of points"),
    ("fewer distances", {"distances": np.ones(1, np.float32)}, "lacks a number"),
    ("tags", {"tags": np.zeros(2, np.int32)}, "lacks a number"),
    ("no codes", {"codes": np.empty(0, np.float32)}, "lacks a number"),
    ("a negative id", {"ids": np.array([5, -6])}, "impossible id"),
    ("no distance", {"distances": np.array([1, np.nan], np.float32)}, "impossible id"),
    ("an infinite code", {"codes": np.array([1, np.inf], np.float32)}, "impossible id"),
    ("a broken code", {"codes": np.array([1, 0.5], np.float32)}, "impossible id"),
    ("a place beyond", {"nearest": np.array([0, 2], np.int32)}, "does not have"),
    ("a place before", {"nearest": np.array([0, -1], np.int32)}, "does not have"),
    ("a place twice", {"nearest": np.array([1, 1], np.int32)}, "does not have"),
    ("wide vectors", {"vectors": np.ones((2, _DIMS + 1), np.float32)}, "another form"),
    ("few vectors", {"vectors": np.ones((1, _DIMS), np.float32)}, "another form"),
    ("lengths", {"inverse_lengths": np.ones(2, np.float32)}, "another form"),
    ("sparse values", {"values": np.ones(2, np.float32)}, "another form"),
]


@pytest.mark.parametrize(("changes", "sentence"), [lie[1:] for lie in _LIES])
def test_a_lie_is_refused(changes: dict[str, Any], sentence: str) -> None:
    form = Form(_DIMS, False, False)
    points = [Point(5, 1, 0.5, 0, 0, True), Point(6, 1, 0.75, 0, 0, True)]
    message = message_of(points, replies.BY_SCORE, 2, form)
    columns = layouts.FIND_REPLY.unpack(message) | changes
    sources = Sources.of(layouts.FIND_REPLY, {3: layouts.FIND_REPLY.pack(columns)})
    with pytest.raises(ShardFaultError, match=f"shard 3 .*{sentence}"):
        Merger(form).join(sources, replies.BY_SCORE, (2, 2))


_SPARSE_LIES: list[dict[str, Any]] = [
    {"indptr": np.array([0, 2])},
    {"indptr": np.array([1, 1, 2])},
    {"indptr": np.array([0, 3, 2])},
    {"indptr": np.array([0, 2, 4])},
    {"indices": np.array([1], np.int32)},
    {"squares": np.ones(1)},
    {"vectors": np.ones((2, _DIMS), np.float32)},
]


def sparse_reply(**changes: np.ndarray[Any, Any]) -> Candidates:
    form = Form(_DIMS, True, False)
    columns = {
        "numbers": np.array([2, 2, 0]),
        "ids": np.array([5, 6]),
        "distances": np.ones(2, np.float32),
        "nearest": np.array([1, 0], np.int32),
        "indptr": np.array([0, 2, 3]),
        "indices": np.array([0, 2, 1], np.int32),
        "values": np.ones(3, np.float32),
        "squares": np.array([2.0, 1.0]),
    }
    message = layouts.FIND_REPLY.pack(columns | changes)
    sources, merger = Sources.of(layouts.FIND_REPLY, {3: message}), Merger(form)
    received = merger.join(sources, replies.BY_DISTANCE, (2, 2))
    return merger.select(received, Question(plan_of(), replies.BY_DISTANCE, 2, 2, 2)).candidates


@pytest.mark.parametrize("changes", _SPARSE_LIES)
def test_a_lie_about_sparse_rows_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ShardFaultError, match="another form"):
        sparse_reply(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"indices": np.array([0, 3, 1], np.int32)},
        {"indices": np.array([-1, 2, 1], np.int32)},
        {"indices": np.array([2, 0, 1], np.int32)},
        {"indices": np.array([2, 2, 1], np.int32)},
        {"values": np.array([1, np.inf, 1], np.float32)},
        {"squares": np.array([2.0, -1.0])},
        {"squares": np.array([np.nan, 1.0])},
    ],
)
def test_impossible_values_are_not_gathered(changes: dict[str, Any]) -> None:
    with pytest.raises(ShardFaultError, match=r"shard 3 .*impossible value"):
        gathered(Form(_DIMS, True, False), sparse_reply(**changes))


def test_a_vector_that_is_not_finite_is_not_gathered() -> None:
    form = Form(_DIMS, False, False)
    for value in (np.nan, np.inf, -np.inf):
        message = message_of([Point(5, 0, value, 0, 0, True)], replies.BY_DISTANCE, 1, form)
        columns = layouts.FIND_REPLY.unpack(message) | {"distances": np.ones(1, np.float32)}
        merger = Merger(form)
        sources = Sources.of(layouts.FIND_REPLY, {0: layouts.FIND_REPLY.pack(columns)})
        received = merger.join(sources, replies.BY_DISTANCE, (1, 1))
        question = Question(plan_of(), replies.BY_DISTANCE, 1, 1, 1)
        with pytest.raises(ShardFaultError, match="impossible value"):
            gathered(form, merger.select(received, question).candidates)
