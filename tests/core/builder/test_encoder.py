"""Points that others than the builder encode, in blocks."""

import errno
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from scipy import sparse

from divgrpc import Index
from divgrpc.builder import encoder
from divgrpc.builder.builder import IndexBuilder
from divgrpc.builder.encoder import EncodedRows
from divgrpc.builder.hash_functions import HashFunctions
from divgrpc.parameters import BuildParameters
from divgrpc.sharding.divided_build import DividedBuild
from divgrpc.sharding.staged_arrays import is_offered
from divgrpc.sharding.staged_points import (
    OFFER,
    StagedPoints,
    offered,
    pack_block,
    unpack_encoded,
)
from divgrpc.storage.generations import staging
from divgrpc.vectors import Rows
from support.data.divided_indexes import differing_arrays
from support.data.served_index import random_points

ROWS = 1_500
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
    "empty rows": {"vectors": 0 * SPARSE, "hash_family": "lsh_div", "metric": "euclidean"},
    "few": {"vectors": POINTS[:3], "hash_family": "lsh_div"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_who_has_the_staging_folder_encodes_the_same_bytes(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks may come in any order."""
    options = {"vectors": POINTS, **KINDS[kind]}
    vectors = options.pop("vectors")
    whole = Index.build(vectors, **options).engine
    monkeypatch.setattr(encoder, "_BLOCK_NUMBERS", 2**12)
    counts: list[int] = []

    def encode_backwards(
        folder: Path, functions: HashFunctions, points: Rows, blocks: Sequence[range]
    ) -> Iterator[tuple[range, EncodedRows]]:
        counts.append(len(blocks))
        with offered(folder, stage, functions, points):
            staged = StagedPoints(folder)
            for block in reversed(blocks):
                message = pack_block(folder.name, block)
                yield block, unpack_encoded(staged.answer(message))
        assert not is_offered(folder, OFFER)

    with staging(tmp_path / "points", replace=False) as stage:
        division = DividedBuild(stage, 2)
        division.encode_in = lambda folder: partial(encode_backwards, folder)
        builder = IndexBuilder(stage, BuildParameters(**options), points=division)
        builder.append_all(vectors)
        builder.build()
    assert counts[0] > 1 or len(whole.arrays["codes"]) == 1
    assert differing_arrays(tmp_path / "points" / "1", whole) == []


def test_a_folder_that_cannot_be_read_offers_no_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "exists", Mock(side_effect=OSError(errno.ESTALE, "stale")))
    assert not is_offered(tmp_path, OFFER)
