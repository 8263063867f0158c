"""Slow reference implementations of the objective J and of the automatic diversity."""

from collections.abc import Sequence
from itertools import combinations

from reference.definitions import Floats, distance


def objective(query: Floats, picks: Floats, diversity: float) -> float:
    """Return J; lower is better.

    J is (1 - diversity) times the mean distance to the query, minus `diversity` times the mean
    distance between two points.
    """
    to_query = [distance(query, x) for x in picks]
    between = [distance(a, b) for a, b in combinations(picks, 2)]
    apart = sum(between) / len(between) if between else 0.0
    return (1 - diversity) * sum(to_query) / len(to_query) - diversity * apart


def gap_closed(value: float, nearest: float, exhaustive: float) -> float:
    """Return the share of the gap in J closed: 0 for nearest neighbours, 1 for greedy over all."""
    return (nearest - value) / (nearest - exhaustive)


def loss(relevances: Sequence[float], places: Sequence[int]) -> float:
    """Return the share of the candidates' relevance that the picks lose; 0 if all are equal.

    `relevances` has the relevance of every candidate, nearest first. `places` are the positions of
    the picks among the candidates.
    """
    nearest = sum(relevances[: len(places)]) / len(places)
    every = sum(relevances) / len(relevances)
    if nearest == every:
        return 0.0
    return (nearest - sum(relevances[place] for place in places) / len(places)) / (nearest - every)


def automatic_dial(relevances: Sequence[float], k: int, factor: float) -> float:
    """Return the automatic diversity before rounding.

    The lead of a candidate is its relevance minus the mean relevance. The diversity grows with the
    mean lead of the k nearest candidates, relative to the lead of the nearest.
    """
    every = sum(relevances) / len(relevances)
    lead = (sum(relevances[:k]) / k - every) / (relevances[0] - every)
    return factor * lead / (1 + factor * lead)
