"""A store with the points of the checks: asks it, and measures its answers."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Final, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from divgrpc.conformance.data import Data
from divgrpc.conformance.protocol import Answer, Request, Store

# Cosines that differ by less are equal: stores compute in different precisions.
TOLERANCE: Final = 1e-4


class Options(TypedDict, total=False):
    """The fields of a `Request` that ask for a feature other than a diversity."""

    filter: Mapping[str, str]
    max_each: Mapping[str, int]
    at_least: Mapping[str, Mapping[str, int]]
    paged: bool
    page: object


class CheckFailure(Exception):  # noqa: N818  # the failure of a check is no error of the program
    """A store does not do what a check requires. The message says what it does instead."""


class Trial:
    """A store that has indexed the points of the checks."""

    def __init__(self, store: Store, data: Data) -> None:
        self.store = store
        self.points, self.queries = data
        self.rows = range(len(self.queries))
        self._places = {id_: place for place, id_ in enumerate(self.points.ids)}
        vectors = self.points.vectors.astype(np.float64)
        # (m, n) cosines of queries and points, and (n, n) cosines of points.
        self._similarities = self.queries.astype(np.float64) @ vectors.T
        self._pairs = vectors @ vectors.T

    def build(self) -> None:
        """Let the store index the points."""
        self.store.build(self.points)

    def ask(
        self, row: int, k: int = 10, diversity: float | None = None, **options: Unpack[Options]
    ) -> Answer:
        """Send query `row`. Raises `CheckFailure` for more than k ids, or ids that do not exist.

        options: further fields of the request.
        """
        answer = self.store.query(Request(self.queries[row], k, diversity, **options))
        if not isinstance(answer, Answer):
            name = type(answer).__name__
            raise CheckFailure(f"query must return a divgrpc.conformance.Answer, got {name}")
        if len(answer.ids) > k:
            raise CheckFailure(f"query {row} returned {len(answer.ids)} results for k = {k}")
        strangers = [id_ for id_ in answer.ids if id_ not in self._places]
        if strangers:
            raise CheckFailure(f"query {row} returned an id that no point has: {strangers[0]!r}")
        return answer

    def values(self, attribute: str, ids: Iterable[str]) -> Counter[str]:
        """Return how many of these points have each value of an attribute."""
        column = self.points.attributes[attribute]
        return Counter(column[place] for place in self._at(ids))

    def passing(self, conditions: Mapping[str, str]) -> set[str]:
        """Return the ids of the points that have these values."""
        columns = [self.points.attributes[name] for name in conditions]
        wanted_values = tuple(conditions.values())
        rows = zip(self.points.ids, *columns, strict=True)
        return {id_ for id_, *values in rows if tuple(values) == wanted_values}

    def similarities(self, row: int, ids: Collection[str]) -> npt.NDArray[np.float64]:
        """Return the cosines of query `row` and some points, in float64."""
        cosines: npt.NDArray[np.float64] = self._similarities[row, self._at(ids)]
        return cosines

    def are_equally_near(self, row: int, one: Collection[str], two: Collection[str]) -> bool:
        """Return whether the points of each rank are equally near to query `row`."""
        if len(one) != len(two):
            return False
        difference = self.similarities(row, one) - self.similarities(row, two)
        return bool(np.abs(difference).max(initial=0) < TOLERANCE**2)

    def least_similarity(self, row: int, count: int) -> float:
        """Return the cosine of query `row` and the point that is its `count`-th nearest."""
        return float(np.sort(self._similarities[row])[-count])

    def mean_distance(self, ids: Collection[str]) -> float:
        """Return the mean of 1 minus the cosine, over all pairs of these points."""
        places = self._at(ids)
        upper = np.triu_indices(len(places), 1)
        return float(np.mean(1 - self._pairs[np.ix_(places, places)][upper]))

    def _at(self, ids: Iterable[str]) -> list[int]:
        return [self._places[id_] for id_ in ids]


def require_same(expected: Answer, actual: Answer, case: str) -> None:
    """Raise `CheckFailure` unless two answers have the same ids and the same scores, to the bit."""
    if list(expected.ids) != list(actual.ids):
        pairs = enumerate(zip(expected.ids, actual.ids, strict=False), start=1)
        ranks = [rank for rank, (one, two) in pairs if one != two]
        place = f"from rank {ranks[0]}" if ranks else "in number"
        raise CheckFailure(f"{case}: the ids differ {place}")
    if expected.scores is not None and actual.scores is not None:
        one, two = (np.array(answer.scores, np.float64) for answer in (expected, actual))
        if one.tobytes() != two.tobytes():
            raise CheckFailure(f"{case}: the ids are the same, and the scores differ")
