"""From the h of every setting to what is reported: choices by folds, of settings and of limits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from benchmarks.sweeps import Setting
from divgrpc.evaluation import FOLDS, choose_by_folds
from divgrpc.metrics import Values
from divgrpc.types import IntArray

# h that the exhaustive greedy must gain for there to be a gain worth a share.
WORTH: Final = 0.02
# Share of the gain that limits must reach on the other folds to be taken before larger ones.
KEPT: Final = 1.0

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

    def values(self, measured: Sequence[Mapping[Setting, Values]], folds: IntArray) -> Values:
        """Return the measures (4, nq) of the choice, the mean over the hash seeds."""
        values = np.zeros_like(measured[0][self.overall])
        for fold, setting in enumerate(self.by_fold):
            own = folds == fold
            for of_seed in measured:
                values[:, own] += of_seed[setting][:, own] / len(measured)
        return values


def choose(measured: Mapping[Setting, Values], folds: IntArray) -> Choice:
    """Take for each fold the setting with the greatest mean h on the others."""
    settings = list(measured)
    chosen = choose_by_folds(np.array([measured[setting][3] for setting in settings]), folds)
    return Choice(tuple(settings[at] for at in chosen.by_fold), settings[chosen.overall])


def choose_limits(
    by_part: Mapping[float, Choice],
    measured: Sequence[Mapping[Setting, Values]],
    folds: IntArray,
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
