"""Picks that one kernel makes have the bytes of those that `pick_from` makes in several steps."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from divgrpc import diversify
from divgrpc.diversifier import pick_from, prepare_candidates
from divgrpc.errors import InvalidArgumentError
from divgrpc.parameters.diversify import DiversifyParameters
from divgrpc.search.at_once import pick_at_once
from divgrpc.types import Diversification, FloatArray, Selector, Variant

SHAPES = ["plain", "equal", "zeros", "long", "near", "grid"]
RULES: list[tuple[Selector, Variant]] = [
    ("nearest", "printed"),
    ("mmr", "marginal"),
    ("dpp", "marginal"),
    *(("greedy", variant) for variant in ("marginal", "corrected", "printed")),
]
DIALS = [0.0, 1e-9, 0.15, 0.3, 0.5, 0.7, 0.99, 1.0]


def drawn(rng: np.random.Generator, shape: str, count: int, dims: int) -> FloatArray:
    """Draw candidates, some of them equal, of very different lengths, or close to each other."""
    vectors = rng.standard_normal((count, dims))
    if shape == "equal":
        vectors[rng.integers(count, size=count // 2)] = vectors[0]
    elif shape == "zeros":
        vectors[rng.integers(count, size=(count + 3) // 4)] = 0
    elif shape == "long":
        vectors *= 10.0 ** rng.integers(-20, 14, (count, 1)) / dims
    elif shape == "near":
        vectors = vectors[:1] + 1e-4 * vectors
    elif shape == "grid":
        vectors = np.round(vectors)
    return vectors.astype(np.float32)


def check_same(picks: Diversification | None, expected: Diversification) -> None:
    assert picks is not None
    for name in ("places", "scores", "selection_scores", "collapsed_places", "collapsed_offsets"):
        array, twin = getattr(picks, name), getattr(expected, name)
        assert (array.dtype, array.tobytes()) == (twin.dtype, twin.tobytes()), name
    for name in ("diversity", "dial_reason", "duplicates", "duality_gap"):
        assert getattr(picks, name) == getattr(expected, name)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.sampled_from([1, 2, 3, 60, 130, 300]),
    dims=st.sampled_from([1, 3, 64, 130, 256]),
    shape=st.sampled_from(SHAPES),
    rule=st.sampled_from(RULES),
    dial=st.sampled_from(DIALS),
    ties=st.booleans(),
)
def test_picks_by_scores_have_the_bytes_of_pick_from(
    *,
    seed: int,
    count: int,
    dims: int,
    shape: str,
    rule: tuple[Selector, Variant],
    dial: float,
    ties: bool,
) -> None:
    rng = np.random.default_rng(seed)
    vectors = drawn(rng, shape, count, dims)
    scores = rng.integers(0, 3, count).astype(np.float64) if ties else rng.standard_normal(count)
    selector, variant = rule
    parameters = DiversifyParameters(
        k=int(rng.integers(1, min(count, 25) + 1)), selector=selector, variant=variant,
        diversity=dial, metric=rng.choice(["cosine", "inner_product"]),
    )  # fmt: skip
    picks = pick_at_once(vectors, scores, None, parameters)
    check_same(picks, pick_from(prepare_candidates(vectors, scores, parameters), parameters))


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.sampled_from([1, 2, 3, 60, 300]),
    dims=st.sampled_from([1, 3, 64, 256]),
    shape=st.sampled_from(["plain", "equal", "near", "grid"]),
    dial=st.sampled_from(DIALS[1:]),
    scale=st.sampled_from([1e-3, 1.0, 1e12]),
)
def test_mmr_by_a_query_has_the_bytes_of_pick_from(
    *, seed: int, count: int, dims: int, shape: str, dial: float, scale: float
) -> None:
    rng = np.random.default_rng(seed)
    vectors = drawn(rng, shape, count, dims)
    vectors[~vectors.any(axis=1)] = 1
    vectors *= np.float32(scale)
    query = vectors[0] if rng.random() < 0.5 else rng.standard_normal(dims).astype(np.float32)
    k = int(rng.integers(1, min(count, 25) + 1))
    parameters = DiversifyParameters(k=k, selector="mmr", diversity=dial)
    expected = pick_from(prepare_candidates(vectors, None, parameters, query=query), parameters)
    if np.float32(1 - dial) < 1:
        check_same(pick_at_once(vectors, None, query, parameters), expected)
    check_same(diversify(vectors, query=query, k=k, selector="mmr", diversity=dial), expected)


@pytest.mark.parametrize("scale", [1e-30, 1e20])
def test_lengths_whose_squares_do_not_fit_are_left_to_pick_from(scale: float) -> None:
    vectors = np.eye(4, dtype=np.float32) + 1
    vectors[2] *= np.float32(scale)
    parameters, query = DiversifyParameters(k=2, selector="mmr"), vectors[0].copy()
    assert pick_at_once(vectors, None, query, parameters) is None
    expected = pick_from(prepare_candidates(vectors, None, parameters, query=query), parameters)
    check_same(diversify(vectors, query=query, k=2, selector="mmr"), expected)


@pytest.mark.parametrize(
    "options",
    [
        {"metric": "euclidean"},
        {"selector": "max_sum"},
        {"diversity": "auto"},
        {"lose_at_most": 0.1},
        {"duplicate_threshold": 0.9},
    ],
)
def test_other_parameters_are_left_to_pick_from(options: dict[str, Any]) -> None:
    vectors, parameters = np.eye(4, dtype=np.float32), DiversifyParameters(k=2, **options)
    assert pick_at_once(vectors, np.arange(4.0), None, parameters) is None


@pytest.mark.parametrize("selector", ["nearest", "mmr", "greedy", "dpp"])
@pytest.mark.parametrize(("row", "column"), [(0, 0), (199, 150)])
def test_a_candidate_that_is_not_finite_is_refused(
    selector: Selector, row: int, column: int
) -> None:
    vectors = np.ones((200, 160), np.float32)
    vectors[row, column] = np.nan
    for options in ({"scores": np.arange(200)}, {"query": vectors[1]}):
        with pytest.raises(InvalidArgumentError, match=rf"row {row} .*column {column} holds nan"):
            diversify(vectors, selector=selector, **options)
