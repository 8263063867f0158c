"""Queries that are no direction of the index's space."""

import numpy as np
import numpy.typing as npt
import pytest

from divgrpc.errors import InvalidArgumentError
from divgrpc.index import Index
from divgrpc.types import FloatArray

NAN = float("nan")
INF = float("inf")


def normal(rows: int = 20, dims: int = 4) -> FloatArray:
    return np.random.default_rng(0).standard_normal((rows, dims)).astype(np.float32)


def spoiled(row: int, value: float) -> FloatArray:
    """Return good queries but for one entry of one row; 0 makes the whole row zero."""
    queries = normal()
    queries[row, ... if value == 0 else 2] = value
    return queries


@pytest.mark.parametrize(
    ("queries", "pattern"),
    [
        (spoiled(2, NAN), "row 2 "),
        (spoiled(3, -INF), "row 3 "),
        (spoiled(5, 0), "row 5 .*zero"),
        (np.zeros(4), "row 0 .*zero"),
        (normal(dims=5), "4 columns, got 5"),
        (normal(1)[0, :3], "4 columns, got 3"),
        (np.empty((0, 4)), "1 to 10000 rows"),
        (np.empty(0), "columns"),
        (np.ones((10_001, 4)), "1 to 10000 rows"),
        (np.ones((1, 1, 4)), "axes"),
        ("abcd", "numbers"),
        (None, "numbers"),
        ([[1, 2, 3, "x"]], "numbers"),
        (3.5, "columns|axes"),
    ],
)
def test_wrong_queries_are_refused(queries: npt.ArrayLike, pattern: str) -> None:
    """A query that is no direction of the index's space is told what is wrong, and where."""
    index = Index.build(normal(50))
    with pytest.raises(InvalidArgumentError, match=pattern) as caught:
        index.query(queries)
    assert caught.value.field == "queries"
