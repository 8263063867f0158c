"""Says which quota refused a candidate that the rule of a selector would have picked."""

from dataclasses import dataclass
from typing import Final, get_args

import numpy as np
import numpy.typing as npt

from divgrpc.kernels import quota_picks
from divgrpc.kernels.quota_picks import QuotaState
from divgrpc.quotas.bounds import Bounds
from divgrpc.search.quota_selection import QuotaPicks
from divgrpc.types import FloatArray, IntArray
from divgrpc.types.explanations import Refusal
from divgrpc.types.parameters import RefusalRule
from divgrpc.types.records import Scalar

# The words for BY_MAX to BY_ALL.
_WORDS: Final[tuple[RefusalRule, ...]] = get_args(RefusalRule)


@dataclass(frozen=True, slots=True, eq=False)
class WithinQuotas:
    """What an explanation needs of a selection within quotas from m candidates.

    bounds: the bounds for these candidates.
    lows: the least bounds that the selection followed.
    target: number of picks that the selection was to make.
    contenders: (m,) whether the selection considered a candidate; empty if it considered all.
    n_candidates: number of candidates that it considered.
    scale: positions of the candidates that give the selector its scale of distances.
    ranks: (m,) plain ranks, 0 for a candidate that the search without quotas has not found.
    order: (n,) the place among the results of each pick.
    """

    bounds: Bounds
    lows: IntArray
    target: int
    contenders: npt.NDArray[np.bool_]
    n_candidates: int
    scale: IntArray
    ranks: IntArray
    order: IntArray

    @classmethod
    def of(  # noqa: PLR0917  # a selection has so many parts
        cls,
        picks: QuotaPicks,
        bounds: Bounds,
        places: IntArray,
        distances: FloatArray,
        farthest: np.float32,
        scale: IntArray,
    ) -> "WithinQuotas":
        """Return what an explanation of picks needs.

        bounds, distances: of all candidates. places: positions of the candidates that were selected
        from. farthest: the distance up to which the search without quotas has found candidates.
        """
        ranks = np.arange(1, len(distances) + 1)
        ranks[np.searchsorted(distances, farthest, side="right") :] = 0
        contenders = np.zeros(0 if picks.contenders is None else len(distances), np.bool_)
        if picks.contenders is not None:
            contenders[places[picks.contenders]] = True
        return cls(
            bounds=bounds,
            lows=bounds.arrays.lows if bounds.arrays.groups else picks.lows,
            target=picks.target,
            contenders=contenders,
            n_candidates=int(contenders.sum()) or len(places),
            scale=scale,
            ranks=ranks,
            order=np.arange(len(picks.places)) if picks.order is None else picks.order,
        )

    def refusals(
        self, picks: IntArray, places: IntArray, positions: IntArray, steps: IntArray
    ) -> tuple[Refusal, ...]:
        """Return why each of r candidates was refused.

        picks: (n,) positions of the picks among the candidates, in their order.
        places, positions: (r,) places among the displaced points, and positions.
        steps: (r,) number of the pick that was made instead.
        """
        arrays = self.bounds.arrays._replace(lows=self.lows)
        rules, values = np.empty(len(places), np.int64), np.empty(len(places), np.int64)
        state = QuotaState.of_counts(len(arrays.lows), len(arrays.single))
        quota_picks.explain_refusals(
            picks, self.target, positions, steps, arrays, state, rules, values
        )
        names: dict[int, tuple[str, Scalar | None]] = {-1: ("", None)}
        for value in np.unique(values[values >= 0]).tolist():
            bound = self.bounds.value(value)
            names[value] = self.bounds.quotas[bound.quota].attribute, bound.value
        triples = zip(places.tolist(), rules.tolist(), values.tolist(), strict=True)
        return tuple(Refusal(place, _WORDS[rule], *names[value]) for place, rule, value in triples)
