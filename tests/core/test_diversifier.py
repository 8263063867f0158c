"""`diversify` equals a query on an index of its candidates, and a slow implementation of its rules.

An index that scores all of its points and gives all of them to the selector has the same candidates
as `diversify`.
"""

import math
from collections import Counter
from dataclasses import fields
from functools import cache
from itertools import pairwise
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from divgrpc import GroupBy, Quota, diversify
from divgrpc.errors import ConditionFailedError, InvalidArgumentError
from divgrpc.index import Index
from divgrpc.types import Diversification, FloatArray, Metric, Points, QueryResult, Selector
from reference.definitions import unit
from support.data.mixed_indexes import KINDS, METRICS, SELECTIONS, drawn, stored_as

ROWS, DIMS = 40, 12
DIALS: list[dict[str, Any]] = [
    *({"diversity": dial} for dial in (0.0, 1e-9, 0.15, 0.6, 1.0, "auto")),
    *({"lose_at_most": bound} for bound in (0.0, 0.3, 1.0)),
]
# Thresholds at which some candidates of `drawn` are near-copies, and at which all are.
THRESHOLDS: dict[Metric, tuple[float | None, ...]] = {
    "cosine": (None, 0.95, -1.0),
    "inner_product": (None, 0.95, -1.0),
    "euclidean": (None, 0.5, 1e30),
}


def points_for(metric: Metric, seed: int, rows: int = ROWS) -> FloatArray:
    points = drawn(rows, DIMS, seed, metric)
    if metric == "cosine":
        points[~points.any(axis=1)] = 1
    return points


@cache
def index_of(metric: Metric, kind: Points, seed: int) -> Index:
    vectors: Any = stored_as(points_for(metric, seed), kind)
    return Index.build(vectors, metric=metric, hash_family="lsh_div", n_tables=1, n_bits=1)


def query_all(index: Index, query: FloatArray, options: dict[str, Any]) -> QueryResult:
    """Query an index so that the selector gets all of its points."""
    threshold = options.get("duplicate_threshold")
    return index.query(
        query, search="exact", hash_limit=0, candidates_limit=0, list_collapsed=True,
        keep_duplicates=threshold is None, **options,
    )  # fmt: skip


def check_equal(result: Diversification, answer: QueryResult, *, scores: bool = True) -> None:
    """Compare every column bit for bit."""
    assert result.places.tobytes() == answer.ids[0].tobytes()
    assert not scores or result.scores.astype(np.float32).tobytes() == answer.scores[0].tobytes()
    assert result.selection_scores.tobytes() == answer.selection_scores[0].tobytes()
    assert result.duplicates == answer.stats.duplicates[0]
    for rank in range(len(result)):
        assert result.collapsed(rank).tolist() == answer.collapsed(0, rank).tolist()
    if answer.parameters.has_fixed_dial:
        assert (result.diversity, result.dial_reason) == (answer.parameters.diversity, None)
    else:
        dial, reason = answer.diversities[0], answer.dial_reasons[0]
        assert (result.diversity, result.dial_reason) == (dial, reason)
    if answer.parameters.selector == "qp_relax":
        assert np.float32(result.duality_gap) == answer.duality_gaps[0]


def goes_together(options: dict[str, Any]) -> bool:
    """Tell whether a query accepts the options."""
    chooses_dial = "lose_at_most" in options or options.get("diversity") == "auto"
    if options["selector"] == "nearest":
        return not chooses_dial
    with_variants = options["selector"] in ("greedy", "qp_relax")
    return not (options["variant"] == "printed" and with_variants and "lose_at_most" in options)


@st.composite
def options_of(draw: st.DrawFn, metric: Metric, rows: int) -> dict[str, Any]:
    selector, variant = draw(st.sampled_from(SELECTIONS))
    options = {"selector": selector, "variant": variant, **draw(st.sampled_from(DIALS))}
    options["k"] = draw(st.sampled_from([1, 2, 7, rows]))
    options["rounding"] = draw(st.sampled_from(["exchange", "top_k"]))
    threshold = draw(st.sampled_from(THRESHOLDS[metric]))
    return options if threshold is None else options | {"duplicate_threshold": threshold}


@settings(max_examples=300)
@given(
    data=st.data(),
    metric=st.sampled_from(METRICS),
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 3),
)
def test_diversify_with_a_query_equals_a_query_on_an_index(
    data: st.DataObject, metric: Metric, kind: Points, seed: int
) -> None:
    """Every selector, dial, threshold and metric gives the same bytes, dense or sparse."""
    options = data.draw(options_of(metric, ROWS).filter(goes_together))
    points, query = points_for(metric, seed), drawn(1, DIMS, seed + 9, "cosine")[0] + 1
    vectors: Any = stored_as(points, kind)
    answer = query_all(index_of(metric, kind, seed), query, options)
    check_equal(diversify(vectors, query=query, metric=metric, **options), answer)


@settings(max_examples=150)
@given(data=st.data(), kind=st.sampled_from(KINDS), metric=st.sampled_from(METRICS[::2]))
def test_scores_are_scaled_as_an_index_scales_inner_products(
    data: st.DataObject, kind: Points, metric: Metric
) -> None:
    options = data.draw(options_of("inner_product", ROWS).filter(goes_together))
    points, query = drawn(ROWS, DIMS, 5, "inner_product"), drawn(1, DIMS, 6, "cosine")[0] + 1
    vectors: Any = stored_as(points, kind)
    index = index_of("inner_product", kind, 5)
    nearest = index.query(query, k=ROWS, diversity=0, search="exact")
    scores = np.empty(ROWS, np.float32)
    scores[nearest.ids[0]] = nearest.scores[0]
    result = diversify(vectors, scores, metric=metric, **options)
    check_equal(result, query_all(index, query, options))


def slow_greedy(
    vectors: FloatArray, scores: npt.NDArray[np.float64], metric: Metric, k: int, diversity: float
) -> list[int]:
    """Pick greedily by the rules in the documentation, in float64."""
    rows = vectors.astype(np.float64)
    if metric == "euclidean":
        apart = np.square(rows[:, None] - rows[None]).sum(axis=2)
        pairs = len(rows) * (len(rows) - 1)
        worst = apart.sum() / pairs
    else:
        units = np.array([unit(row) if row.any() else row for row in rows])
        apart, worst = 1 - units @ units.T, 1.0
    costs = worst * (scores.max() - scores) / (scores.max() - scores.min())
    picks: list[int] = []
    for _ in range(k):
        weight = 2 * (1 - (1 - diversity)) / (k - 1) if picks else 0.0
        values = (1 - diversity) * costs - weight * apart[:, picks].sum(axis=1)
        values[picks] = np.inf
        picks.append(int(values.argmin()))
    return picks


@settings(max_examples=100)
@given(
    seed=st.integers(0, 2**32 - 1),
    metric=st.sampled_from(METRICS),
    kind=st.sampled_from(KINDS),
    diversity=st.sampled_from([0.0, 0.05, 0.3, 0.7]),
)
def test_costs_are_scaled_as_documented(
    seed: int, metric: Metric, kind: Points, diversity: float
) -> None:
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((30, 8), dtype=np.float32) * np.float32(3)
    scores = rng.uniform(-4, 9, 30)
    result = diversify(stored_as(vectors, kind), scores, k=8, metric=metric, diversity=diversity)
    assert result.places.tolist() == slow_greedy(vectors, scores, metric, 8, diversity)
    assert result.scores.tolist() == scores[result.places].tolist()


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("selector", get_args(Selector))
def test_units_of_scores_and_vectors_do_not_matter(metric: Metric, selector: Selector) -> None:
    """Powers of two scale float32 numbers without rounding."""
    rng = np.random.default_rng(8)
    vectors, scores = rng.standard_normal((25, 6), dtype=np.float32), rng.integers(0, 64, 25)
    first = diversify(vectors, scores, k=6, metric=metric, selector=selector, diversity=0.4)
    for scale in (2.0**-20, 4.0, 2.0**20):
        again = diversify(
            vectors * np.float32(scale), 1024 * scores - 4096, k=6, metric=metric,
            selector=selector, diversity=0.4,
        )  # fmt: skip
        assert again.places.tolist() == first.places.tolist()


@pytest.mark.parametrize("selector", get_args(Selector))
def test_without_scores_all_candidates_are_equally_relevant(selector: Selector) -> None:
    vectors = np.random.default_rng(3).standard_normal((20, 5), dtype=np.float32)
    none = diversify(vectors, k=4, selector=selector, diversity=0.1)
    equal = diversify(vectors, np.full(20, 7.5), k=4, selector=selector, diversity=0.1)
    assert none.places.tolist() == equal.places.tolist()
    assert (none.scores.tolist(), equal.scores.tolist()) == ([0.0] * 4, [7.5] * 4)
    assert diversify(vectors, k=4, selector=selector, diversity=0).places.tolist() == [0, 1, 2, 3]


def test_ends_of_the_dial() -> None:
    vectors = np.array([[1, 0], [1, 0], [1, 0.1], [0, 1]], np.float32)
    scores = [0.1, 0.4, 0.9, 0.2]
    assert diversify(vectors, scores, k=3, diversity=0).places.tolist() == [2, 1, 3]
    assert diversify(vectors, scores, k=2, diversity=1).places.tolist() == [2, 3]


def test_collapsed_candidates_are_listed_with_their_pick() -> None:
    rng = np.random.default_rng(1)
    originals = rng.standard_normal((4, 32), dtype=np.float32)
    vectors, scores = np.repeat(originals, 3, axis=0), np.arange(12.0)
    result = diversify(vectors, scores, k=4, duplicate_threshold=0.99)
    assert sorted(place // 3 for place in result.places.tolist()) == [0, 1, 2, 3]
    for rank, place in enumerate(result.places.tolist()):
        assert place % 3 == 2
        assert result.collapsed(rank).tolist() == [place - 1, place - 2]
    assert result.duplicates == 0
    names = [f"shot {number}" for number in range(12)]
    assert result.take(names) == [names[place] for place in result.places]
    crowded = diversify(vectors, scores, k=6, duplicate_threshold=0.99)
    assert (len(crowded), crowded.duplicates) == (6, 2)
    assert len(diversify(vectors, scores, k=4).collapsed(0)) == 0


@pytest.mark.parametrize("selector", get_args(Selector))
@pytest.mark.parametrize("threshold", [None, 0.9])
def test_empty_and_single(selector: Selector, threshold: float | None) -> None:
    options: dict[str, Any] = {"selector": selector, "duplicate_threshold": threshold}
    empty = diversify(np.empty((0, 3)), [], **options)
    assert (len(empty), empty.diversity, empty.take([])) == (0, 0.15, [])
    assert len(diversify([], **options)) == 0
    one = diversify([[3.0, 4.0]], [-2.0], **options)
    assert (one.places.tolist(), one.scores.tolist()) == ([0], [-2.0])
    with pytest.raises(InvalidArgumentError, match="k must be at most the number of candidates, 0"):
        diversify([], k=1, **options)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("kind", KINDS)
def test_vectors_of_zeros(metric: Metric, kind: Points) -> None:
    """With scores, such a vector differs from every other by 1, or by its squared distance."""
    vectors: Any = stored_as(np.array([[0, 0], [3, 4], [3, 4.5]], np.float32), kind)
    result = diversify(vectors, [0.5, 1.0, 0.9], k=2, diversity=0.9, metric=metric)
    assert result.places.tolist() == [1, 0]
    if metric == "cosine":
        with pytest.raises(InvalidArgumentError, match="row 0 is all zeros") as error:
            diversify(vectors, query=[1.0, 0.0], metric=metric)
        assert error.value.field == "vectors"


def test_an_array_of_float32_is_not_changed() -> None:
    vectors = np.random.default_rng(4).standard_normal((9, 4), dtype=np.float32)
    copy, query = vectors.copy(), np.ones(4)
    for metric in METRICS:
        diversify(vectors, np.arange(9), metric=metric)
        diversify(vectors, query=query, metric=metric)
    vectors.setflags(write=False)
    forms: list[Any] = [vectors, copy.tolist(), np.asfortranarray(copy), copy.astype(np.float64)]
    forms += [np.repeat(copy, 2, axis=0)[::2], sparse.csc_array(copy)]
    picks = {tuple(diversify(form, np.arange(9), k=4).places.tolist()) for form in forms}
    assert len(picks) == 1


VECTORS: FloatArray = np.eye(4, dtype=np.float32)
NAN = math.nan
REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("k", {"k": 5}),
    ("k", {"k": 0}),
    ("k", {"k": True}),
    ("k", {"k": 2.5}),
    ("scores", {"scores": [1.0, 2.0, 3.0]}),
    ("scores", {"scores": [[1.0], [2.0], [3.0], [4.0]]}),
    ("scores", {"scores": 3.0}),
    ("scores", {"scores": [1.0, NAN, 3.0, 4.0]}),
    ("scores", {"scores": [1.0, math.inf, 3.0, 4.0]}),
    ("scores", {"scores": [1.0, 1e31, 3.0, 4.0]}),
    ("scores", {"scores": ["a", "b", "c", "d"]}),
    ("scores", {"scores": [[1], [1, 2], 3, 4]}),
    ("vectors", {"vectors": [1.0, 2.0]}),
    ("vectors", {"vectors": [["a"]]}),
    ("vectors", {"vectors": np.full((4, 2), NAN)}),
    ("vectors", {"vectors": np.full((4, 2), NAN), "query": [1, 1]}),
    ("vectors", {"vectors": np.full((4, 2), 1e20)}),
    ("vectors", {"vectors": np.ones((2, 65_537), np.float32)}),
    ("vectors", {"vectors": np.ones((3_000, 2)), "selector": "dpp", "duplicate_threshold": 0.9}),
    ("query", {"scores": [1, 2, 3, 4], "query": [1, 0, 0, 0]}),
    ("query", {"query": [1, 0]}),
    ("query", {"query": np.eye(4)[:2]}),
    ("query", {"query": [0, 0, 0, 0]}),
    ("query", {"query": [NAN, 0, 0, 0]}),
    ("diversity", {"diversity": 1.5}),
    ("diversity", {"diversity": "automatic"}),
    ("diversity", {"diversity": "auto", "selector": "nearest"}),
    ("lose_at_most", {"diversity": 0.2, "lose_at_most": 0.1}),
    ("lose_at_most", {"lose_at_most": -0.1}),
    ("lose_at_most", {"lose_at_most": 0.1, "selector": "nearest"}),
    ("lose_at_most", {"lose_at_most": 0.1, "variant": "printed"}),
    ("selector", {"selector": "mrr"}),
    ("metric", {"metric": "cosin"}),
    ("duplicate_threshold", {"duplicate_threshold": 1.1}),
    ("duplicate_threshold", {"duplicate_threshold": -0.1, "metric": "euclidean"}),
    ("duplicate_threshold", {"duplicate_threshold": NAN}),
    ("candidates_limit", {"candidates_limit": 3}),
]


@pytest.mark.parametrize(("field", "arguments"), REFUSED, ids=repr)
def test_bad_arguments_are_named(field: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError) as error:
        diversify(**({"vectors": VECTORS} | arguments))
    assert error.value.field == field
    assert "candidates_limit" not in str(error.value) or field == "candidates_limit"


def test_results_name_their_picks() -> None:
    result = diversify(VECTORS, [4, 3, 2, 1], k=3)
    assert repr(result).startswith("Diversification: 3 picks at diversity 0.15: 0, ")
    sizes = {len(getattr(result, field.name)) for field in fields(result)[:3]}
    assert sizes == {3}


@pytest.mark.parametrize("selector", get_args(Selector))
def test_selection_scores_of_greedy_selectors_explain_the_first_pick(selector: Selector) -> None:
    """The best candidate comes first at every dial below 1, except in a relaxation."""
    scores = np.array([0.2, 0.9, 0.4, 0.1])
    result = diversify(VECTORS, scores, k=4, selector=selector, diversity=0.2)
    assert sorted(result.places.tolist()) == [0, 1, 2, 3]
    if selector != "qp_relax":
        assert result.places[0] == 1
    if selector in ("nearest", "dpp"):
        assert all(a >= b for a, b in pairwise(result.selection_scores.tolist()))


@pytest.mark.parametrize("place", [-1, 2])
def test_a_place_without_a_pick_is_refused(place: int) -> None:
    result = diversify(np.eye(4), k=2)
    with pytest.raises(IndexError, match="from 0 to 1"):
        result.collapsed(place)


@pytest.mark.parametrize(
    "scores", [1.7e9 + np.arange(20.0), 1 + 1e-9 * np.arange(20.0), 1e-40 * np.arange(20.0),
               2**40 + np.arange(20)], ids=["times", "near 1", "tiny", "integers"]
)  # fmt: skip
@pytest.mark.parametrize("metric", METRICS)
def test_an_offset_of_scores_does_not_matter(
    scores: npt.NDArray[np.generic], metric: Metric
) -> None:
    vectors = np.random.default_rng(3).standard_normal((20, 4))
    for options in DIALS:
        expected = diversify(vectors, np.arange(20.0), k=5, metric=metric, **options)
        result = diversify(vectors, scores, k=5, metric=metric, **options)
        assert result.places.tolist() == expected.places.tolist()
        assert result.scores.tolist() == np.asarray(scores, np.float64)[result.places].tolist()
    best = diversify(vectors, scores, k=3, metric=metric, diversity=0)
    assert best.places.tolist() == [19, 18, 17]


def test_scores_rank_candidates_that_are_all_alike() -> None:
    vectors, scores = np.ones((5, 3)), np.arange(5.0)
    for options in ({"diversity": 0.0}, {"diversity": 0.3}, {"selector": "mmr"}):
        arguments: Any = {"metric": "euclidean", **options}
        assert diversify(vectors, scores, k=2, **arguments).places[0] == 4
    alone = diversify(vectors, scores, k=1, metric="euclidean", duplicate_threshold=0.1)
    assert alone.places.tolist() == [4]


@pytest.mark.parametrize("metric", ["cosine", "euclidean", "inner_product"])
@pytest.mark.parametrize("selector", ["nearest", "greedy", "mmr", "rerank", "max_sum", "dpp"])
def test_quotas_bind_the_picks_or_change_nothing(metric: Metric, selector: Selector) -> None:
    rng = np.random.default_rng(3)
    vectors, scores = rng.standard_normal((60, 8)), rng.random(60)
    brands = [f"b{row % 7}" for row in range(60)]
    options: Any = {"metric": metric, "selector": selector, "k": 10, "diversity": 0.3}
    plain = diversify(vectors, scores, **options)
    of_brands = {"brand": brands}
    loose, tight = (
        diversify(
            vectors, scores, attributes=of_brands, quotas=Quota("brand", max_each=n), **options
        )
        for n in (10, 2)
    )
    assert np.array_equal(plain.places, loose.places)
    assert np.array_equal(plain.selection_scores, loose.selection_scores)
    assert max(Counter(tight.take(brands)).values()) == 2
    assert len(set(tight.places.tolist())) == 10
    assert tight.scores.tolist() == scores[tight.places].tolist()


def test_picks_in_groups() -> None:
    rng = np.random.default_rng(4)
    vectors, scores = rng.standard_normal((30, 8)), rng.random(30)
    kinds = [None if row % 5 == 4 else row % 5 for row in range(30)]
    result = diversify(
        vectors,
        scores,
        attributes={"kind": np.array(kinds, object)},
        group_by=GroupBy("kind", 3, 4),
    )
    assert [len(group.places) for group in result.groups] == [4, 4, 4]
    assert np.concatenate([group.places for group in result.groups]).tolist() == [*result.places]
    for group in result.groups:
        assert {kinds[place] for place in group.places} == {group.value}
    few = diversify(vectors[:3], attributes={"kind": kinds[:3]}, group_by=GroupBy("kind", 9, 4))
    assert len(few) == 3
    assert diversify(vectors).groups == ()


def test_quotas_of_several_values_that_cannot_be_met() -> None:
    vectors = np.eye(6)
    tags = [["a"], ["a", "b"], ["b"], [], ["c", "a"], ["c"]]
    quotas = [Quota("tags", rules={"a": (2, None), "b": (2, None), "c": (2, None)})]
    options: Any = {"attributes": {"tags": tags}, "quotas": quotas, "k": 3}
    with pytest.raises(ConditionFailedError, match="tags = ") as error:
        diversify(vectors, **options)
    assert error.value.field == "quotas"
    relaxed = diversify(vectors, on_infeasible="relax", **options)
    assert sum(lack.required - lack.count for lack in relaxed.quota_shortfalls) == 1
    enough = diversify(vectors, **(options | {"k": 4}))
    assert enough.quota_shortfalls == ()
    assert Counter(tag for place in enough.places for tag in tags[place])["c"] == 2


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"attributes": {"a": [1, 2]}}, "attributes"),
        ({"attributes": {"a": [1, 2]}, "quotas": Quota("a", max_each=1)}, "attributes.a"),
        ({"quotas": Quota("a", max_each=1)}, "quotas"),
        ({"attributes": {"a": [1, 2, 3]}, "quotas": Quota("b", max_each=1)}, "quotas"),
        ({"attributes": {"a": [1, 2, 3]}, "quotas": Quota("a", rules={"x": (1, 2)})}, "quotas"),
        ({"attributes": {"a": [1, 2, 3]}, "quotas": Quota("a", rules={1: (2, 1)})}, "quotas"),
        ({"attributes": {"a": [1, 2, 3]}, "group_by": GroupBy("b", 2)}, "group_by"),
        ({"attributes": {"a": [1, 2, 3]}, "group_by": GroupBy("a", 2), "k": 3}, "k"),
        (
            {
                "attributes": {"a": [1, 2, 3]},
                "quotas": Quota("a", max_each=1),
                "selector": "qp_relax",
            },
            "selector",
        ),
    ],
)
def test_wrong_quotas(arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgumentError) as error:
        diversify(np.eye(3), **arguments)
    assert error.value.field == field


def test_quotas_of_missing_values_and_of_short_lists() -> None:
    vectors, quota = np.eye(6), Quota("b", max_each=2)
    result = diversify(vectors, k=2, attributes={"b": [None] * 6}, quotas=quota)
    assert len(result) == 2
    # A caller's store may find nothing, or fewer candidates than a quota asks for.
    assert len(diversify([], [], attributes={"b": []}, quotas=quota)) == 0
    assert len(diversify([], query=[1, 2, 3])) == 0
    assert len(diversify(vectors, attributes={"b": list("aabbcc")}, quotas=[])) == 6
    options: dict[str, Any] = {"quotas": Quota("b", rules={"a": (4, None)})}
    for rows, required in ((0, 4), (3, 4)):
        columns = {"b": list("aab")[:rows]}
        short = vectors[:rows]
        with pytest.raises(ConditionFailedError, match="b = 'a' has"):
            diversify(short, attributes=columns, **options)
        relaxed = diversify(short, attributes=columns, on_infeasible="relax", **options)
        assert len(relaxed) == rows
        assert [lack.required for lack in relaxed.quota_shortfalls] == [required]


@pytest.mark.parametrize(
    ("arguments", "field", "words"),
    [
        ({"quotas": Quota("c", max_each=1), "attributes": {"b": list("abc")}}, "quotas", "got 'c'"),
        ({"quotas": Quota("c", max_each=1)}, "quotas", "attributes of the call, got 'c'"),
        ({"attributes": {"b": list("abc")}}, "attributes", "go with quotas"),
        ({"quotas": Quota("b", max_each=1), "attributes": ["a"]}, "attributes", "by name"),
        ({"scores": np.ma.masked_greater([1.0, 2, 9], 5)}, "scores", "masked"),
    ],
)
def test_wrong_attributes_and_scores(arguments: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words) as error:
        diversify(np.eye(3), **arguments)
    assert error.value.field == field


@pytest.mark.parametrize("metric", ["euclidean", "inner_product"])
def test_candidates_without_dimensions_have_no_picks(metric: Metric) -> None:
    """Whatever the query has, as an empty list of candidates."""
    vectors, query = np.empty((3, 0), np.float32), np.ones(4, np.float32)
    assert len(diversify(vectors, query=query, metric=metric).places) == 0
    with pytest.raises(InvalidArgumentError):
        diversify(vectors, query=query, metric=metric, k=2)
