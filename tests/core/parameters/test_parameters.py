"""Parameters of builds and queries: validation, defaults and limits."""

import json
import math
from dataclasses import asdict, dataclass
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divgrpc.errors import DivgrpcError, InvalidArgumentError
from divgrpc.parameters import LIMITS, BuildParameters, QueryParameters
from divgrpc.parameters.checks import FieldChecks, whole
from divgrpc.types import Search, Selector
from support.checks.refusals import refused, wrong

NO_WORDS = ["", None, ["exact"], np.array("exact"), np.array(["a", "b"]), b"exact", 1]
NO_LIMITS = (-1, 9, 1.5, True, math.nan, 2**63)


@wrong(
    k=[0, -1, 10_001, 2**70, True, np.True_, 1.0, "1", None, [1], np.array([1, 2])],
    diversity=[-0.001, 1.001, math.nan, math.inf, "0.5", True, None, [0.5], 10**400],
    hash_limit=NO_LIMITS,
    candidates_limit=NO_LIMITS,
    n_probes=[0, -1, 1.5, True, math.nan, 2**31],
    epsilon=[0, -1, math.nan, math.inf, "1"],
    max_distance=[-1e-9, math.nan, math.inf, "1"],
    seed=[-1, 2**64, 0.0, None],
    selector=[*NO_WORDS, "Greedy"],
    search=[*NO_WORDS, ["tables"]],
    variant=NO_WORDS,
    sampling=NO_WORDS,
    rounding=NO_WORDS,
)
def test_invalid_query_parameters_are_refused_by_field(field: str, value: Any) -> None:  # noqa: ANN401  # any
    with refused(field, field):
        QueryParameters(**{field: value})


@dataclass
class Tables:
    """Parameters whose default is outside the range of its check."""

    count: int = 0


def test_only_values_that_differ_from_the_default_are_checked() -> None:
    """Checks of the defaults would slow down every query."""
    check_fields = FieldChecks(count=whole(1, 5))
    check_fields(Tables())
    check_fields(Tables(5))
    with refused("count", "count"):
        check_fields(Tables(6))


@wrong(
    n_tables=[0, -1, 257, True, 1.0],
    n_bits=[0, -1, 25, True, 1.0],
    n_components=[0, -1, 65_537, True, 1.0],
    target_recall=[0, -0.1, 1.001, math.nan, "0.9", True, None],
    seed=[-1, 2**64, 0.0, None],
    centred=["no", 1, None],
    metric=["", "angular"],
    hash_family=[""],
    hyperplanes=[""],
    zero_vectors=[""],
)
def test_invalid_build_parameters_are_refused_by_field(field: str, value: Any) -> None:  # noqa: ANN401  # any
    with refused(field, field):
        BuildParameters(**{field: value})


@pytest.mark.parametrize(
    ("table", "field", "options"),
    [
        (BuildParameters, "n_tables", {"hash_family": "cells", "n_tables": 4}),
        (BuildParameters, "n_bits", {"hash_family": "cells", "n_bits": 8}),
        (BuildParameters, "centred", {"metric": "inner_product", "centred": True}),
        (QueryParameters, "epsilon", {"epsilon": 0.5, "hash_limit": 100}),
    ],
)
def test_contradicting_parameters_are_refused_by_field(
    table: type, field: str, options: dict[str, Any]
) -> None:
    with refused(field, field):
        table(**options)


def test_numpy_numbers_become_python_numbers() -> None:
    numbers: dict[str, Any] = {"k": np.int32(5), "diversity": np.float32(0.5)}
    numbers |= {"hash_limit": np.uint64(50), "max_distance": np.float64(1.5)}
    parameters = QueryParameters(**numbers, seed=np.uint64(2**64 - 1))  # type: ignore[arg-type]
    effective = parameters.resolve(1000, "tables")
    assert (effective.k, effective.diversity, effective.hash_limit) == (5, 0.5, 50)
    assert (effective.max_distance, effective.seed) == (1.5, 2**64 - 1)
    assert type(effective.k) is type(effective.hash_limit) is type(effective.seed) is int
    assert type(effective.diversity) is type(effective.max_distance) is float
    values: Any = {"selector": np.str_("mmr"), "k": np.int64(7), "diversity": np.float32(0.5)}
    word_parameters = QueryParameters(**values)
    assert [
        type(word_parameters.selector),
        type(word_parameters.k),
        type(word_parameters.diversity),
    ] == [str, int, float]
    assert word_parameters == QueryParameters(selector="mmr", k=7, diversity=0.5)


def test_build_parameters_can_be_written_as_json() -> None:
    """A manifest is JSON, so parameters given as numpy numbers become Python numbers."""
    numbers: dict[str, Any] = {"n_tables": np.int8(100), "n_bits": np.uint16(8)}
    numbers |= {"n_components": np.int64(4), "seed": np.uint64(2**64 - 1)}
    parameters = BuildParameters(**numbers, target_recall=np.float32(0.5))  # type: ignore[arg-type]
    assert json.loads(json.dumps(asdict(parameters))) == asdict(parameters)
    small = QueryParameters(k=np.int8(100))  # type: ignore[arg-type]
    assert small.resolve(10_000, "scan").candidates_limit == 1000


def test_default_query_parameters() -> None:
    """There are max(200, 10 k) candidates, and four times as many points are hashed."""
    effective = QueryParameters().resolve(1_000_000, "tables")
    assert (effective.k, effective.diversity) == (10, 0.15)
    assert (effective.selector, effective.variant) == ("greedy", "marginal")
    assert (effective.candidates_limit, effective.hash_limit) == (200, 800)
    assert (effective.search, effective.sampling, effective.seed) == ("tables", "uniform", 0)
    assert effective.max_distance is None
    sparse = QueryParameters().resolve(1_000_000, "tables", 48_000, "sparse")
    assert (sparse.candidates_limit, sparse.hash_limit) == (200, 1000)
    larger = QueryParameters(k=100).resolve(1_000_000, "scan")
    assert (larger.candidates_limit, larger.hash_limit) == (1000, 4000)
    labels = QueryParameters(k=5).resolve(1_000_000, "scan", sought="labels")
    assert (labels.candidates_limit, labels.hash_limit) == (50, 400)
    many = QueryParameters(k=20).resolve(1_000_000, "scan", sought="labels")
    assert (many.candidates_limit, many.hash_limit) == (200, 800)


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0, 3.0, 1e300])
@pytest.mark.parametrize("rows", [1, 35_000, 1_000_000])
def test_epsilon_gives_the_hash_limit(epsilon: float, rows: int) -> None:
    """The hash limit is Charikar's 2 n^(1/(1+epsilon)), but at least k."""
    effective = QueryParameters(epsilon=epsilon).resolve(rows, "tables")
    assert effective.hash_limit == max(10, math.ceil(2 * rows ** (1 / (1 + epsilon))))


@pytest.mark.parametrize(
    ("rows", "hash_limit", "search"),
    [(1000, 0, "exact"), (1000, 1000, "exact"), (1000, 999, "scan"), (10, None, "exact")],
)
def test_auto_is_exact_if_the_limits_include_every_point(
    rows: int, hash_limit: int | None, search: str
) -> None:
    assert QueryParameters(hash_limit=hash_limit).resolve(rows, "scan").search == search


@pytest.mark.parametrize("search", ["tables", "scan", "scan_hamming", "exact"])
def test_a_named_search_is_kept(search: str) -> None:
    for hash_limit in (0, 50, 10_000):
        parameters = QueryParameters(search=search, hash_limit=hash_limit)  # type: ignore[arg-type]
        assert parameters.resolve(1000, "scan").search == search


@pytest.mark.parametrize(("n_probes", "expected"), [(None, 8), (1, 1), (9, 9), (40, 40), (41, 40)])
def test_n_probes_is_tuned_or_given_up_to_the_maximum(n_probes: int | None, expected: int) -> None:
    """Searches other than `tables` ignore n_probes without a warning."""
    for search in ("tables", "auto"):
        parameters = QueryParameters(n_probes=n_probes, search=search)
        assert parameters.resolve(10_000, "tables", probes=(8, 40)).n_probes == expected
        assert parameters.warnings() == ()
    assert parameters.resolve(10_000, "scan", probes=(8, 40)).n_probes == 0
    exact = QueryParameters(n_probes=n_probes, search="exact")
    assert exact.resolve(10_000, "tables", probes=(8, 40)).n_probes == 0
    assert exact.warnings() == ()


@pytest.mark.parametrize("field", ["hash_limit", "candidates_limit"])
def test_a_limit_equal_to_k_causes_a_warning(field: str) -> None:
    of_limit: dict[int, dict[str, Any]] = {limit: {field: limit} for limit in (0, 10, 11)}
    (warning,) = QueryParameters(**of_limit[10]).warnings()
    assert (warning.code, warning.field) == (f"{field.upper()}_EQUALS_K", field)
    assert QueryParameters(**of_limit[11]).warnings() == ()
    assert QueryParameters(**of_limit[0]).warnings() == ()


@pytest.mark.parametrize("search", ["auto", "tables", "scan", "scan_hamming", "exact"])
def test_k_times_candidates_is_bounded_whatever_the_search(search: str) -> None:
    rows, limit = 1_000_000, LIMITS["k_times_candidates_max"]
    without_limits = QueryParameters(k=1000, candidates_limit=0, hash_limit=0, search=search)  # type: ignore[arg-type]
    with refused("candidates_limit"):
        without_limits.resolve(rows, "tables")
    assert without_limits.resolve(limit // 1000, "tables").k == 1000
    with_hash_limit = QueryParameters(k=1000, candidates_limit=0, search=search)  # type: ignore[arg-type]
    assert with_hash_limit.resolve(rows, "tables").hash_limit == 40_000


def test_the_work_of_a_selector_is_bounded_by_dimensions() -> None:
    """One row takes at most a few seconds. `nearest` compares no pairs, so it has no limit."""
    options: dict[str, Any] = {"k": 10_000, "candidates_limit": 10_000}
    assert QueryParameters(**options).resolve(10**6, "scan", 256).k == 10_000
    with refused("candidates_limit", "at 1024 dimensions"):
        QueryParameters(**options).resolve(10**6, "scan", 1024)
    assert QueryParameters(**options, selector="nearest").resolve(10**6, "scan", 1024).k == 10_000


def test_the_work_on_sparse_candidates_depends_on_stored_values() -> None:
    """Points with 400 values each count like dense points of 400 dimensions."""
    options: dict[str, Any] = {"k": 30, "candidates_limit": 0, "hash_limit": 0}
    for selector in get_args(Selector):
        parameters = QueryParameters(**options, selector=selector)
        parameters.resolve(35_000, "scan", 48_000, "sparse", 400 * 35_000)
        if selector != "nearest":
            with pytest.raises(InvalidArgumentError, match="at 48000 dimensions"):
                parameters.resolve(35_000, "scan", 48_000)
    with pytest.raises(InvalidArgumentError, match="at 40000 numbers each"):
        QueryParameters(**options).resolve(35_000, "scan", 48_000, "sparse", 40_000 * 35_000)


def test_dpp_and_qp_relax_have_lower_limits() -> None:
    """`dpp` stores one row per pick, and `qp_relax` uses all candidates even for k = 1."""
    most = LIMITS["dpp_k_times_candidates_max"]
    options: dict[str, Any] = {"k": 1000, "selector": "dpp"}
    parameters = QueryParameters(**options, candidates_limit=most // 1000)
    assert parameters.resolve(10**6, "scan").candidates_limit == most // 1000
    with pytest.raises(InvalidArgumentError, match="k times the candidates"):
        QueryParameters(**options, candidates_limit=most // 1000 + 1).resolve(10**6, "scan")
    defaults = QueryParameters(**options, keep_duplicates=True).resolve(10**6, "scan")
    assert defaults.candidates_limit == most // 1000
    # The request also compares all pairs of candidates to find near-copies.
    effective = QueryParameters(**options).resolve(10**6, "scan")
    assert effective.candidates_limit == LIMITS["compared_candidates_max"]
    single: dict[str, Any] = {"k": 1, "candidates_limit": 0, "hash_limit": 0}
    assert QueryParameters(**single).resolve(4_000_000, "scan", 256).k == 1
    with pytest.raises(InvalidArgumentError, match="k times the candidates"):
        QueryParameters(**single, selector="qp_relax").resolve(4_000_000, "scan", 256)


def test_minus_zero_becomes_zero() -> None:
    """A parameter of -0.0 becomes 0.0, so equal parameters are also printed equally."""
    assert str(QueryParameters(diversity=-0.0, max_distance=-0.0)).count("-0.0") == 0


@given(
    k=st.integers(1, 10_000),
    candidates_limit=st.none() | st.integers(0, 2**31),
    hash_limit=st.none() | st.integers(0, 2**31),
    rows=st.integers(1, 2**31 - 1),
    search=st.sampled_from(["auto", "tables", "scan", "scan_hamming", "exact"]),
)
def test_resolved_parameters_are_within_the_limits(
    k: int, candidates_limit: int | None, hash_limit: int | None, rows: int, search: Search
) -> None:
    limits: dict[str, Any] = {"candidates_limit": candidates_limit, "hash_limit": hash_limit}
    try:
        effective = QueryParameters(k=k, search=search, **limits).resolve(rows, "tables")
    except DivgrpcError:
        return
    for value in (effective.candidates_limit, effective.hash_limit):
        assert value == 0 or value >= k
    point_count = min(effective.candidates_limit or rows, effective.hash_limit or rows, rows)
    assert k * point_count <= LIMITS["k_times_candidates_max"]


@given(k=st.integers(1, 10_000), rows=st.integers(1, 2**31 - 1))
def test_default_limits_accept_every_k(k: int, rows: int) -> None:
    assert QueryParameters(k=k).resolve(rows, "tables").k == k
