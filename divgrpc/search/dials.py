"""Chooses a dial (a value of `diversity`) for each query: `diversity="auto"` and `lose_at_most`.

Both choose the dial from the candidates of the query only, so the same request to the same index
gets the same dials.

`diversity="auto"` chooses a dial from how fast relevance falls among the candidates. It computes
share = (mean relevance of the k nearest - mean of all) / (relevance of the best - mean of all). If
the share is 1, the k nearest are all as relevant as the best candidate, and a high dial loses
little. If the best candidate is far more relevant than the others, the share is low. The odds of
the dial, dial / (1 - dial), are the share times a factor that depends on the selector.

`lose_at_most` chooses the greatest dial, in steps of 1/32, at which the picks lose at most this
share of relevance (`divgrpc.kernels.dials`).
"""

from functools import lru_cache
from typing import Final, get_args

import numpy as np
import numpy.typing as npt

from divgrpc.kernels import records
from divgrpc.kernels.greedy import diversity_weight
from divgrpc.types import DialReason, EffectiveParameters, FloatArray

# Values of `DialReason`, indexed by the numbers in `Results.reasons`, which start at 1.
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
# Factors of the odds of an automatic dial, one for each selector and for each variant of `greedy`.
# Each is as large as possible without losing more than 1 % of alpha-nDCG compared with the nearest
# neighbours, in the benchmark `dials` on data without crowds of near-copies.
_FACTORS: Final = {"mmr": 0.4, "rerank": 0.05, "dpp": 1.0, "max_sum": 0.2}
_RELAXED_FACTOR: Final = 0.3
_GREEDY_FACTORS: Final = {"corrected": 0.8, "printed": 0.8, "marginal": 0.5}


def reason_words(codes: npt.NDArray[np.uint8]) -> npt.NDArray[np.str_]:
    """Return the values of `DialReason` for the numbers in `Results.reasons`."""
    # `codes` is usually empty, and indexing by an empty array would take several microseconds.
    words: npt.NDArray[np.str_] = _WORDS[codes] if len(codes) else _NO_WORDS
    return words


def rule_of(parameters: EffectiveParameters) -> int:
    """Return the `Objective.rule` that makes the kernel run the selector of `parameters`."""
    return records.MMR_RULE if parameters.selector == "mmr" else _RULES[parameters.variant]


# Cached because most calls repeat their parameters. Kernels only read the array.
@lru_cache(maxsize=1024)
def weights_of(rule: int, lambda_: np.float32, first: int, count: int, k: int) -> FloatArray:
    """Return the weights (count,) of the distances at the steps after `first` picks, of k."""
    steps = range(first, first + count)
    return np.array([diversity_weight(rule, lambda_, step, k) for step in steps], np.float32)


def choice_of(parameters: EffectiveParameters) -> int:
    """Return `Plan.dial_choice`, which says how a query gets its dial."""
    if parameters.lose_at_most is not None:
        return records.BY_LOSS
    return records.BY_FALL_OFF if parameters.diversity_auto else records.BY_CALLER


def factor_of(parameters: EffectiveParameters) -> float:
    """Return `Plan.dial_factor`, the selector's factor of the odds of an automatic dial."""
    if parameters.selector == "greedy":
        return _GREEDY_FACTORS[parameters.variant]
    if parameters.selector == "qp_relax":
        # Divide by k - 1, because the objective of `qp_relax` has sums where the objective of
        # `greedy` has means, so distances have about k - 1 times as much weight.
        return _RELAXED_FACTOR / max(1, parameters.k - 1)
    return _FACTORS.get(parameters.selector, 0.0)
