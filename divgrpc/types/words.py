"""The choices of parameters as words, the arrays, and the parameters and counts of an answer."""

from dataclasses import dataclass, fields
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
# Of labels; `hierarchy` needs one.
LabelSelector = Literal[Selector, "hierarchy"]
Variant = Literal["corrected", "printed", "marginal"]
Sampling = Literal["uniform", "nearest"]
Rounding = Literal["exchange", "top_k"]
Mode = Literal["embedding", "neighbour_vote"]
Vote = Literal["weighted", "plain"]
Auto = Literal["auto"]
# Why a query got its dial; see `QueryResult`.
DialReason = Literal["loss_bound", "within_bound", "fall_off", "no_choice", "equal_relevance"]
FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]
CountArray = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class EffectiveParameters:
    """The parameters a query was answered with: defaults filled in, `auto` resolved.

    `hash_limit` and `candidates_limit` of 0 mean no limit, as does a `max_distance` of None;
    `n_probes` is 0 for a search that looks at no buckets or cells. A `duplicate_threshold` of None
    means that no near-copies are collapsed. With `diversity_auto`, or a `lose_at_most` that is not
    None, every query row has a dial of its own (`QueryResult.diversities`) and `diversity` is 0.
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

    @property
    def has_fixed_dial(self) -> bool:
        """Whether all query rows are answered at `diversity`."""
        return not self.diversity_auto and self.lose_at_most is None


@dataclass(frozen=True, slots=True)
class EffectiveLabelParameters:
    """The parameters labels were predicted with: defaults filled in, `auto` resolved.

    Of the search for labels, or in the mode `neighbour_vote` of that for `neighbours`, which are 0
    in the mode `embedding`. Limits of 0 mean no limit, a `threshold` of None that there is none.
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


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class QueryStats:
    """What happened, one number per query row; every array is (nq,) uint32.

    `points_hashed`: distinct points that the hash stage handed on; `buckets_probed`: buckets looked
    up; `points_scored`: points scored exactly. `candidates`: points that the selector chose from,
    up to four times `parameters.candidates_limit` where near-copies crowd them, more where the
    search was repeated.

    Where near-copies crowd the candidates of a row, it may be searched again: then `points_hashed`,
    `buckets_probed` and `points_scored` count the last search alone.

    `collapsed`: candidates that are near-copies of a result. `duplicates`: as many of these are
    results all the same, because fewer than k candidates differ.
    """

    points_hashed: CountArray
    buckets_probed: CountArray
    points_scored: CountArray
    candidates: CountArray
    collapsed: CountArray
    duplicates: CountArray

    def __repr__(self) -> str:
        rows = len(self.candidates)
        shown = f"QueryStats: {rows:,} {'row' if rows == 1 else 'rows'}"
        if not rows:
            return shown
        ranges = [f"{column.name} {_range(getattr(self, column.name))}" for column in fields(self)]
        return f"{shown}; {', '.join(ranges)}"


def _range(counts: CountArray) -> str:
    """Return the least and the greatest of some counts, at least one, or what all are."""
    least, most = int(counts.min()), int(counts.max())
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"
