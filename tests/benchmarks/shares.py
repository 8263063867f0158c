"""From the h of every setting to a gain share: choices by folds, and how sure the figure is.

A query's own h never has a say in the setting that it is reported at: the queries of a category are
dealt into folds in turn, and a fold is reported at what is best for the others together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from benchmarks.sweeps import Setting
from divgrpc_client.reports.measures import Ids, Values

FOLDS: Final = 5
# h that the exhaustive greedy must gain for there to be a gain worth a share.
WORTH: Final = 0.02
# Share of the gain that limits must reach on the other folds to be taken before larger ones.
KEPT: Final = 1.0
_DRAWS: Final = 10_000

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Choice:
    """The setting that each fold is reported at, by the others; and the one by all queries."""

    by_fold: tuple[Setting, ...]
    overall: Setting

    @property
    def settings(self) -> set[Setting]:
        """Every setting that is needed."""
        return {*self.by_fold, self.overall}

    def values(self, measured: Sequence[Mapping[Setting, Values]], folds: Ids) -> Values:
        """Return the measures (4, nq) of the choice, the mean over the hash seeds."""
        values = np.zeros_like(measured[0][self.overall])
        for fold, setting in enumerate(self.by_fold):
            own = folds == fold
            for of_seed in measured:
                values[:, own] += of_seed[setting][:, own] / len(measured)
        return values


def dealt(asked: Ids) -> Ids:
    """Return the fold of each query (nq,): each category's are dealt in turn."""
    folds = np.empty(len(asked), np.int64)
    for category in np.unique(asked):
        own = np.flatnonzero(asked == category)
        folds[own] = np.arange(len(own)) % FOLDS
    return folds


def choose(measured: Mapping[Setting, Values], folds: Ids) -> Choice:
    """Take for each fold the setting with the greatest mean h on the others."""
    everyone = np.ones(len(folds), np.bool_)
    by_fold = tuple(_best(measured, folds != fold) for fold in range(FOLDS))
    return Choice(by_fold, _best(measured, everyone))


def choose_limits(
    by_part: Mapping[float, Choice],
    measured: Sequence[Mapping[Setting, Values]],
    folds: Ids,
    least: Values,
) -> Choice:
    """Take for each fold the smallest limits that reach the mean of `least` (nq,) on the others.

    `by_part` has the choice of dial and variant at each part of the default limits. A mean is over
    all hash seeds: the smallest of many is too easily the luckiest.
    """

    def smallest(settings: Mapping[float, Setting], others: Mask) -> Setting:
        means = {
            part: float(np.mean([each[settings[part]][3, others] for each in measured]))
            for part in sorted(settings)
        }
        enough = [part for part, mean in means.items() if mean >= least[others].mean()]
        return settings[enough[0] if enough else max(means, key=means.__getitem__)]

    by_fold = tuple(
        smallest({part: choice.by_fold[fold] for part, choice in by_part.items()}, folds != fold)
        for fold in range(FOLDS)
    )
    overall = {part: choice.overall for part, choice in by_part.items()}
    return Choice(by_fold, smallest(overall, np.ones(len(folds), np.bool_)))


def enough(nearest: Values, exhaustive: Values) -> Values:
    """Return the h of each query that keeps `KEPT` of the gain."""
    return nearest + KEPT * (exhaustive - nearest)


def _best(measured: Mapping[Setting, Values], others: Mask) -> Setting:
    # Of equals the first, which has the smallest dial.
    return max(measured, key=lambda setting: float(measured[setting][3, others].mean()))


def gain_share(h: Values, nearest: Values, exhaustive: Values) -> float:
    """Return 1 for the mean h of the exhaustive greedy, 0 for that of nearest neighbours."""
    return float((h - nearest).mean() / (exhaustive - nearest).mean())


def interval(h: Values, nearest: Values, exhaustive: Values, seed: int = 0) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the gain share; a draw of a query is of all three."""
    draws = np.random.default_rng(seed).integers(len(h), size=(_DRAWS, len(h)))
    gained, possible = (h - nearest)[draws].mean(axis=1), (exhaustive - nearest)[draws].mean(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        low, high = np.nanquantile(gained / possible, (0.025, 0.975))
    return float(low), float(high)
