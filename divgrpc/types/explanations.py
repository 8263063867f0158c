"""Explanations of results, and reports on whole lists of results."""

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from divgrpc.types.hits import rows_of
from divgrpc.types.parameters import RefusalRule
from divgrpc.types.records import IdArray, Scalar

_Floats = npt.NDArray[np.float32]
_Integers = npt.NDArray[np.int64]
_Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why quotas or groups left out a displaced point.

    place: its place in the columns of displaced points of an `Explanation`, from 0.
    rule: `max` if the value has as many results as it may have, `min` if the results that were left
        were needed for the value, `groups` if the value would have opened one group too many, and
        `quotas` if no further results would have met all quotas together.
    attribute, value: what the rule is about; None stands for a missing value. "" and None if the
        rule is `quotas`.
    """

    place: int
    rule: RefusalRule
    attribute: str
    value: Scalar | None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Explanation:
    """Why one query got its n results, and why u other points are not among them.

    The selection score of a result is its relevance term minus its penalty. The penalty depends on
    the results picked before: the nearer they are, the greater it is. For selectors that add up
    distances, penalties are 0 or negative, so a far point has a small number.

    plain_ranks: (n,) int64 rank of each result by relevance alone, from 1. 0 for a result that only
        a search for a quota or a group has found.
    pick_numbers: (n,) int64 the number of each result in the order of picking, from 0. It differs
        from the place of the result only in groups.
    relevance_terms, penalties: (n,) float32 the two parts of the selection scores.
    caused_by: (n,) ids of the results picked before that are nearest to each result, and so cause
        most of its penalty; -1 or "" if there is none.
    distances: (n,) float32 distance of each result from the one in `caused_by`, or NaN. It is the
        squared distance, under cosine of vectors of length 1, or 1 - cosine under inner_product.
    held_back: (n,) int64 the place, among the displaced points, of the best point that quotas or
        groups refused when the result was picked, although its selection score was better; -1 if
        there is none. `refusal` says which quota refused it.

    cost_offset, cost_width: the relevance term of a result is a negative number times its cost,
        (distance from the query - cost_offset) / cost_width, or the square root of this. Under
        inner_product the distance is minus the inner product.
    list_size: the number k in the formulas of `marginal`, `max_sum` and `rerank`.

    A point is displaced if it is not a result, stands for itself, and is more relevant than some
    result, or is in `held_back`. Near-copies of results and of displaced points are therefore
    missing. The remaining columns have an entry for each displaced point, most relevant first:

    displaced_ids: (u,) ids.
    displaced_scores: (u,) float32 scores, as those of results.
    displaced_plain_ranks: (u,) int64 ranks by relevance alone, as `plain_ranks`.
    displaced_by: (u,) int64 place, from 0, of the first result that was picked although it is less
        relevant or, for a point that quotas refused, although its selection score is less.
    displaced_relevance_terms, displaced_penalties: (u,) float32 when that result was picked. Their
        difference is at most the selection score of that result, unless quotas refused the point.
    displaced_caused_by, displaced_distances: (u,) the nearest result picked before that one, and
        the distance from it.

    refusals: a `Refusal` for each displaced point that quotas or groups refused, in the order of
        the points. It says why the point was refused when the result in `displaced_by` was picked.
    """

    plain_ranks: _Integers
    pick_numbers: _Integers
    relevance_terms: _Floats
    penalties: _Floats
    caused_by: IdArray
    distances: _Floats
    held_back: _Integers
    cost_offset: float
    cost_width: float
    list_size: int
    displaced_ids: IdArray
    displaced_scores: _Floats
    displaced_plain_ranks: _Integers
    displaced_by: _Integers
    displaced_relevance_terms: _Floats
    displaced_penalties: _Floats
    displaced_caused_by: IdArray
    displaced_distances: _Floats
    refusals: tuple[Refusal, ...] = ()

    @classmethod
    def empty(cls) -> "Explanation":
        """Return the explanation of a query without results."""
        ids, terms = np.empty(0, np.int64), np.empty(0, np.float32)
        results = (ids, ids, terms, terms, ids, terms, ids)
        return cls(*results, 0.0, 1.0, 0, ids, terms, ids, ids, terms, terms, ids, terms)

    def refusal(self, place: int) -> Refusal | None:
        """Return why quotas refused the displaced point at a place, None if they did not."""
        number = bisect_left(self.refusals, place, key=lambda refusal: refusal.place)
        refusal = self.refusals[number] if number < len(self.refusals) else None
        return refusal if refusal is not None and refusal.place == place else None

    def __repr__(self) -> str:
        results, displaced = len(self.plain_ranks), len(self.displaced_ids)
        ranks = ", ".join(map(str, self.plain_ranks.tolist()))
        return f"Explanation: {results} results of plain ranks {ranks}; {displaced} displaced"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Report:
    """How diverse the results of nq queries are, and what that costs in relevance.

    The plain results of a query are its k most relevant candidates, with near-copies. Distances
    are squared, under cosine of vectors of length 1; under inner_product they are 1 - cosine.
    NaN stands for a value that a list is too short for.

    mean_distances, least_distances: (nq,) float64 over all pairs of results.
    plain_mean_distances, plain_least_distances: (nq,) float64 over all pairs of plain results.
    mean_scores, plain_mean_scores: (nq,) float64 mean score of the results and plain results.
    objectives, plain_objectives: (nq,) float64 objective J, lower is better: (1 - diversity) times
        the mean distance from the query minus diversity times the mean distance of pairs. NaN under
        inner_product. See `divgrpc.metrics.objective`.
    entropies, plain_entropies: by the name of an attribute, (nq,) float64 entropy of its values
        among the results, divided by the logarithm of the number of results: 0 if all have the same
        value, 1 if all differ. The values of one result share its weight, and no value counts as
        a value of its own. Empty if the index has no attributes.
    """

    mean_distances: _Doubles
    least_distances: _Doubles
    plain_mean_distances: _Doubles
    plain_least_distances: _Doubles
    mean_scores: _Doubles
    plain_mean_scores: _Doubles
    objectives: _Doubles
    plain_objectives: _Doubles
    entropies: Mapping[str, _Doubles]
    plain_entropies: Mapping[str, _Doubles]

    def __repr__(self) -> str:
        means = [
            f"{name} {_mean(values):.4g} (plain {_mean(plain):.4g})"
            for name, values, plain in (
                ("mean distance", self.mean_distances, self.plain_mean_distances),
                ("mean score", self.mean_scores, self.plain_mean_scores),
            )
        ]
        return f"Report: {rows_of(len(self.mean_scores))}; {', '.join(means)}"


def _mean(values: _Doubles) -> float:
    numbers = values[~np.isnan(values)]
    return float(numbers.mean()) if len(numbers) else math.nan
