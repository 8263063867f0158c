"""The limits of requests, and the rule for names of indexes."""

import re
from typing import Final

from divgrpc.errors import invalid

INDEX_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
SEED_MAX: Final = 2**64 - 1
# All limits of requests, by the name under which GetServerInfo returns them.
LIMITS: Final = {
    "k_max": 10_000,
    "k_times_candidates_max": 100_000_000,
    # The selector dpp stores k times candidates float64 numbers.
    "dpp_k_times_candidates_max": 10_000_000,
    # Maximum of k times candidates times dims. A selector handles that many in a few seconds.
    "k_candidates_dims_max": 2**35,
    # Near-copies are found among candidates by comparing all pairs, which takes candidates squared
    # times dims steps. The next two values limit the candidates and the steps. Both limits are
    # higher for selectors that compare only their picks (`QueryParameters.most_compared`).
    "compared_candidates_max": 2_048,
    "compared_numbers_max": 2**30,
    # Maximum number of columns of dense rows and of sparse rows. The limit for sparse rows is
    # greater, because they take memory only for stored values.
    "dims_max": 65_536,
    "sparse_dims_max": 2**22,
    "rows_max": 2**31 - 1,
    "shards_max": 256,
    "query_rows_max": 10_000,
    "n_tables_max": 256,
    "n_bits_max": 24,
    "message_bytes_max": 4 * 2**20,
    "chunk_bytes": 2**20,
    "page_size_max": 1_000,
    "grid_settings_max": 1_000,
    # Maximum of settings times queries (or documents) in an evaluation. Each such pair takes about
    # 150 bytes.
    "evaluate_queries_max": 1_000_000,
    # Maximum number of sampled points of a diagnosis.
    "diagnose_sample_max": 10_000,
    # Limits of ids, attributes and payloads.
    "id_bytes_max": 256,
    "attributes_max": 64,
    # Maximum number of values of one attribute that one point has, and of different keywords of an
    # attribute.
    "attribute_values_max": 1_000,
    "keywords_max": 2**22,
    "keyword_bytes_max": 1_024,
    "payload_bytes_max": 65_536,
    # Maximum number of bytes of all attributes of a point. A message must have room for a point.
    "attribute_bytes_max": 2**20,
    # Maximum number of points that one Get names.
    "get_rows_max": 10_000,
    # Limits of writes: rows of one upsert, values of its sparse rows, and ids of one deletion.
    "write_rows_max": 10_000,
    "write_values_max": 2**22,
    "delete_ids_max": 100_000,
    "write_id_bytes_max": 128,
    # Maximum number of bytes that the log of an index has since the last merge. The writer and each
    # worker keep about as much in memory.
    "unmerged_bytes_max": 2**28,
    # Limits of filters, and of the ids that one call excludes.
    "filter_depth_max": 8,
    "filter_conditions_max": 256,
    "filter_values_max": 10_000,
    "exclude_ids_max": 100_000,
    # Maximum number of points that the pages of one query show, and of points that a query gives as
    # already shown.
    "page_points_max": 100_000,
    "already_shown_max": 1_000,
    # Limits of quotas: attributes, and rules for single values.
    "quotas_max": 16,
    "quota_rules_max": 1_000,
    # Limits of label models and predictions.
    "rank_max": 4_096,
    "neighbours_max": 1_000,
    "iterations_max": 1_000,
    "regularisation_max": 10**12,
    "labels_max": 2**22,
    # Maximum number of values in each of the two factor matrices of a label model.
    "label_factor_numbers_max": 2**30,
    "label_name_bytes_max": 1_024,
    # Maximum total size of all label names, in bytes of UTF-8.
    "label_names_bytes_max": 2**28,
    "hierarchy_edges_max": 2**24,
    "hierarchy_nodes_max": 2**24,
}


def check_index_name(name: str) -> str:
    """Return `name` if it is a valid name of an index, else raise `InvalidArgumentError`."""
    if not INDEX_NAME.fullmatch(name):
        raise invalid(
            "index",
            "must be 1 to 63 of a-z, 0-9, _ and -, and begin with a letter or digit, "
            f"got {name[:80]!r}",
        )
    return name
