"""Indexes whose points have attributes and payloads."""

from functools import cache

import numpy as np

from divgrpc.index import Index
from divgrpc.types import HashFamily, Metric


@cache
def with_attributes(
    *, texts: bool, family: HashFamily = "auto", metric: Metric = "cosine"
) -> Index:
    """Return an index of 400 points."""
    rng = np.random.default_rng(1)
    rows = 400
    brands = rng.integers(10, size=rows)
    numbers = rng.permutation(10**6)[:rows]
    return Index.build(
        rng.standard_normal((rows, 16)).astype(np.float32),
        ids=[f"item {number:x}" for number in numbers] if texts else numbers,
        hash_family=family,
        metric=metric,
        attributes={
            "brand": [f"brand {number}" if number < 9 else None for number in brands],
            "price": rng.random(rows),
            "tags": [["red", "blue"][: number % 3] for number in range(rows)],
            "new": [number % 5 == 0 for number in range(rows)],
        },
        payloads=[b"x" * (number % 7) if number % 4 else None for number in range(rows)],
    )
