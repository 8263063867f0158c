"""Hash functions that are fitted to points."""

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from divgrpc.builder.hash_functions import fit
from divgrpc.parameters import BuildParameters
from divgrpc.types import HashFamily


@pytest.mark.parametrize(
    ("family", "rows", "dims"),
    [("cells", 60_000, 8), ("cells", 3_000, 700), ("pca_hash", 900, 700)],
)
def test_they_have_the_same_bytes_on_any_number_of_cores(
    family: HashFamily, rows: int, dims: int
) -> None:
    points = np.random.default_rng(2).standard_normal((rows, dims)).astype(np.float32)
    parameters = BuildParameters(hash_family=family, centred=True)
    results = []
    for cores in (1, 2):
        with threadpool_limits(cores, user_api="blas"):
            results.append(fit(points, parameters, lambda *_: None))
    for name, array in results[0].arrays.items():
        assert array.tobytes() == results[1].arrays[name].tobytes(), name
