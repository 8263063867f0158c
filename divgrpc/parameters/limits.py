"""Every limit that a request can run into, and what may name an index."""

import math
import re
from typing import Final

from divgrpc.errors import InvalidArgumentError

INDEX_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
SEED_MAX: Final = 2**64 - 1
# Every limit a request can run into; GetServerInfo publishes this table.
LIMITS: Final = {
    "k_max": 10_000,
    "k_times_candidates_max": 100_000_000,
    # What dpp keeps: so many numbers of eight bytes.
    "dpp_k_times_candidates_max": 10_000_000,
    # Times the dimensions: what a selector computes for one query row, some seconds at most.
    "k_candidates_dims_max": 2**35,
    # Where near-copies are looked for by comparing each candidate with each: the candidates, and
    # their square times the dimensions. Selectors that compare only what they would pick may have
    # 8 times as many, 64 times the square.
    "compared_candidates_max": 2_048,
    "compared_numbers_max": 2**30,
    # Of dense rows, and of sparse ones, which cost what they store.
    "dims_max": 65_536,
    "sparse_dims_max": 2**22,
    "rows_max": 2**31 - 1,
    "query_rows_max": 10_000,
    "n_tables_max": 256,
    "n_bits_max": 24,
    "message_bytes_max": 4 * 2**20,
    "chunk_bytes": 2**20,
    "page_size_max": 1_000,
    "grid_settings_max": 1_000,
    # Of one evaluation: settings times queries, each some 150 bytes until the end.
    "evaluate_queries_max": 1_000_000,
    # Of label models.
    "rank_max": 4_096,
    "neighbours_max": 1_000,
    "iterations_max": 1_000,
    "regularisation_max": 10**12,
    "labels_max": 2**22,
    # Numbers of each of two factors, brought or trained.
    "label_factor_numbers_max": 2**30,
    "label_name_bytes_max": 1_024,
    # All names together.
    "label_names_bytes_max": 2**28,
    "hierarchy_edges_max": 2**24,
    "hierarchy_nodes_max": 2**24,
}

_LAZILY: Final = 8


def most_compared(width: int, *, lazily: bool) -> int:
    """Return among how many candidates of `width` numbers each near-copies are looked for.

    `lazily`: by comparing only those that would be picked, with nearer ones.
    """
    factor = _LAZILY if lazily else 1
    numbers = factor**2 * LIMITS["compared_numbers_max"]
    return min(factor * LIMITS["compared_candidates_max"], math.isqrt(numbers // max(1, width)))


def check_index_name(name: str) -> str:
    """Return `name` if it may name an index, else raise."""
    if not INDEX_NAME.fullmatch(name):
        raise InvalidArgumentError(
            "index",
            "index must be 1 to 63 of a-z, 0-9, _ and -, and begin with a letter or digit, "
            f"got {name[:80]!r}",
        )
    return name
