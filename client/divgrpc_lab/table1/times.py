"""Times on a made-up set of the paper's size and kind: 35,000 bags of 48,000 visual words.

It says nothing of quality: see `visual_words`. Queries are sparse (held-out images) or dense
(hyperplanes learned from them); each method has one dial of its own, and is asked few queries, one
at a time on one thread. The methods without hashing see all points, but for Rerank, which has the
candidates that it has by default.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from divgrpc.types import HashFamily
from divgrpc_client.client import Client
from divgrpc_lab.data.hyperplanes import hyperplane_queries
from divgrpc_lab.data.visual_words import IMAGES, POOL, WORDS, VisualWords, visual_words
from divgrpc_lab.table1.printed import METHODS
from divgrpc_lab.table1.rows import ALL, FAMILIES, HASHED, ONE_EXACT, Asking

INDEX: Final = "table1-times"
# Queries of each kind; and of the methods in _SLOW, which take seconds per query.
_QUERIES: Final = 14
_SLOW_QUERIES: Final = 3
_SLOW: Final = ("QP-Rel", "Greedy", "MMR")
_DIAL: Final = {"NN": 0.0, "Rerank": 0.15, "Greedy": 0.25, "MMR": 0.25, "QP-Rel": 0.03}


@dataclass(frozen=True, slots=True)
class Timed:
    """The median time of a method's queries, dense or sparse, in microseconds."""

    points: str
    kind: str
    method: str
    family: str
    stage: str
    k: int
    queries: int
    microseconds: float


def times(client: Client, images: int = IMAGES, words: int = WORDS) -> Iterator[Timed]:
    """Yield the times of every method, without hashing and with both families."""
    made = visual_words(images, max(70, images * POOL // IMAGES), words)
    per_category = -(-_QUERIES // len(set(made.pool.categories.tolist())))
    learned = hyperplane_queries(made.pool.rows, made.pool.categories, per_category, seed=0)
    kinds = {
        "sparse": (made.pool.rows[:_QUERIES], made.pool.categories[:_QUERIES]),
        "dense": (learned.queries[:_QUERIES], learned.asked[:_QUERIES]),
    }
    nonzeros = made.indexed.rows.nnz / images
    points = f"{images:,} x {words:,}, {nonzeros:,.0f} numbers a row"
    families: dict[str, HashFamily] = {"NH": "lsh_div", **FAMILIES}
    for family, hash_family in families.items():
        _build(client, made, hash_family)
        for kind, asked in kinds.items():
            for method in METHODS:
                for row in _asked(client, asked, method, family):
                    yield Timed(points, kind, method, family, *row)
        client.delete_index(INDEX)


def _build(client: Client, made: VisualWords, family: HashFamily) -> None:  # a HashFamily
    client.build(
        INDEX,
        made.indexed.rows,
        categories=made.indexed.categories,
        subtopics=made.indexed.subtopics,
        hash_family=family,
        replace=True,
    )


def _asked(
    client: Client, asked: tuple[Any, Any], method: str, family: str
) -> Iterator[tuple[str, int, int, float]]:
    """Yield stage, k, queries and the median time."""
    stage = HASHED if family != "NH" else ONE_EXACT if method == "Rerank" else ALL
    few = _SLOW_QUERIES if stage == ALL and method in _SLOW else _QUERIES
    queries, categories = (rows[:few] for rows in asked)
    grid = Asking(method, stage, dials=(_DIAL[method],)).grid("scan")
    for row in client.evaluate(INDEX, queries, categories, folds=0, **grid):
        yield stage, row.parameters.k, row.queries, row.microseconds.p50
