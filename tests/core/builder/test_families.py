"""The trials by which `auto` chooses a hash family agree with a slow reference count."""

import re
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest
from scipy import sparse

from divgrpc.builder.assembly import choose_family
from divgrpc.hashing.hyperplanes import CELLS_ROWS_MIN
from divgrpc.index import Index
from divgrpc.parameters import BuildParameters
from divgrpc.types import Choice, FloatArray, HashFamily, Points
from divgrpc.vectors import Rows, SparseRows

# The trial uses all points because there are so few. CANDIDATES and HASH_LIMIT are the limits of a
# default query.
ROWS, QUERIES, DIMS, COMPONENTS = 2_200, 60, 384, 16
CANDIDATES, HASH_LIMIT = 200, 800
# A family is preferred only if its share of nearest candidates is greater by more than MARGIN.
MARGIN = 0.005

Spread = Literal["flat", "round"]


def unit(rows: npt.NDArray[np.floating[Any]]) -> FloatArray:
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32)


def drawn(rows: int, spread: Spread, kind: Points, *, seed: int = 0) -> FloatArray:
    """Return unit rows (rows, DIMS), mostly zeros if sparse; flat rows lie near a subspace."""
    rng = np.random.default_rng(seed)
    scale = np.full(DIMS, 1.0)
    if spread == "flat":
        scale[COMPONENTS:] = 0.3
    points = rng.standard_normal((rows, DIMS)) * scale
    if kind == "sparse":
        mask = rng.random((rows, DIMS)) < (0.5 if spread == "flat" else 0.1)
        mask[np.arange(rows), rng.integers(0, COMPONENTS, rows)] = True
        points = points * mask
    return unit(points)


def as_kind(rows: FloatArray, kind: Points) -> Rows:
    return SparseRows.of(sparse.csr_array(rows)) if kind == "sparse" else rows


def share_by_hand(points: FloatArray, queries: FloatArray, kind: Points, family: Any) -> float:  # noqa: ANN401  # a HashFamily
    """Return the mean share of the nearest candidates that a scan hashes; ties count as nearest."""
    form: Any = sparse.csr_array if kind == "sparse" else np.asarray
    index = Index.build(form(points), hash_family=family, n_components=COMPONENTS)
    id_lists = index.query(
        form(queries),
        search="scan",
        hash_limit=HASH_LIMIT,
        k=HASH_LIMIT,
        candidates_limit=0,
        diversity=0,
    ).ids
    shares: list[float] = []
    for query, ids in zip(queries.astype(np.float64), id_lists, strict=True):
        products = points.astype(np.float64) @ query
        least = sorted(products, reverse=True)[CANDIDATES - 1]
        near = sum(
            bool(products[point] >= least - 1e-6 * abs(least)) for point in ids if point >= 0
        )
        shares.append(min(near, CANDIDATES) / CANDIDATES)
    return sum(shares) / len(shares)


def shares_of(reason: str) -> tuple[float, float]:
    """Return the shares of lsh_div and lsh_sdiv that the text of a reason states."""
    plain, inside = re.findall(r"0\.\d{3}|1\.000", reason)
    return float(plain), float(inside)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize(("spread", "better"), [("flat", "lsh_sdiv"), ("round", "lsh_div")])
def test_the_family_with_the_greater_share_is_chosen(
    kind: Points, spread: Spread, better: HashFamily
) -> None:
    rows = drawn(ROWS + QUERIES, spread, kind)
    points, queries = rows[:ROWS], rows[ROWS:]
    parameters = BuildParameters(n_components=COMPONENTS)
    family, reason = choose_family(parameters, as_kind(points, kind), as_kind(queries, kind))
    assert family == better
    assert f"of {ROWS:,} points a scan finds" in reason
    for name, share in zip(("lsh_div", "lsh_sdiv"), shares_of(reason), strict=True):
        assert share == pytest.approx(share_by_hand(points, queries, kind, name), abs=6e-4)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("flatness", [0.3, 0.5, 0.7, 0.9])
def test_the_choice_agrees_with_the_reported_shares(kind: Points, flatness: float) -> None:
    flat, round_ = (drawn(ROWS, spread, kind, seed=3) for spread in ("flat", "round"))
    points = as_kind(unit(flatness * flat + (1 - flatness) * round_), kind)
    family, reason = choose_family(BuildParameters(n_components=COMPONENTS), points, None)
    plain, inside = shares_of(reason)
    if abs(inside - plain - MARGIN) > 0.001:  # each is rounded to three places
        assert (family == "lsh_sdiv") == (inside > plain + MARGIN)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_trials_with_the_same_seed_are_equal(kind: Points) -> None:
    points = as_kind(drawn(6_000, "round", kind), kind)
    parameters = BuildParameters(n_components=COMPONENTS, seed=5)
    first = choose_family(parameters, points, None)
    assert choose_family(parameters, points, None) == first
    assert choose_family(BuildParameters(n_components=COMPONENTS, seed=6), points, None) != first


def test_a_build_uses_the_family_of_the_trial() -> None:
    points = drawn(ROWS, "flat", "dense")
    family, reason = choose_family(BuildParameters(n_components=COMPONENTS), points, None)
    manifest = Index.build(points, n_components=COMPONENTS).engine.manifest
    assert manifest.parameters.hash_family == family == "lsh_sdiv"
    assert Choice("hash_family", "lsh_sdiv", reason) in manifest.choices


def test_a_given_family_is_used_without_a_trial() -> None:
    points = drawn(ROWS, "flat", "dense")
    for name in ("lsh_div", "lsh_sdiv", "pca_hash", "cells"):
        assert choose_family(BuildParameters(hash_family=name), points, None) == (name, "")


@pytest.mark.parametrize(
    ("rows", "components", "start"),
    [(ROWS, DIMS, "all dimensions are hashed"), (1_999, COMPONENTS, "only 1,999 points")],
)
def test_no_trial_runs_if_families_cannot_differ(rows: int, components: int, start: str) -> None:
    points = drawn(rows, "flat", "dense")
    family, reason = choose_family(BuildParameters(n_components=components), points, None)
    assert family == "lsh_div"
    assert reason.startswith(start)


def test_cells_are_chosen_up_to_the_recall_they_reach() -> None:
    """Cells are chosen if searching a quarter of them reaches the target recall."""
    rng = np.random.default_rng(0)
    centres = 2 * rng.standard_normal((60, 24))
    rows = 2 * CELLS_ROWS_MIN
    points = unit(centres[rng.integers(0, 60, rows)] + rng.standard_normal((1, 24)))
    points = unit(points + 0.12 * rng.standard_normal(points.shape))
    family, reason = choose_family(BuildParameters(target_recall=0.5), points, None)
    assert family == "cells"
    (share,) = map(float, re.findall(r"0\.\d{3}|1\.000", reason))
    assert share >= 0.5
    assert choose_family(BuildParameters(target_recall=share - 0.01), points, None) == (
        family,
        reason,
    )
    if share + 0.002 < 1 - MARGIN:
        above = BuildParameters(target_recall=share + 0.002)
        assert choose_family(above, points, None)[0] != "cells"
    for tables in (BuildParameters(n_tables=4), BuildParameters(n_bits=9)):
        assert choose_family(tables, points, None)[0] != "cells"
    noise = unit(rng.standard_normal((rows, 64)))
    assert choose_family(BuildParameters(), noise, None)[0] != "cells"


@pytest.mark.parametrize(("spread", "is_clear"), [(0.1, True), (0.4, False)])
def test_fewer_points_are_put_in_cells_if_their_clusters_are_clear(
    spread: float, *, is_clear: bool
) -> None:
    rng = np.random.default_rng(0)
    centres = unit(rng.standard_normal((300, 64)))
    points = unit(
        centres[rng.integers(0, 300, CELLS_ROWS_MIN)]
        + spread * rng.standard_normal((CELLS_ROWS_MIN, 64))
    )
    low_target = BuildParameters(target_recall=0.1)
    assert (choose_family(low_target, points, None)[0] == "cells") == is_clear
    assert choose_family(low_target, points[:-1], None)[0] != "cells"
