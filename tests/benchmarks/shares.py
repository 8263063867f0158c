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


def choose(measured: Mapping[Setting, Values], folds: Ids, least: Values | None = None) -> Choice:
    """Take for each fold what has the greatest mean h on the others.

    With `least` (nq,), a value of h for each query, the smallest limits whose best dial reaches
    the mean of that on the others.
    """
    everyone = np.ones(len(folds), np.bool_)
    by_fold = tuple(_best(measured, folds != fold, least) for fold in range(FOLDS))
    return Choice(by_fold, _best(measured, everyone, least))


def enough(nearest: Values, exhaustive: Values) -> Values:
    """Return the h of each query that keeps `KEPT` of the gain."""
    return nearest + KEPT * (exhaustive - nearest)


def _best(measured: Mapping[Setting, Values], others: Mask, least: Values | None) -> Setting:
    means = {setting: float(values[3, others].mean()) for setting, values in measured.items()}
    if least is not None:
        for part in sorted({setting.part for setting in means}):
            top = max((s for s in means if s.part == part), key=means.__getitem__)
            if means[top] >= least[others].mean():
                return top
    # Of equals the first: the largest limits, the smallest dial.
    return max(means, key=means.__getitem__)


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
