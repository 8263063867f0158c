"""Hash functions that are fitted once, with which each shard encodes its own points."""

from typing import Any

import numpy as np
import pytest
from scipy import sparse

from divgrpc import Index
from divgrpc.builder.assembly import requested_parameters
from divgrpc.builder.encoder import encode
from divgrpc.builder.hash_functions import fit
from divgrpc.search.arrays import points_of
from divgrpc.sharding.cutting import cut, homes_of
from divgrpc.storage.generations import Generation
from divgrpc.storage.shards import is_shared
from divgrpc.storage.writers import MemoryStore
from support.data.served_index import random_points

ROWS = 3_000
POINTS = random_points(ROWS, dims=20, seed=4)
RNG = np.random.default_rng(5)
SPARSE = sparse.random_array((ROWS, 60), density=0.3, format="csr", dtype=np.float32, rng=RNG)

KINDS: dict[str, dict[str, Any]] = {
    "cells": {"hash_family": "cells"},
    "cells of distances": {"hash_family": "cells", "metric": "euclidean", "centred": True},
    "cells of products": {"hash_family": "cells", "metric": "inner_product"},
    "tables": {"hash_family": "lsh_div"},
    "components": {"hash_family": "lsh_sdiv", "metric": "inner_product", "n_components": 8},
    "centred tables": {"hash_family": "pca_hash", "centred": True},
    "sparse": {"vectors": SPARSE, "hash_family": "cells"},
    "sparse tables": {"vectors": SPARSE, "hash_family": "lsh_div", "metric": "euclidean"},
    "few": {"vectors": POINTS[:3], "hash_family": "lsh_div"},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shards", [1, 3, 7])
def test_shards_encode_their_points_as_the_whole_index_does(kind: str, shards: int) -> None:
    """Byte for byte. No shard reads the points of another one; some of "few" have none."""
    options = {"vectors": POINTS, **KINDS[kind]}
    engine = Index.build(options.pop("vectors"), **options).engine
    points = points_of(engine.arrays, engine.dims)
    request = requested_parameters(engine.manifest)
    functions = fit(points, request, lambda *_: None)
    assert functions.parameters == engine.manifest.parameters
    assert functions.code_bits == engine.manifest.code_bits
    for name, array in functions.arrays.items():
        assert array.tobytes() == engine.arrays[name].tobytes()
    whole = Generation(engine.manifest, engine.arrays)
    homes = homes_of({"ids": np.arange(engine.rows), **engine.arrays}, shards)
    encoded: set[str] = set()
    for shard, part in enumerate(cut(whole, shards).parts):
        rows = points[np.flatnonzero(homes == shard)]
        arrays = encode(MemoryStore(), functions, rows, lambda *_: None)
        for name, array in arrays.items():
            assert (array.dtype, array.shape) == (part.arrays[name].dtype, part.arrays[name].shape)
            assert array.tobytes() == part.arrays[name].tobytes(), name
        encoded |= arrays.keys()
    # These arrays are copies of the upload, or follow from it without hash functions.
    uploads = {"vectors", "indptr", "indices", "values", "ids", "length_bounds"}
    expected = {name for name in engine.arrays if not is_shared(name)} - uploads
    assert expected - {"cell_starts"} <= encoded
