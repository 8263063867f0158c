"""Dials that are chosen for each query: `diversity="auto"` and `lose_at_most`.

Both look at a query's candidates and at nothing else, so the same request gives the same dials.

`diversity="auto"` goes by how relevance falls: of the lead that the best candidate has over the
average one, what share do the k nearest keep? Where they keep all of it they are as good as the
best, and other candidates may stand in for some of them. Where the best stands out the dial is low.
The odds of the dial, dial / (1 - dial), are that share times the selector's factor, so that no dial
is above factor / (1 + factor).

`lose_at_most` takes the greatest dial, of steps of 1/32, whose answer loses no more than the bound.
"""

from typing import Final, get_args

import numpy as np
import numpy.typing as npt

from divgrpc.kernels import dials, selection
from divgrpc.kernels.relevance import COSINE, EUCLIDEAN, INNER_PRODUCT
from divgrpc.types import DialReason, EffectiveParameters

# The words for the kernels' numbers, from 1 on.
_WORDS: Final = np.array(("", *get_args(DialReason)))
_NO_WORDS: Final = _WORDS[:0]
_RULES: Final = {
    "corrected": selection.CORRECTED,
    "printed": selection.PRINTED,
    "marginal": selection.MARGINAL,
}
METRICS: Final = {
    "cosine": COSINE,
    "euclidean": EUCLIDEAN,
    "inner_product": INNER_PRODUCT,
}
# As great as they may be for alpha-nDCG to stay within 1 % of that of the nearest neighbours where
# nothing crowds: see the benchmark `dials`.
_FACTORS: Final = {"mmr": 0.4, "rerank": 0.05, "dpp": 1.0, "max_sum": 0.2}
_RELAXED_FACTOR: Final = 0.3
_GREEDY_FACTORS: Final = {"corrected": 0.8, "printed": 0.8, "marginal": 0.5}


def reason_words(codes: npt.NDArray[np.uint8]) -> npt.NDArray[np.str_]:
    """Return the word for each number of a reason that kernels give."""
    # Nearly every query names its dial, and indexing by nothing takes numpy several microseconds.
    words: npt.NDArray[np.str_] = _WORDS[codes] if len(codes) else _NO_WORDS
    return words


def rule_of(wanted: EffectiveParameters) -> int:
    """Return the number by which kernels know the rule of a selector that they know."""
    return selection.MMR if wanted.selector == "mmr" else _RULES[wanted.variant]


def choice_of(wanted: EffectiveParameters) -> int:
    """Return the number by which kernels know how a query gets its dial."""
    if wanted.lose_at_most is not None:
        return dials.BY_LOSS
    return dials.BY_FALL_OFF if wanted.diversity_auto else dials.FIXED


def factor_of(wanted: EffectiveParameters) -> float:
    """Return the selector's factor in the odds of an automatic dial."""
    if wanted.selector == "greedy":
        return _GREEDY_FACTORS[wanted.variant]
    if wanted.selector == "qp_relax":
        # Its objective has sums over pairs where the others have means.
        return _RELAXED_FACTOR / max(1, wanted.k - 1)
    return _FACTORS.get(wanted.selector, 0.0)
