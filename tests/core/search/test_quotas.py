"""Queries within quotas and by groups, of indexes and collections."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from divgrpc import Collection, Field, GroupBy, HasId, Index, Quota, diversify
from divgrpc.errors import ConditionFailedError, InvalidArgumentError, LimitExceededError
from divgrpc.types import OnInfeasible, QueryResult, Selector

SELECTORS: list[Selector] = ["nearest", "greedy", "mmr", "rerank", "max_sum", "dpp"]
ROWS, BRANDS = 3_000, 30


# A rule without a pair of bounds, no rules, and a number that Python does not write.
RULES: Any = {"b1": 3.5}
NO_RULES: Any = None
HUGE = 10**5_000


def data() -> tuple[Any, dict[str, Any]]:
    """Return points around the centres of their brands; a few rare ones lie anywhere."""
    rng = np.random.default_rng(0)
    brands = rng.integers(0, BRANDS, ROWS)
    vectors = rng.standard_normal((BRANDS, 16))[brands] + 0.3 * rng.standard_normal((ROWS, 16))
    sources = rng.choice(["own", "web", "ads", ""], ROWS, p=[0.002, 0.5, 0.4, 0.098])
    tags = [sorted({f"t{tag}" for tag in rng.integers(0, 8, row % 4)}) for row in range(ROWS)]
    return vectors.astype(np.float32), {
        "brand": [f"b{brand}" for brand in brands],
        "source": [source or None for source in sources],
        "tags": tags,
        "price": rng.uniform(0, 100, ROWS),
        "year": brands % 5 + 2020,
    }


VECTORS, ATTRIBUTES = data()


@pytest.fixture(scope="module")
def index() -> Index:
    return Index.build(VECTORS, attributes=ATTRIBUTES)


def counts(result: QueryResult, name: str, row: int = 0) -> Counter[Any]:
    values = [hit.attributes[name] for hit in result[row] if hit.attributes is not None]
    lists: list[Any] = [value if isinstance(value, tuple) else (value,) for value in values]
    return Counter(item for items in lists for item in items)


@pytest.mark.parametrize("selector", SELECTORS)
def test_quotas_on_several_attributes_are_met(index: Index, selector: Selector) -> None:
    quotas = [
        Quota("brand", max_each=2),
        Quota("source", rules={"own": (2, 3), None: (1, 1)}),
        Quota("tags", rules={"t1": (3, None)}),
    ]
    result = index.query(VECTORS[:4], selector=selector, quotas=quotas, with_attributes=True)
    for row in range(4):
        assert result.counts[row] == 10
        assert max(counts(result, "brand", row).values()) <= 2
        assert 2 <= counts(result, "source", row)["own"] <= 3
        assert counts(result, "source", row)[None] == 1
        assert counts(result, "tags", row)["t1"] >= 3
    assert result.warnings == ()


def test_a_rare_value_is_searched_for(index: Index) -> None:
    """No candidate has the value, so a search of its own finds it; the filter applies to it."""
    expensive = Field("price") > 10
    result = index.query(
        VECTORS[0],
        quotas=[Quota("source", rules={"own": (2, None)})],
        filter=expensive,
        with_attributes=True,
    )
    assert counts(result, "source")["own"] == 2
    assert all(float(str(price)) > 10 for price in result.attributes["price"])
    assert result.points_passing == index.count(expensive)


def test_quotas_at_diversity_0_return_the_nearest_within_them(index: Index) -> None:
    query = VECTORS[7]
    order = index.query(query, k=ROWS, diversity=0, search="exact", candidates_limit=0)
    expected: list[Any] = []
    used: Counter[str] = Counter()
    for hit in order[0]:
        brand = ATTRIBUTES["brand"][hit.id]
        if used[brand] < 3 and len(expected) < 12:
            used[brand] += 1
            expected.append(hit.id)
    quota = Quota("brand", max_each=3)
    result = index.query(query, k=12, diversity=0, search="exact", quotas=[quota])
    assert result.ids[0].tolist() == expected


@pytest.mark.parametrize("selector", SELECTORS)
@pytest.mark.parametrize("diversity", [0, 0.15, 0.7])
def test_quotas_that_bind_nothing_change_nothing(
    index: Index, selector: Selector, diversity: float
) -> None:
    options: Any = {"selector": selector, "diversity": diversity}
    plain = index.query(VECTORS[:3], **options)
    within = index.query(VECTORS[:3], quotas=[Quota("brand", max_each=10)], **options)
    assert np.array_equal(plain.ids, within.ids)
    assert np.array_equal(plain.selection_scores, within.selection_scores)


def test_least_numbers_for_each_value(index: Index) -> None:
    quota = Quota("year", min_each=2)
    result = index.query(VECTORS[0], quotas=[quota], with_attributes=True)
    assert set(counts(result, "year").values()) == {2}
    with pytest.raises(ConditionFailedError, match="brand"):
        index.query(VECTORS[0], quotas=[Quota("brand", min_each=1)])
    relaxed = index.query(
        VECTORS[0],
        quotas=[Quota("brand", min_each=1)],
        on_infeasible="relax",
        with_attributes=True,
    )
    assert set(counts(relaxed, "brand").values()) == {1}


def test_quotas_that_cannot_be_met_fail_or_are_relaxed(index: Index) -> None:
    two_brands = Field("brand").is_in(["b1", "b2"])
    quotas = [Quota("brand", max_each=2, rules={"none": (1, None)})]
    with pytest.raises(ConditionFailedError, match="4 of 10 results") as error:
        index.query(VECTORS[:2], quotas=quotas, filter=two_brands)
    assert error.value.field == "quotas"
    result = index.query(VECTORS[:2], quotas=quotas, filter=two_brands, on_infeasible="relax")
    assert result.counts.tolist() == [4, 4]
    assert "QUOTA_INFEASIBLE" in [warning.code for warning in result.warnings]
    lacks = [(lack.row, lack.attribute, lack.value) for lack in result.quota_shortfalls]
    assert lacks == [(0, "", None), (0, "brand", "none"), (1, "", None), (1, "brand", "none")]


def test_several_attributes_are_relaxed_by_as_little_as_possible() -> None:
    index = Index.build(
        np.eye(4, dtype=np.float32), attributes={"a": list("xxyy"), "b": list("ppqq")}
    )
    quotas = [Quota("a", rules={"x": (2, None)}), Quota("b", rules={"q": (2, None)})]
    result = index.query(
        np.ones(4), k=3, quotas=quotas, on_infeasible="relax", with_attributes=True
    )
    assert result.counts[0] == 3
    assert sum(lack.required - lack.count for lack in result.quota_shortfalls) == 1


def test_an_answer_of_all_points_meets_no_more_than_they_do(index: Index) -> None:
    few = index.query(VECTORS[0], filter=HasId((5, 6, 7)), quotas=[Quota("brand", max_each=3)])
    assert few.counts[0] == 3
    none = index.query(VECTORS[0], filter=Field("price") < 0, quotas=[Quota("brand", max_each=1)])
    assert none.counts[0] == 0


def test_groups(index: Index) -> None:
    group_by = GroupBy("brand", groups=5, per_group=2)
    result = index.query(VECTORS[:3], group_by=group_by, with_attributes=True)
    for row in range(3):
        groups = result.groups(row)
        assert [len(group.hits) for group in groups] == [2] * 5
        assert len({group.value for group in groups}) == 5
        for group in groups:
            assert {(hit.attributes or {})["brand"] for hit in group.hits} == {group.value}
        assert groups[0].hits[0].id == row
    assert result.parameters.k == 10


def test_groups_that_are_small_or_have_no_value(index: Index) -> None:
    group_by = GroupBy("source", groups=9, per_group=4)
    result = index.query(VECTORS[0], group_by=group_by)
    sizes = {group.value: len(group.hits) for group in result.groups(0)}
    assert sizes == {"web": 4, "ads": 4, "own": 4, None: 4}
    empty = index.query(VECTORS[:2], group_by=group_by, filter=Field("price") < 0)
    assert empty.groups(1) == ()


@pytest.mark.parametrize(
    ("arguments", "field", "words"),
    [
        (
            {"quotas": [Quota("brand", max_each=-1)]},
            "quotas",
            "max_each for 'brand' from 0",
        ),
        ({"quotas": [Quota("brand", max_each=True)]}, "quotas", "got True"),
        ({"quotas": [Quota("brand")]}, "quotas", "must have max_each, min_each or rules"),
        ({"quotas": [Quota("brand", min_each=3, max_each=2)]}, "quotas", "got 3 and 2"),
        ({"quotas": [Quota("brand", rules={"b1": (3, 2)})]}, "quotas", "a min of at most max"),
        ({"quotas": [Quota("brand", rules=RULES)]}, "quotas", "got 3.5"),
        ({"quotas": [Quota("brand", rules={"b1": (11, None)})]}, "quotas", "at most k = 10"),
        ({"quotas": [Quota("brand", rules={"a": (6, 9), "b": (6, 9)})]}, "quotas", "contradict"),
        ({"quotas": [Quota("brand", rules={3: (1, 2)})]}, "quotas", "must name texts"),
        ({"quotas": [Quota("year", rules={True: (1, 2)})]}, "quotas", "must name integers"),
        ({"quotas": [Quota("colour", max_each=1)]}, "quotas", "declares brand, source"),
        ({"quotas": [Quota("brand", max_each=1)] * 2}, "quotas", "has 'brand' twice"),
        ({"quotas": ["brand"]}, "quotas", "must hold quotas"),
        ({"quotas": {"brand": 2}}, "quotas", "must be a list"),
        ({"quotas": [Quota("brand", max_each=2)], "selector": "qp_relax"}, "selector", "qp_relax"),
        ({"group_by": GroupBy("brand", 0)}, "group_by", "number of groups from 1"),
        ({"group_by": GroupBy("brand", 101, 100)}, "group_by", "up to 10000"),
        ({"group_by": GroupBy("tags", 2)}, "group_by", "'tags' has several"),
        ({"group_by": GroupBy("colour", 2)}, "group_by", "declares brand"),
        ({"group_by": "brand"}, "group_by", "must be groups"),
        ({"group_by": GroupBy("brand", 2, 2), "k": 5}, "k", "groups times per_group, 4"),
        (
            {"group_by": GroupBy("brand", 2), "quotas": [Quota("source", max_each=1)]},
            "group_by",
            "does not go with quotas",
        ),
        ({"quotas": [Quota("brand", max_each=2)], "paged": True}, "quotas", "with paged"),
        ({"quotas": [Quota("brand", max_each=2)], "page_token": ""}, "quotas", "page_token"),
        ({"group_by": GroupBy("brand", 2), "already_shown": [1]}, "group_by", "already_shown"),
        ({"on_infeasible": "ignore"}, "on_infeasible", "must be fail or relax"),
        ({"quotas": [Quota("brand", rules=NO_RULES)]}, "quotas", "got None"),
        ({"quotas": [Quota("brand", max_each=HUGE)]}, "quotas", "very many digits"),
        ({"quotas": [Quota("brand", rules={HUGE: (1, 2)})]}, "quotas", "very many digits"),
        ({"group_by": GroupBy("brand", HUGE)}, "group_by", "very many digits"),
        (
            {"quotas": [Quota("tags", max_each=1)], "max_distance": 1.0},
            "max_distance",
            "goes with one quota",
        ),
        (
            {"quotas": [Quota(n, max_each=1) for n in ("brand", "year")], "max_distance": 1.0},
            "max_distance",
            "goes with one quota",
        ),
    ],
)
def test_wrong_quotas(index: Index, arguments: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words) as error:
        index.query(VECTORS[0], **arguments)
    assert error.value.field == field


def test_quotas_of_points_that_were_written(tmp_path: Path) -> None:
    """Later parts of a collection number the same keywords in another way."""
    half = ROWS // 2
    first = {name: values[:half] for name, values in ATTRIBUTES.items()}
    ids = [f"p{row}" for row in range(ROWS)]
    Index.build(VECTORS[:half], ids=ids[:half], attributes=first, path=tmp_path / "points")
    with Collection.open(tmp_path / "points") as collection:
        for start in range(half, ROWS, 500):
            part = slice(start, start + 500)
            attributes = {name: values[part] for name, values in ATTRIBUTES.items()}
            collection.upsert(ids[part], VECTORS[part], attributes=attributes)
        rare = [i for i, source in zip(ids, ATTRIBUTES["source"], strict=True) if source == "own"]
        collection.delete(rare[1:])
        quotas = [Quota("brand", max_each=1), Quota("source", rules={"own": (1, 1)})]
        for merged in (False, True):
            if merged:
                collection.compact()
            options: Any = {"quotas": quotas, "with_attributes": True}
            result = collection.query(like=["p1", "p2999"], **options)
            assert rare[0] in result.ids[0]
            assert result.counts.tolist() == [10, 10]
            assert set(counts(result, "brand", 1).values()) == {1}
            assert "p1" not in result.ids[0]
            groups = collection.query(VECTORS[0], group_by=GroupBy("brand", 4, 3)).groups(0)
            assert [len(group.hits) for group in groups] == [3] * 4
            with pytest.raises(ConditionFailedError):
                collection.query(VECTORS[0], quotas=[Quota("source", rules={"own": (2, 2)})])


def test_near_copies_and_lists_of_them() -> None:
    rng = np.random.default_rng(1)
    originals = rng.standard_normal((100, 8)).astype(np.float32)
    vectors = np.repeat(originals, 5, axis=0)
    vectors += rng.normal(0, 1e-3, vectors.shape).astype(np.float32)
    # Of each five copies, one alone has the rare value.
    attributes = {"kind": ["rare" if row % 5 == 4 else "plain" for row in range(500)]}
    index = Index.build(vectors, attributes=attributes)
    quotas = [Quota("kind", rules={"rare": (10, None)})]
    result = index.query(vectors[0], quotas=quotas, with_attributes=True, list_collapsed=True)
    assert counts(result, "kind") == {"rare": 10}
    assert len(set((result.ids[0].astype(int) // 5).tolist())) == 10
    assert sum(len(result.collapsed(0, place)) for place in range(10)) > 0


@pytest.mark.parametrize("options", [{"diversity": "auto"}, {"lose_at_most": 0.1}])
def test_chosen_dials(index: Index, options: dict[str, Any]) -> None:
    quotas = [Quota("brand", max_each=2)]
    result = index.query(VECTORS[:2], quotas=quotas, with_attributes=True, **options)
    assert result.counts.tolist() == [10, 10]
    assert all(result.dial_reasons)
    assert max(counts(result, "brand").values()) <= 2


@pytest.mark.parametrize(
    "dial",
    [{"diversity": "auto"}, {"lose_at_most": 0.1}, {"diversity": 0.3, "candidates_limit": 50}],
)
@pytest.mark.parametrize("selector", SELECTORS[1:])
def test_quotas_that_bind_nothing_keep_dials_and_pools(
    selector: Selector, dial: dict[str, Any]
) -> None:
    """Near-copies count for neither dial nor loss, and a pool that they crowd grows."""
    points = np.concatenate((VECTORS[:300], VECTORS[:100] + np.float32(1e-2)))
    names = [f"n{row % 7}" for row in range(400)]
    index = Index.build(points, attributes={"name": names})
    options: dict[str, Any] = {**dial, "selector": selector, "k": 8, "duplicate_threshold": 0.9}
    for row in range(8):
        plain = index.query(VECTORS[row], **options)
        within = index.query(VECTORS[row], quotas=Quota("name", max_each=8), **options)
        assert within.diversities.tolist() == plain.diversities.tolist()
        assert within.dial_reasons.tolist() == plain.dial_reasons.tolist()
        assert within.ids.tolist() == plain.ids.tolist()


def test_a_report_is_about_the_results_within_the_quotas(index: Index) -> None:
    quotas = [Quota("brand", max_each=1)]
    report = index.query(VECTORS[:2], quotas=quotas, with_report=True).report
    plain = index.query(VECTORS[:2], k=10, diversity=0, keep_duplicates=True, with_report=True)
    assert report is not None
    assert plain.report is not None
    assert report.entropies["brand"].tolist() == pytest.approx([1, 1])
    assert np.array_equal(report.plain_mean_scores, plain.report.mean_scores)
    assert (report.mean_scores < report.plain_mean_scores).all()


@pytest.mark.parametrize("selector", SELECTORS)
def test_groups_are_full_if_the_index_has_the_points(selector: Selector) -> None:
    """`rerank` picks groups from a shortlist, and fills them from all points."""
    for seed in range(8):
        rng = np.random.default_rng(seed)
        groups = np.where(rng.random(200) < 0.7, 0, rng.integers(0, 60, 200))
        points = rng.standard_normal((200, 6))
        columns: dict[str, Any] = {"b": groups.tolist()}
        group_by = GroupBy("b", 4, 4)
        answer = Index.build(points, metric="euclidean", attributes=columns).query(
            points[0], group_by=group_by, selector=selector
        )
        picks = diversify(
            points, -np.square(points - points[0]).sum(axis=1), metric="euclidean",
            attributes=columns, group_by=group_by, selector=selector,
        )  # fmt: skip
        sizes = [(group.value, len(group.hits)) for group in answer.groups(0)]
        sizes += [(value, len(places)) for value, places in picks.groups]
        assert len(sizes) == 8
        for value, size in sizes:
            assert size == min(4, int((groups == value).sum()))


def test_a_quota_may_allow_few_values_of_many() -> None:
    """Points of forbidden values take no searches."""
    count = 4_000
    index = Index.build(
        np.random.default_rng(0).standard_normal((count, 8)),
        attributes={
            "u": [f"u{row}" for row in range(count)],
            "t": [["a", "b"][: row % 3] for row in range(count)],
        },
    )
    allowed: dict[Any, Any] = {"u5": (None, 1), "u70": (None, 1)}
    options: dict[str, Any] = {"on_infeasible": "relax", "k": 3}
    result = index.query(np.ones(8), quotas=Quota("u", max_each=0, rules=allowed), **options)
    assert sorted(result.ids[0].tolist()[:2]) == [5, 70]
    assert [lack.count for lack in result.quota_shortfalls] == [2]
    # A point must have no forbidden value beside others.
    result = index.query(np.ones(8), quotas=Quota("t", rules={"b": (None, 0)}), k=10)
    assert (result.ids[0] % 3 < 2).all()
    empty = index.query(np.ones(8), quotas=Quota("u", max_each=0), **options)
    assert (len(empty[0]), empty.quota_shortfalls[0].required) == (0, 3)


def test_least_numbers_are_missing_if_no_points_pass(index: Index) -> None:
    quota = Quota("brand", rules={"b1": (1, None), "b2": (None, 1)})
    options: dict[str, Any] = {"filter": Field("price") < 0, "quotas": quota}
    with pytest.raises(ConditionFailedError, match="brand = 'b1' has 0 of at least 1"):
        index.query(VECTORS[:2], **options)
    result = index.query(VECTORS[:2], on_infeasible="relax", **options)
    assert [(lack.row, lack.value, lack.required) for lack in result.quota_shortfalls] == [
        (0, "b1", 1),
        (1, "b1", 1),
    ]
    near = index.query(VECTORS[0] + 50, quotas=quota, on_infeasible="relax", max_distance=0.0)
    assert {lack.value for lack in near.quota_shortfalls} == {None, "b1"}


@pytest.mark.parametrize("dial", [{"diversity": "auto"}, {"lose_at_most": 0.5}, {}])
def test_no_point_is_near_enough(index: Index, dial: dict[str, Any]) -> None:
    far = VECTORS[:2] + 50
    for quotas in (
        {"group_by": GroupBy("brand", 2, 2)},
        {"quotas": Quota("brand", max_each=1), "on_infeasible": "relax"},
    ):
        result = index.query(far, max_distance=0.01, **quotas, **dial)
        assert result.counts.tolist() == [0, 0]
        assert result.dial_reasons.tolist() == ["no_choice"] * 2 * bool(dial)


@pytest.mark.parametrize("on_infeasible", ["fail", "relax"])
def test_quotas_that_take_too_long_end_with_an_error(on_infeasible: OnInfeasible) -> None:
    rng = np.random.default_rng(0)
    points = rng.standard_normal((200, 8))
    columns = {f"a{n}": [f"v{value}" for value in rng.integers(0, 8, 200)] for n in range(6)}
    quotas = [Quota(name, max_each=3) for name in columns]
    with pytest.raises(LimitExceededError, match="takes too long to decide"):
        diversify(points, attributes=columns, k=24, quotas=quotas, on_infeasible=on_infeasible)


def test_a_bound_on_the_loss_goes_with_quotas_that_allow_nothing() -> None:
    with pytest.raises(ConditionFailedError, match="0 of 3 results"):
        diversify(
            np.eye(5), k=3, lose_at_most=0.1, attributes={"b": ["a"] * 5},
            quotas=Quota("b", max_each=0),
        )  # fmt: skip


@pytest.mark.parametrize("limit", [0, 5])
def test_a_limit_of_the_caller_stays_with_quotas(index: Index, limit: int) -> None:
    """By default, queries with quotas hash twice as many points. No caller sees that as a limit."""
    query, options = VECTORS[:1], dict[str, Any](k=5, candidates_limit=limit)
    plain = index.query(query, **options)
    result = index.query(query, quotas=Quota("brand", max_each=5), **options)
    assert result.ids.tolist() == plain.ids.tolist()
    assert result.stats.points_hashed.tolist() == plain.stats.points_hashed.tolist()
