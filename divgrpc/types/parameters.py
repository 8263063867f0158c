"""The values that parameters accept, and the parameters in effect for an answer."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Points = Literal["dense", "sparse"]
Sought = Literal["dense", "sparse", "labels"]
Metric = Literal["cosine", "euclidean", "inner_product"]
HashFamily = Literal["lsh_div", "lsh_sdiv", "pca_hash", "cells", "auto"]
Hyperplanes = Literal["orthogonal", "gaussian"]
ZeroVectors = Literal["reject", "skip"]
Search = Literal["auto", "tables", "scan", "scan_hamming", "exact"]
Selector = Literal["nearest", "greedy", "mmr", "rerank", "qp_relax", "dpp", "max_sum"]
# The selectors of label predictions. `hierarchy` needs an index with a hierarchy of labels.
LabelSelector = Literal[Selector, "hierarchy"]
Variant = Literal["corrected", "printed", "marginal"]
Sampling = Literal["uniform", "nearest"]
Rounding = Literal["exchange", "top_k"]
Mode = Literal["embedding", "neighbour_vote"]
Vote = Literal["weighted", "plain"]
WriteMode = Literal["upsert", "insert_only", "update_only"]
Durability = Literal["sync", "interval", "process"]
Auto = Literal["auto"]
# What to do if no results of a query meet its quotas.
OnInfeasible = Literal["fail", "relax"]
# Why quotas or groups left out a point. `Refusal` explains the values.
RefusalRule = Literal["max", "min", "groups", "quotas"]
# Why a dial (a value of `diversity`) was chosen for a row. `QueryResult` explains the values.
DialReason = Literal["loss_bound", "within_bound", "fall_off", "no_choice", "equal_relevance"]
FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]
CountArray = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class EffectiveParameters:
    """The parameters with which a query was answered, with defaults filled in and `auto` resolved.

    A `hash_limit` or `candidates_limit` of 0, or a `max_distance` of None, means no limit.
    `n_probes` is 0 for a search that does not look up buckets or cells. A `duplicate_threshold` of
    None means that near-copies are not collapsed. If `diversity_auto` or `lose_at_most` is set,
    each row has its own dial (value of `diversity`) in `QueryResult.diversities`, and `diversity`
    is 0.
    """

    k: int
    diversity: float
    selector: Selector
    variant: Variant
    search: Search
    hash_limit: int
    candidates_limit: int
    max_distance: float | None
    sampling: Sampling
    seed: int
    rounding: Rounding
    n_probes: int
    duplicate_threshold: float | None = None
    list_collapsed: bool = False
    diversity_auto: bool = False
    lose_at_most: float | None = None
    explain: bool = False
    with_report: bool = False

    @property
    def has_fixed_dial(self) -> bool:
        """Whether all rows use `diversity` as their dial."""
        return not self.diversity_auto and self.lose_at_most is None


@dataclass(frozen=True, slots=True)
class EffectiveLabelParameters:
    """The parameters of a label prediction, with defaults filled in and `auto` resolved.

    `search`, the limits and `n_probes` belong to the search for labels or, in the mode
    `neighbour_vote`, to the search for neighbours. `n_probes` is 0 for a search that does not look
    up buckets or cells. `neighbours` is 0 in the mode `embedding`. A limit of 0 means no limit,
    and a `threshold` of None means no threshold.
    """

    top_k: int
    threshold: float | None
    mode: Mode
    neighbours: int
    vote: Vote
    diversity: float
    selector: LabelSelector
    search: Search
    hash_limit: int
    candidates_limit: int
    seed: int
    n_probes: int = 0
