"""Dials that are chosen for each query: `diversity="auto"` and `lose_at_most`.

Both look at a query's candidates and at nothing else, so the same request gives the same dials.

`diversity="auto"` goes by how relevance falls. The best candidate has a lead over the average one,
and the k nearest keep a share of that lead. Where they keep all of it they are as good as the best,
and other candidates may stand in for some of them. Where the best stands out the dial is low. The
odds of the dial, dial / (1 - dial), are the share times the selector's factor, so that no dial is
above factor / (1 + factor).

`lose_at_most` takes the greatest dial, of steps of 1/32, whose answer loses no more than the bound.
"""

from typing import Final, get_args

import numpy as np
import numpy.typing as npt

from divgrpc.kernels import dials, greedy
from divgrpc.kernels.relevance import COSINE, EUCLIDEAN, INNER_PRODUCT
from divgrpc.types import DialReason, EffectiveParameters

# The words for the kernels' numbers, from 1 on.
_WORDS: Final = np.array(("", *get_args(DialReason)))
_NO_WORDS: Final = _WORDS[:0]
_RULES: Final = {
    "corrected": greedy.CORRECTED,
    "printed": greedy.PRINTED,
    "marginal": greedy.MARGINAL,
}
METRICS: Final = {
    "cosine": COSINE,
    "euclidean": EUCLIDEAN,
    "inner_product": INNER_PRODUCT,
}
# Greater factors lose more than 1 % of alpha-nDCG against the nearest neighbours where nothing
# crowds: see the benchmark `dials`.
_FACTORS: Final = {"mmr": 0.4, "rerank": 0.05, "dpp": 1.0, "max_sum": 0.2}
_RELAXED_FACTOR: Final = 0.3
_GREEDY_FACTORS: Final = {"corrected": 0.8, "printed": 0.8, "marginal": 0.5}


def reason_words(codes: npt.NDArray[np.uint8]) -> npt.NDArray[np.str_]:
    """Return the words for the kernels' numbers of reasons."""
    # Nearly every query names its dial, and indexing by nothing takes numpy several microseconds.
    words: npt.NDArray[np.str_] = _WORDS[codes] if len(codes) else _NO_WORDS
    return words


def rule_of(parameters: EffectiveParameters) -> int:
    """Return the kernels' number for the rule of a selector that picks one point at a time."""
    return greedy.MMR if parameters.selector == "mmr" else _RULES[parameters.variant]


def choice_of(parameters: EffectiveParameters) -> int:
    """Return the kernels' number for the way in which a query gets its dial."""
    if parameters.lose_at_most is not None:
        return dials.BY_LOSS
    return dials.BY_FALL_OFF if parameters.diversity_auto else dials.FIXED


def factor_of(parameters: EffectiveParameters) -> float:
    """Return the selector's factor in the odds of an automatic dial."""
    if parameters.selector == "greedy":
        return _GREEDY_FACTORS[parameters.variant]
    if parameters.selector == "qp_relax":
        # Its objective has sums over pairs where the others have means.
        return _RELAXED_FACTOR / max(1, parameters.k - 1)
    return _FACTORS.get(parameters.selector, 0.0)
