"""Indexes of many kinds, small ones: what `Index.build` takes for each."""

from typing import Any

import numpy as np
from scipy import sparse

from support.data.served_index import random_points

ROWS = 700
POINTS = random_points(ROWS, dims=12, seed=4)
RNG = np.random.default_rng(5)
IDS = RNG.permutation(10 * ROWS)[:ROWS]
TEXTS = [f"point {number}" for number in IDS]
WORDS = ["red", "green", "blue", ""]
ATTRIBUTES = {
    "colour": [WORDS[number % 4] for number in IDS],
    "tags": [[WORDS[n % 3] for n in range(number % 4)] for number in IDS],
    "price": RNG.random(ROWS),
    "year": IDS % 50,
}
PAYLOADS = [b"x" * (number % 7) for number in IDS]
LABELS = sparse.csr_array(RNG.random((ROWS, 15)) < 0.2)
SPARSE = sparse.random_array((ROWS, 80), density=0.1, format="csr", dtype=np.float32, rng=RNG)
WITH_ZEROS = np.where(RNG.random((ROWS, 1)) < 0.1, np.float32(0), POINTS)
# All rows of the first blocks of a build are skipped.
LATE = np.where(np.arange(ROWS)[:, None] < ROWS // 3, np.float32(0), POINTS)

# With the points of another kind, "vectors".
KINDS: dict[str, dict[str, Any]] = {
    "tables": {"hash_family": "lsh_div"},
    "cells": {"hash_family": "cells", "ids": IDS},
    "lengths": {"hash_family": "lsh_sdiv", "metric": "inner_product", "ids": np.sort(IDS)},
    "cells of lengths": {"hash_family": "cells", "metric": "inner_product", "ids": IDS},
    "distances": {"hash_family": "cells", "metric": "euclidean"},
    "texts": {"ids": TEXTS, "attributes": ATTRIBUTES, "payloads": PAYLOADS},
    "topics": {"ids": IDS, "categories": IDS % 5, "subtopics": IDS % 11},
    "labels": {"ids": IDS, "labels": LABELS, "label_model": "leml"},
    "sparse": {"vectors": SPARSE, "ids": IDS, "attributes": ATTRIBUTES},
    "sparse cells": {"vectors": SPARSE, "hash_family": "cells", "metric": "euclidean"},
    "components": {"hash_family": "pca_hash", "centred": True, "ids": IDS},
    "zeros": {"vectors": WITH_ZEROS, "zero_vectors": "skip", "attributes": ATTRIBUTES},
    "late": {"vectors": LATE, "zero_vectors": "skip", "ids": TEXTS},
    "few": {"vectors": POINTS[:3]},
}
