"""Table 1 measured on one data set: indexes built by the client, grids asked of Evaluate."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

import numpy as np

from divgrpc.types import IndexInfo, IntArray, Search
from divgrpc_client.client import Client
from divgrpc_lab.data.hyperplanes import HyperplaneQueries
from divgrpc_lab.data.topics import Topics
from divgrpc_lab.data.visual_words import IMAGES, WORDS
from divgrpc_lab.experiment import Clock
from divgrpc_lab.table1.rows import (
    FAMILIES,
    HASHING,
    WITHOUT_HASHING,
    Asking,
    Row,
    combined,
)

INDEX: Final = "table1"
# Seeds of a method that is not run with every seed.
_SOME_SEEDS: Final = 2


@dataclass(frozen=True)
class Plan:
    """How much is asked: queries of a category, those of slow methods, and seeds of the hash.

    `code_seeds` are of bits and tables, of which `codes` are tried; `draws`, one a category and
    seed, are of what is said to be uniform: fewer have little power; `sizes` are of growing data;
    `made_up` are the images and words of the set that times alone are of.
    """

    per_category: int = 50
    few: int = 10
    seeds: int = 5
    code_seeds: int = 2
    codes: int = 4
    draws: int = 500
    sizes: int = 5
    made_up: tuple[int, int] = (IMAGES, WORDS)

    def seeds_of(self, asking: Asking) -> int:
        """Return how many seeds a method is asked with."""
        return self.seeds if asking.every_seed else min(self.seeds, _SOME_SEEDS)

    @property
    def calls(self) -> int:
        """How many calls of Evaluate the table of a data set takes."""
        return len(WITHOUT_HASHING) + len(FAMILIES) * sum(map(self.seeds_of, HASHING))


class Bench:
    """One data set and its queries, to be built and asked on a server."""

    def __init__(self, client: Client, data: Topics, plan: Plan, clock: Clock) -> None:
        self.client, self.data, self.plan = client, data, plan
        self.name = data.name.partition(" (")[0]
        self._clock = clock
        self.stage("learning queries")
        self.asked = data.queries(plan.per_category)
        self._few = some_of(self.asked, plan.few)
        self.info: IndexInfo | None = None

    def stage(self, words: str) -> None:
        """Say what is done now."""
        self._clock.stage(f"{self.name}: {words}")

    def rows(self) -> list[Row]:
        """Ask everything that the table has."""
        rows: list[Row] = []
        with self.built(hash_family="lsh_sdiv") as info:
            self.info = info
            for asking in WITHOUT_HASHING:
                rows += self._combined("NH", asking, [self._ask(asking, "exact", "NH")])
        for name, family in FAMILIES.items():
            answers: dict[Asking, list[list[Any]]] = {}
            for seed in range(self.plan.seeds):
                with self.built(hash_family=family, seed=seed) as info:
                    # The exact search hashes nothing.
                    search = info.auto_search_dense or info.auto_search
                    search = "scan" if search == "exact" else search
                    for asking in HASHING:
                        if seed < self.plan.seeds_of(asking):
                            answer = self._ask(asking, search, f"{name}, seed {seed}")
                            answers.setdefault(asking, []).append(answer)
            for asking, seeds in answers.items():
                rows += self._combined(name, asking, seeds)
        return rows

    @contextmanager
    def built(self, rows: IntArray | None = None, **options: Any) -> Iterator[IndexInfo]:
        """Build an index, of some rows or of all, and delete it at the end."""
        points, labels = self.data.points, self.data.labels
        chosen = slice(None) if rows is None else rows
        self.stage(f"building {options.get('hash_family')}")
        yield self.client.build(
            INDEX,
            points[chosen],
            categories=labels.categories[chosen],
            subtopics=labels.subtopics[chosen],
            replace=True,
            **options,
        )
        self.client.delete_index(INDEX)

    def _ask(self, asking: Asking, search: Search, where: str) -> list[Any]:
        """Return the rows of one call."""
        self.stage(f"{where}: {asking.method}, {asking.stage}")
        asked = self._few if asking.few else self.asked
        rows = self.client.evaluate(
            INDEX, asked.queries, asked.asked, per_query=True, **asking.grid(search)
        )
        answers = list(rows)
        self._clock.add(1)
        return answers

    def _combined(self, family: str, asking: Asking, seeds: Sequence[list[Any]]) -> list[Row]:
        """Return a row for every k, of all seeds."""
        by_k = [_by_k(rows) for rows in seeds]
        asked = (self._few if asking.few else self.asked).asked
        return [
            combined(self.name, family, asking, [item[k] for item in by_k], asked) for k in by_k[0]
        ]


def some_of(asked: HyperplaneQueries, per_category: int) -> HyperplaneQueries:
    """Return the first queries of each category."""
    firsts = [np.flatnonzero(asked.asked == c)[:per_category] for c in np.unique(asked.asked)]
    chosen = np.concatenate(firsts)
    return HyperplaneQueries(asked.queries[chosen], asked.asked[chosen])


def _by_k(rows: Sequence[Any]) -> dict[int, list[Any]]:
    ordered = sorted(rows, key=lambda row: row.parameters.k)
    return {k: list(chosen) for k, chosen in groupby(ordered, key=lambda row: row.parameters.k)}
