"""Who takes part in the quality run: our searches and variants, and the exhaustive baseline."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Protocol, get_args

from benchmarks.exhaustive import Everything
from divgrpc.index import Index
from divgrpc.parameters import QueryParameters
from divgrpc.types import FloatArray, HashFamily, IntArray, Search, Variant

VARIANTS: tuple[Variant, ...] = ("corrected", "marginal")
# What letting the selector see more candidates gains and costs.
WIDER = (500, 1_000, 2_000)


class Contestant(Protocol):
    """Somebody who picks k points for one query at a time."""

    family: str
    search: str
    variant: str

    def pick(self, queries: FloatArray, query: int, dial: float) -> IntArray:
        """Return the rows of the k picks, in any order."""


class Ours:
    """divgrpc in process; limits at their defaults but for `candidates_limit`, where given."""

    def __init__(
        self,
        index: Index,
        k: int,
        search: Search,
        variant: Variant,
        *,
        candidates_limit: int | None = None,
        family: HashFamily | None = None,
    ) -> None:
        chosen = str(index.info.parameters["hash_family"])
        # An exact search never looks at a code.
        self.family = "any" if search == "exact" else chosen
        if family == "auto":
            self.family = f"auto ({chosen})"
        self.search = search if search != "auto" else f"auto ({index.info.auto_search})"
        if candidates_limit is not None:
            self.search += f" of {candidates_limit:,}"
        self.variant: str = variant
        self._index = index

        @cache
        def parameters_at(dial: float) -> QueryParameters:
            return QueryParameters(
                k=k,
                diversity=dial,
                variant=variant,
                search=search,
                candidates_limit=candidates_limit,
            )

        self._parameters_at = parameters_at

    def pick(self, queries: FloatArray, query: int, dial: float) -> IntArray:
        """Return the ids of the results, which are rows where Build was given no ids."""
        result = self._index.engine.answer(queries[query : query + 1], self._parameters_at(dial))
        rows: IntArray = result.ids[0]
        return rows


class Exhaustive:
    """The marginal greedy over every point."""

    family = "none"
    search = "all points"
    variant = "marginal"

    def __init__(self, base: FloatArray, k: int) -> None:
        self._everything = Everything.of(base)
        self._k = k

    def pick(self, queries: FloatArray, query: int, dial: float) -> IntArray:
        """Return the rows in the order in which they were picked."""
        return self._everything.greedy(queries[query], self._k, dial)


def everyone(indexes: Mapping[HashFamily, Index], k: int) -> Iterator[Ours]:
    """Yield every family, search and variant; exact ones and wider limits by the first index."""
    first = next(iter(indexes.values()))
    for variant in VARIANTS:
        yield Ours(first, k, "exact", variant)
    for family, index in indexes.items():
        for search in get_args(Search):
            # What `auto` chose is here by its own name too.
            if search == "auto" or (search != "exact" and family != "auto"):
                for variant in VARIANTS:
                    yield Ours(index, k, search, variant, family=family)
    for limit in WIDER:
        if limit < first.rows:
            yield Ours(first, k, "scan", "marginal", candidates_limit=limit)
