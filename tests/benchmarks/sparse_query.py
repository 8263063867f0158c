"""A query in the paper's size: 35,000 made-up images of 48,000 visual words, greedy, one thread.

Queries are held-out images of 500 numbers or hardly fewer, which are sparse, and hyperplanes, which
are dense: see `divgrpc_lab.data.visual_words`. Each family is asked at several limits by
its own search, `auto` by what Build chose; one query at a time, in turns. *J kept* says what limits
cost in quality: 1 is the objective J of the same selector on exact candidates at the default limit,
0 that of nearest neighbours. *Found* is the share of the exact candidates among as many of ours.
*Projecting* is the part of a query that its product with the hyperplanes takes.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.families import add_families
from benchmarks.gain_rows import projecting
from benchmarks.sweeps import hashed
from benchmarks.tables import show, table
from benchmarks.turns import Asking, take_turns
from divgrpc.index import Index
from divgrpc.metrics import gap_closed, list_distances, objective
from divgrpc.parameters import QueryParameters
from divgrpc.types import HashFamily, IntArray, Search
from divgrpc.vectors import Rows, SparseRows
from divgrpc.warmup import warm_kernels
from divgrpc_lab.data.hyperplanes import hyperplane_queries
from divgrpc_lab.data.visual_words import IMAGES, POOL, WORDS, VisualWords, visual_words

# Hashed points and candidates; None are the defaults.
LIMITS: Final = ((None, None), (500, 200), (500, 100), (200, 100), (200, 50), (100, 50))
# Of a sparse query, at most.
_NUMBERS: Final = 500
# Milliseconds of a query by its kind, and of them the product of a dense one.
_GOALS: Final = {"sparse": 0.5, "dense": 2.5}
_PRODUCT_GOAL: Final = 1.5
# Equal quality.
_KEPT: Final = 0.97

_EXACT: Final = "exact candidates"


@dataclass(frozen=True)
class Row:
    """One contestant at some limits, asked queries of one kind."""

    kind: str
    family: str
    search: str
    limits: str
    milliseconds: float
    kept: float
    found: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the run can be told."""
    parser.add_argument("--images", type=int, default=IMAGES, help="(default %(default)s)")
    parser.add_argument("--words", type=int, default=WORDS, help="(default %(default)s)")
    add_families(parser)
    parser.add_argument("--queries", type=int, default=42, help="of each kind (default 42)")
    parser.add_argument("--k", type=int, default=10, help="(default 10)")
    parser.add_argument("--diversity", type=float, default=0.3, help="(default 0.3)")


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Measure, print a table for each kind of query and the goals, and return the rows for JSON."""
    images, words = arguments.images, arguments.words
    show(f"\n## Sparse points: {images:,} x {words:,}, k = {arguments.k}, one thread\n")
    warm_kernels()
    made = visual_words(images, max(70, images * POOL // IMAGES), words)
    points = SparseRows.of(made.indexed.rows)
    indexes = {
        each: Index.build(points, hash_family=each, categories=made.indexed.categories)
        for each in arguments.families
    }
    rows: list[Row] = []
    products: dict[str, float] = {}
    with threadpool_limits(1):
        for kind, queries in _queries(made, arguments.queries):
            asked = _Asked(kind, made.indexed.rows, queries, arguments.diversity)
            some, products[kind] = asked.compare(indexes, arguments.k)
            show(f"{_drawn(some)}\n\nprojecting, {kind}: {products[kind]:.2f} ms\n")
            rows += some
    show(table(("goal", "here", "wanted"), list(_goals(rows, products))))
    return {"rows": [asdict(row) for row in rows], "projecting": products}


def _queries(made: VisualWords, count: int) -> Iterator[tuple[str, Any]]:
    """Yield each kind of query and its rows, scipy's or an array."""
    pool = made.pool
    sizes = np.diff(pool.rows.indptr)
    fit = np.flatnonzero(sizes <= _NUMBERS)
    yield "sparse", pool.rows[fit[np.argsort(-sizes[fit], kind="stable")][:count]]
    per_category = -(-count // len(np.unique(pool.categories)))
    yield "dense", hyperplane_queries(pool.rows, pool.categories, per_category, 0).queries[:count]


@dataclass(frozen=True, eq=False)
class _Contestant:
    """An index, and how it is asked for k picks; limits that are None are the defaults."""

    family: str
    index: Index
    search: Search
    k: int
    limits: tuple[int | None, int | None] = (None, None)

    def told(self, diversity: float = 0.0) -> QueryParameters:
        """Return a query of this dial; limits end at the number of points."""
        most = self.index.rows
        hash_limit, candidates_limit = (limit and min(limit, most) for limit in self.limits)
        return QueryParameters(
            k=self.k,
            diversity=diversity,
            variant="marginal",
            search=self.search,
            hash_limit=hash_limit,
            candidates_limit=candidates_limit,
        )

    def candidates(self, queries: Rows) -> IntArray:
        """Return the rows (nq, m) of all candidates, nearest first, -1 where there are fewer."""
        wanted = self.index.engine.resolve(self.told(), queries)
        most = min(wanted.candidates_limit, self.index.rows)
        every = QueryParameters(
            k=most,
            selector="nearest",
            search=wanted.search,
            hash_limit=wanted.hash_limit,
            candidates_limit=most,
        )
        rows: IntArray = self.index.engine.answer(queries, every).ids
        return rows

    def ask(self, queries: Rows, told: QueryParameters, number: int) -> IntArray:
        """Return the picks (k,) for one query."""
        rows: IntArray = self.index.engine.answer(queries[number : number + 1], told).ids[0]
        return rows


@dataclass(frozen=True, eq=False)
class _Asked:
    """Queries (nq, d) and unit points (n, d), scipy's where they are sparse, and the dial."""

    kind: str
    points: Any
    queries: Any
    diversity: float

    def compare(self, indexes: Mapping[HashFamily, Index], k: int) -> tuple[list[Row], float]:
        """Return everyone's rows, first that of exact candidates, and what projecting takes."""
        first = next(iter(indexes.values()))
        exact = _Contestant(_EXACT, first, "exact", k)
        everyone = [exact]
        for family, index in indexes.items():
            search: Search = "auto" if family == "auto" else hashed(index, family, self.queries)
            everyone += [_Contestant(family, index, search, k, limits) for limits in LIMITS]
        queries = self._rows()
        askings: dict[_Contestant | None, Asking] = {
            each: partial(each.ask, queries, each.told(self.diversity)) for each in everyone
        }
        # Under nobody's name: what projects a query and does no more.
        askings[None] = projecting(first, queries, k)
        timed = take_turns(askings, len(queries), k)
        near = exact.candidates(queries)
        ends = self._value(near[:, :k]), self._value(timed[exact].rows)
        rows = []
        for each in everyone:
            value, taken = self._value(timed[each].rows), timed[each].microseconds / 1e3
            rows.append(self._row(each, near, taken, gap_closed(value, *ends)))
        return rows, timed[None].microseconds / 1e3

    def _row(self, each: _Contestant, near: IntArray, milliseconds: float, kept: float) -> Row:
        queries = self._rows()
        wanted, ours = each.index.engine.resolve(each.told(), queries), each.candidates(queries)
        most = ours.shape[1]
        pairs = zip(near[:, :most], ours, strict=True)
        return Row(
            kind=self.kind,
            family=each.family,
            search=wanted.search,
            limits=f"{most:,}" if wanted.search == "exact" else f"{wanted.hash_limit:,}, {most:,}",
            milliseconds=milliseconds,
            kept=kept,
            found=float(np.mean([np.isin(truth, mine).mean() for truth, mine in pairs])),
        )

    def _rows(self) -> Rows:
        return SparseRows.of(self.queries) if hasattr(self.queries, "tocsr") else self.queries

    def _value(self, rows: IntArray) -> float:
        """Return the mean of J; NaN where a query has fewer than k results."""
        measured = list_distances(self.points, self.queries, rows)
        return float(objective(measured, self.diversity).mean())


def _goals(rows: Sequence[Row], products: Mapping[str, float]) -> Iterator[tuple[str, str, str]]:
    """Yield what is wanted, what was found and the bound of it: the fastest that keep J."""
    for kind, family in dict.fromkeys((row.kind, row.family) for row in rows):
        if family != _EXACT:
            mine = [row for row in rows if (row.kind, row.family) == (kind, family)]
            kept = [row for row in mine if row.kept >= _KEPT]
            best = min(kept, key=lambda row: row.milliseconds, default=None)
            found = "none keeps it"
            if best:
                found = f"{best.milliseconds:.2f} ({best.search}, {best.limits})"
            yield f"{kind}, {family}: ms at J kept >= {_KEPT}", found, f"<= {_GOALS[kind]}"
    yield "dense: ms of the product", f"{products['dense']:.2f}", f"<= {_PRODUCT_GOAL}"


def _drawn(rows: Sequence[Row]) -> str:
    return table(
        ("queries, family, search", "hashed, candidates", "ms/query", "J kept", "found"),
        [
            (
                f"{row.kind}, {row.family}, {row.search}",
                row.limits,
                f"{row.milliseconds:.2f}",
                f"{row.kept:.3f}",
                f"{row.found:.3f}",
            )
            for row in rows
        ],
    )
