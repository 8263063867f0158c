"""Judges whether the defaults of Query suit a collection."""

import math
from collections.abc import Sequence
from typing import Final

from divgrpc.parameters import DEFAULT_DIVERSITY
from divgrpc.types.diagnosis import Advice, DefaultEffect

# Points crowd if at least this share of the nearest points are near-copies of nearer ones.
_CROWDED_SHARE: Final = 0.05
# The default dial is of use if it moves results farther apart by at least this share of the mean
# distance between two points, and by more than it loses relevance.
_GAIN_MIN: Final = 0.01


def crowds(results: float, different: float) -> bool:
    """Return whether so many of the nearest points are near-copies of nearer ones."""
    return results > 0 and 1 - different / results >= _CROWDED_SHARE


def advise(
    results: float, different: float, effects: Sequence[DefaultEffect], threshold: float | None
) -> tuple[Advice, ...]:
    """Return whether to use the default dial, and the default threshold if there is one.

    The dial is judged beside collapsing, if collapsing is to be used.

    results, different: of the nearest points, as in `divgrpc.types.diagnosis.Diagnosis`.
    """
    by_setting = {effect.setting: effect for effect in effects}
    collapses = threshold is not None and crowds(results, different)
    base = by_setting["duplicate_threshold"] if collapses else None
    dial = by_setting["both" if collapses else "diversity"]
    if threshold is None:
        return (_of_dial(dial, base),)
    collapsing = by_setting["duplicate_threshold"]
    return (
        _of_dial(dial, base),
        _of_collapsing(results, different, collapsing, threshold, use=collapses),
    )


def _of_dial(effect: DefaultEffect, base: DefaultEffect | None) -> Advice:
    """Return the advice about the dial, from its effect beyond the effect of `base`."""
    gain, loss = effect.gain.value, effect.loss.value
    if base is not None:
        gain, loss = gain - base.gain.value, loss - base.loss.value
    use = gain >= max(_GAIN_MIN, loss)
    if math.isnan(gain):
        reason = "The points have no distances that a dial could weigh."
    else:
        beside = "beside collapsing, results" if base is not None else "results"
        reason = (
            f"With the dial, {beside} are farther apart by {_percent(gain)} of the mean distance "
            f"between two points, and lose {_percent(loss)} of their relevance."
        )
        if not use:
            least = f"less than {_percent(_GAIN_MIN)}" if gain < _GAIN_MIN else "less than it loses"
            reason += f" That gain is {least}."
    return Advice("diversity", DEFAULT_DIVERSITY, use, reason)


def _of_collapsing(
    results: float, different: float, effect: DefaultEffect, threshold: float, *, use: bool
) -> Advice:
    copies = results - different
    reason = f"Of the {results:.3g} nearest points, {copies:.3g} are near-copies of nearer ones."
    if not results:
        reason = "No query has results that could be near-copies of each other."
    elif use:
        reason += f" Collapsing them gives {effect.different:.3g} different results"
        has_loss = not math.isnan(effect.loss.value)
        reason += f", and loses {_percent(effect.loss.value)} of relevance." if has_loss else "."
    else:
        reason += f" That is less than {_percent(_CROWDED_SHARE)}, so collapsing changes little."
    return Advice("duplicate_threshold", threshold, use, reason)


def _percent(share: float) -> str:
    # Adding 0 turns -0.0 into 0.0.
    return f"{round(100 * share, 2) + 0.0:.2g} %"
