"""Rows that once led a compiled loop astray: each is refused, or answered as it should be."""

from typing import Any

import numpy as np
import pytest
from scipy import sparse

from divgrpc.builder.builder import IndexBuilder
from divgrpc.errors import InvalidArgumentError
from divgrpc.index import Index
from divgrpc.parameters import BuildParameters
from divgrpc.storage.writers import MemoryStore
from divgrpc.types import FloatArray, HashFamily, Metric, Variant
from divgrpc.vectors import LENGTH_MAX, SparseRows
from reference import kernels


def drawn(rows: int, dims: int) -> FloatArray:
    """Draw normal numbers."""
    return np.random.default_rng(3).standard_normal((rows, dims)).astype(np.float32)


@pytest.mark.parametrize("column", [12, 1_000_000_000, -5])
def test_scipy_matrices_are_not_trusted(column: int) -> None:
    """Their columns are what the caller's code left in the array."""
    index = Index.build(drawn(50, 12))
    matrix = sparse.csr_array(drawn(2, 12))
    matrix.indices[-1] = column
    with pytest.raises(InvalidArgumentError, match="queries is malformed"):
        index.query(matrix)
    with pytest.raises(InvalidArgumentError, match="vectors is malformed"):
        IndexBuilder(MemoryStore(), BuildParameters()).append(matrix)


@pytest.mark.parametrize(
    ("part", "wrong"),
    [
        ("indptr", [0, 1.5]),
        ("indices", [[0]]),
        ("indices", [0.5]),
        ("values", ["a"]),
        ("values", [1j]),
        ("values", [[1.0]]),
    ],
)
def test_parts_of_sparse_rows_are_rows_of_numbers(part: str, wrong: list[Any]) -> None:
    """Nothing is rounded, flattened or cut to fit."""
    parts: dict[str, Any] = {"indptr": [0, 1], "indices": [0], "values": [1.0], part: wrong}
    rows = SparseRows(**{name: np.array(given) for name, given in parts.items()}, dims=4)
    with pytest.raises(InvalidArgumentError) as caught:
        Index.build(drawn(20, 4)).query(rows)
    assert caught.value.field == f"queries.{part}"


def test_masked_entries_are_refused() -> None:
    """What is masked is no number."""
    masked: Any = np.ma.masked_greater(drawn(20, 4), 1)
    with pytest.raises(InvalidArgumentError, match="masked"):
        Index.build(masked)


@pytest.mark.parametrize("metric", ["euclidean", "inner_product"])
@pytest.mark.parametrize("family", ["lsh_div", "lsh_sdiv"])
def test_the_longest_points_have_finite_estimates_and_planes(
    metric: Metric, family: HashFamily
) -> None:
    """A sum that overflows is no number, and a scan would look for it in vain."""
    points = np.full((3_000, 1), 0.99 * LENGTH_MAX)
    points[::10] *= -1
    index = Index.build(points, metric=metric, hash_family=family)
    assert np.isfinite(index.engine._arrays["hyperplanes"]).all()
    assert np.isfinite(kernels.unpack_terms(index.engine._arrays["scan_terms"])).all()
    result = index.query([[0.0], [LENGTH_MAX / 2]], search="scan", k=50)
    assert (result.counts == 50).all()
    assert all(len(set(ids)) == 50 for ids in result.ids.tolist())


@pytest.mark.parametrize("variant", ["corrected", "marginal"])
def test_a_dial_that_rounds_to_relevance_alone_picks_every_point_once(variant: Variant) -> None:
    """1 - 1e-9 is 1 in float32."""
    index = Index.build(drawn(400, 8) * 1e13, metric="euclidean")
    asked: dict[str, Any] = {"search": "exact", "hash_limit": 0, "candidates_limit": 0}
    result = index.query(drawn(1, 8), k=300, diversity=1e-9, variant=variant, **asked)
    assert len(set(result.ids[0].tolist())) == 300


@pytest.mark.parametrize("family", ["lsh_div", "lsh_sdiv", "pca_hash"])
def test_estimates_of_a_point_do_not_depend_on_the_others_in_its_block(family: HashFamily) -> None:
    """Points of few columns, by themselves in the last block of a build, are as any others."""
    points = drawn(9_000, 40)
    points[8_192:, 2:] = 0
    order = np.random.default_rng(0).permutation(len(points))
    asked: dict[str, Any] = {"metric": "inner_product", "n_components": 20, "hash_family": family}
    packed = Index.build(points, **asked).engine._arrays["scan_terms"]
    mixed = Index.build(points[order], **asked).engine._arrays["scan_terms"]
    terms, mixed = map(kernels.unpack_terms, (packed, mixed))
    # Components of another order of summation are others in their last digits.
    assert np.allclose(terms[:, order], mixed, rtol=0.05, atol=1e-3)


def test_any_finite_distance_may_be_the_limit(recwarn: pytest.WarningsRecorder) -> None:
    """One that float32 cannot hold is no limit, and nobody is warned of it."""
    index = Index.build(drawn(20, 4))
    assert index.query(drawn(1, 4), max_distance=1e300).counts[0] == 10
    assert not recwarn.list
