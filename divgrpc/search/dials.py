"""Dials that are chosen for each query: `diversity="auto"` and `lose_at_most`.

Both depend on a query's candidates alone, so the same request gives the same dials.

`diversity="auto"` goes by how relevance falls. The best candidate leads the mean of all candidates
by some relevance, and the k nearest keep a share of that lead on average. If they keep all of it,
they are as good as the best, and other candidates may replace some of them. If the best stands out,
the dial is low. The odds of the dial, dial / (1 - dial), are the share times the selector's factor,
so no dial is above factor / (1 + factor).

`lose_at_most` takes the greatest dial, in steps of 1/32, whose answer loses no more than the bound.
"""

from typing import Final, get_args

import numpy as np
import numpy.typing as npt

from divgrpc.kernels import records
from divgrpc.types import DialReason, EffectiveParameters

# Words for `Results.reasons`, by number; there is none for 0.
_WORDS: Final = np.array(("", *get_args(DialReason)))
_NO_WORDS: Final = _WORDS[:0]
_RULES: Final = {
    "corrected": records.CORRECTED_RULE,
    "printed": records.PRINTED_RULE,
    "marginal": records.MARGINAL_RULE,
}
METRICS: Final = {
    "cosine": records.COSINE,
    "euclidean": records.EUCLIDEAN,
    "inner_product": records.INNER_PRODUCT,
}
# Factors of the odds, per selector and per variant of greedy. Greater factors lose more than 1 % of
# alpha-nDCG against the nearest neighbours on data without crowds: see the benchmark `dials`.
_FACTORS: Final = {"mmr": 0.4, "rerank": 0.05, "dpp": 1.0, "max_sum": 0.2}
_RELAXED_FACTOR: Final = 0.3
_GREEDY_FACTORS: Final = {"corrected": 0.8, "printed": 0.8, "marginal": 0.5}


def reason_words(codes: npt.NDArray[np.uint8]) -> npt.NDArray[np.str_]:
    """Return the words for `Results.reasons`."""
    # Most queries name their dial, and indexing by an empty array takes numpy several microseconds.
    words: npt.NDArray[np.str_] = _WORDS[codes] if len(codes) else _NO_WORDS
    return words


def rule_of(parameters: EffectiveParameters) -> int:
    """Return the number of the rule for selectors that the kernel runs: `Objective.rule`."""
    return records.MMR_RULE if parameters.selector == "mmr" else _RULES[parameters.variant]


def choice_of(parameters: EffectiveParameters) -> int:
    """Return how a query gets its dial: `Plan.dial_choice`."""
    if parameters.lose_at_most is not None:
        return records.BY_LOSS
    return records.BY_FALL_OFF if parameters.diversity_auto else records.BY_CALLER


def factor_of(parameters: EffectiveParameters) -> float:
    """Return the selector's factor of the odds of an automatic dial: `Plan.dial_factor`."""
    if parameters.selector == "greedy":
        return _GREEDY_FACTORS[parameters.variant]
    if parameters.selector == "qp_relax":
        # Its objective sums over pairs; the other objectives take means.
        return _RELAXED_FACTOR / max(1, parameters.k - 1)
    return _FACTORS.get(parameters.selector, 0.0)
