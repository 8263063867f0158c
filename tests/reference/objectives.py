"""Slow twins of how good a chosen set is, and of the dials that are chosen by it."""

from collections.abc import Sequence
from itertools import combinations

from reference.definitions import Floats, distance


def objective(query: Floats, chosen: Floats, diversity: float) -> float:
    """Return J: mean distance to the query against mean distance of pairs; lower is better."""
    to_query = [distance(query, x) for x in chosen]
    between = [distance(a, b) for a, b in combinations(chosen, 2)]
    apart = sum(between) / len(between) if between else 0.0
    return (1 - diversity) * sum(to_query) / len(to_query) - diversity * apart


def gap_closed(value: float, nearest: float, exhaustive: float) -> float:
    """Return 0 where J is that of plain nearest neighbours, 1 where of greedy over all points."""
    return (nearest - value) / (nearest - exhaustive)


def loss(relevances: Sequence[float], places: Sequence[int]) -> float:
    """Return the share of the candidates' relevance that picks give up; 0 where all are equal.

    `relevances` are those of all candidates, nearest first; `places` are the picks among them.
    """
    nearest = sum(relevances[: len(places)]) / len(places)
    every = sum(relevances) / len(relevances)
    if nearest == every:
        return 0.0
    return (nearest - sum(relevances[place] for place in places) / len(places)) / (nearest - every)


def automatic_dial(relevances: Sequence[float], k: int, factor: float) -> float:
    """Return the dial, before it is rounded, by the share of the best one's lead that k keep."""
    every = sum(relevances) / len(relevances)
    kept = (sum(relevances[:k]) / k - every) / (relevances[0] - every)
    return factor * kept / (1 + factor * kept)
