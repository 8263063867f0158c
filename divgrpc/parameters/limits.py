"""Every limit that a request can run into, and what may name an index."""

import math
import re
from typing import Final

from divgrpc.errors import invalid

INDEX_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
SEED_MAX: Final = 2**64 - 1
# Every limit a request can run into; GetServerInfo publishes this table.
LIMITS: Final = {
    "k_max": 10_000,
    "k_times_candidates_max": 100_000_000,
    # The selector dpp stores k times candidates numbers of eight bytes.
    "dpp_k_times_candidates_max": 10_000_000,
    # k times candidates times dims, which bounds the work of a selector per query to a few seconds.
    "k_candidates_dims_max": 2**35,
    # Limits of the search for near-copies among candidates if all pairs are compared: candidates,
    # and candidates squared times dims. Selectors that compare only their picks may have 8 times
    # the candidates, so 64 times the square (`_LAZILY`).
    "compared_candidates_max": 2_048,
    "compared_numbers_max": 2**30,
    # Columns of dense and of sparse rows. Sparse rows take memory only for stored numbers.
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
    # Settings times queries of one evaluation, which holds about 150 bytes for each until it ends.
    "evaluate_queries_max": 1_000_000,
    # Of label models.
    "rank_max": 4_096,
    "neighbours_max": 1_000,
    "iterations_max": 1_000,
    "regularisation_max": 10**12,
    "labels_max": 2**22,
    # Numbers in each of the two factors of a label model.
    "label_factor_numbers_max": 2**30,
    "label_name_bytes_max": 1_024,
    # UTF-8 bytes of all label names together.
    "label_names_bytes_max": 2**28,
    "hierarchy_edges_max": 2**24,
    "hierarchy_nodes_max": 2**24,
}

_LAZILY: Final = 8


def most_compared(width: int, *, lazily: bool) -> int:
    """Return the most candidates of `width` numbers each that may be searched for near-copies.

    `lazily`: the selector compares only its picks, and only with nearer candidates.
    """
    factor = _LAZILY if lazily else 1
    numbers = factor**2 * LIMITS["compared_numbers_max"]
    return min(factor * LIMITS["compared_candidates_max"], math.isqrt(numbers // max(1, width)))


def check_index_name(name: str) -> str:
    """Return `name` if it may name an index, else raise."""
    if not INDEX_NAME.fullmatch(name):
        raise invalid(
            "index",
            "must be 1 to 63 of a-z, 0-9, _ and -, and begin with a letter or digit, "
            f"got {name[:80]!r}",
        )
    return name
