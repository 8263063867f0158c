"""The benchmark of near-copies, which compares answers with exact search over all points."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import product
from operator import itemgetter
from typing import Any, Final, get_args

import numpy as np
from scipy import sparse
from threadpoolctl import threadpool_limits

from benchmarks.harness import truth
from benchmarks.harness.datasets import topics
from benchmarks.harness.runner import (
    Ask,
    Option,
    Options,
    Output,
    Row,
    Table,
    Timed,
    benchmark,
    take_turns,
)
from divgrpc import metrics
from divgrpc.errors import UnsupportedError
from divgrpc.index import Index
from divgrpc.types import EffectiveParameters, FloatArray, HashFamily, IntArray, Search
from support.data import crowded_points
from support.data.crowded_points import KINDS, Crowd, Queries

# "gap closed" is left out if the gap in J is less than this share of J.
_LEAST_GAP: Final = 0.01


@dataclass(frozen=True, eq=False)
class Truth:
    """Queries of one kind, and their exact results over all points of a crowd.

    nearest: (nq, m), the rows of the nearest points, nearest first.
    near: (nq, m), the cosines of these points with the query.
    distinct: (nq, k), the nearest rows of different items, -1 if there are fewer than k items.
    """

    crowd: Crowd
    kind: str
    queries: Queries
    k: int
    nearest: IntArray
    near: FloatArray
    distinct: IntArray
    _greedy: dict[float, metrics.ListDistances] = field(default_factory=dict)

    @classmethod
    def of(cls, crowd: Crowd, kind: str, queries: Queries, k: int, count: int) -> "Truth":
        """Find the nearest `count` points and the best `k` items by exhaustive search."""
        nearest, near, distinct = [], [], np.full((queries.rows.shape[0], k), -1)
        for row in range(len(distinct)):
            products = _dense(queries.rows[[row]] @ crowd.points.T)[0]
            order = np.argsort(-products, kind="stable")
            first_of_items = np.sort(np.unique(crowd.items[order], return_index=True)[1])[:k]
            distinct[row, : len(first_of_items)] = order[first_of_items]
            nearest.append(order[:count])
            near.append(products[order[:count]])
        return cls(crowd, kind, queries, k, np.array(nearest), np.array(near), distinct)

    @cached_property
    def plain(self) -> metrics.ListDistances:
        """Distances of plain nearest neighbours."""
        return self.distances(self.nearest[:, : self.k])

    @cached_property
    def best(self) -> metrics.ListDistances:
        """Return the distances of the nearest distinct items."""
        return self.distances(self.distinct)

    def distances(self, rows: IntArray) -> metrics.ListDistances:
        """Return the distances of answers (nq, k), which are padded with -1."""
        return metrics.list_distances(self.crowd.points, self.queries.rows, rows)

    def greedy(self, diversity: float) -> metrics.ListDistances:
        """Return the distances of the points that `marginal` greedy picks among all points."""
        if diversity not in self._greedy:
            queries = _dense(self.queries.rows)
            rows = truth.greedy(self.crowd.points, queries, self.k, diversity)
            self._greedy[diversity] = self.distances(rows)
        return self._greedy[diversity]

    def recall(self, rows: IntArray) -> float:
        """Return the share of the m nearest points that are among candidates `rows` (nq, m).

        Rows are padded with -1. Any candidate that is as near as the m-th nearest point counts as
        one of the nearest, because exact copies are interchangeable.
        """
        products = np.empty(rows.shape, np.float32)
        for i, row in enumerate(rows):
            candidates = self.crowd.points[np.maximum(row, 0)]
            products[i] = _dense(candidates @ _dense(self.queries.rows[[i]])[0])
        count = min(rows.shape[1], self.near.shape[1])
        # These products are summed in another order, so the comparison allows for rounding.
        is_near = (products >= self.near[:, [count - 1]] - 1e-5) & (rows >= 0)
        return float(is_near.sum(axis=1).mean() / count)


@dataclass(frozen=True)
class Recalls:
    """Recalls of a selector's candidates; each different search is measured only once."""

    index: Index
    truth: Truth
    _recalls: dict[tuple[object, ...], float] = field(default_factory=dict)

    def of(self, parameters: EffectiveParameters) -> float:
        """Return the recall of a plain search with the same limits, which collapses nothing."""
        most = self.truth.nearest.shape[1]
        limit = min(parameters.candidates_limit or most, most)
        key = (limit, parameters.search, parameters.hash_limit, parameters.n_probes)
        if key not in self._recalls:
            result = self.index.query(
                self.truth.queries.rows,
                k=limit,
                selector="nearest",
                diversity=0.0,
                search=parameters.search,
                candidates_limit=limit,
                hash_limit=parameters.hash_limit,
                sampling=parameters.sampling,
                n_probes=parameters.n_probes or None,
            )
            self._recalls[key] = self.truth.recall(result.ids.astype(np.int64))
        return self._recalls[key]


def figures(truth: Truth, rows: IntArray, diversity: float) -> dict[str, float | None]:
    """Return the figures of answers (nq, k) by name, as means over queries.

    - "distinct": number of distinct items among the k results.
    - "of topic": number of distinct items of the topic that the query asked for.
    - "relevant": share of the places with a point of this topic.
    - "of best": mean cosine, divided by the mean cosine of the k nearest distinct items.
    - "of nearest": mean cosine, divided by the mean cosine of plain nearest neighbours.
    - "h" and "J": the h-score, and the objective at `diversity`.
    - "gap closed": share of the gap in J between plain neighbours and greedy over all points, None
      if the gap is less than 1 % of J.
    """
    judgments = metrics.judge(rows, truth.queries.categories, truth.crowd.labels)
    items = np.where(rows >= 0, truth.crowd.items[rows], -1)
    distances = truth.distances(rows)
    relevance, plain, best = (
        1 - metrics.mean(lists.to_query) / 2 for lists in (distances, truth.plain, truth.best)
    )
    values, low, high = (
        metrics.objective(lists, diversity)
        for lists in (distances, truth.plain, truth.greedy(diversity))
    )
    gap = float(np.nanmean(low - high)) > _LEAST_GAP * abs(float(np.nanmean(high)))
    return {
        "distinct": _distinct(items, rows >= 0),
        "of topic": _distinct(items, judgments.relevant),
        "relevant": float(judgments.relevant.mean()),
        "of best": relevance / best,
        "of nearest": relevance / plain,
        "h": metrics.mean(metrics.h_score(judgments)),
        "J": metrics.mean(values),
        "gap closed": metrics.gap_closed(values, low, high) if gap else None,
    }


def _distinct(items: IntArray, mask: np.typing.NDArray[np.bool_]) -> float:
    pairs = zip(items, mask, strict=True)
    return float(np.mean([len(np.unique(row[places])) for row, places in pairs]))


def _dense(rows: Any) -> FloatArray:  # noqa: ANN401  # scipy has no types
    return np.asarray(rows.toarray() if sparse.issparse(rows) else rows, np.float32)


DEFAULTS: Final = "defaults"
OFF: Final = "off"
_NEAREST: Final = "nearest"
_REAL: Final = {"cifar": "cifar100_dense256", "bovw": "cifar100_7x5_bovw", "news": "newsgroups20"}
_SETS: Final = ("made-1", "made-3", "made-10", "made-30", "made-power", *_REAL)
_GREEDY: Final = ("greedy:corrected", "greedy:marginal", "greedy:printed")
_SELECTORS: Final = (*_GREEDY, "mmr", "dpp", "max_sum", "rerank")
# The recall of candidates is measured on this many nearest points.
_RECALL_POINTS: Final = 1_000
# The share of the gap in J that `marginal` must close at each dial, if near-copies are kept.
_GAP_GOALS: Final = {0.1: 0.95, 0.3: 0.95, 0.5: 0.93}


@dataclass(frozen=True)
class Setting:
    """A setting: a selector, perhaps with a variant, and parameters; None keeps the default."""

    selector: str = DEFAULTS
    diversity: float | None = None
    candidates: int | None = None
    threshold: str | None = None
    search: str | None = None

    @property
    def name(self) -> str:
        """The name of the setting in a table, without the search."""
        words = [self.selector]
        if self.diversity is not None and self.selector != _NEAREST:
            words.append(f"{self.diversity:g}")
        if self.candidates is not None:
            words.append(f"of {self.candidates:,}")
        if self.threshold is not None:
            words.append(f"collapse {self.threshold}")
        return " ".join(words)

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of a query, except k."""
        selector, _, variant = self.selector.partition(":")
        values = {
            "selector": None if selector == DEFAULTS else selector,
            "variant": variant or None,
            "diversity": self.diversity,
            "candidates_limit": self.candidates,
            "search": self.search,
            "keep_duplicates": True if self.threshold == OFF else None,
            "duplicate_threshold": None
            if self.threshold in (None, OFF)
            else float(str(self.threshold)),
        }
        return {name: value for name, value in values.items() if value is not None}


@benchmark(
    "crowding",
    sets=Option(["made-1", "made-10", "made-power", "cifar", "news"], "data sets", _SETS),
    points=Option([8_000], "points of synthetic sets"),
    shares=Option([0.0, 50.0], "percent of copies in real sets"),
    k=Option(10, "results per query"),
    queries=Option(200, "queries of each kind"),
    half=Option("report", "half of the queries", ("choose", "report", "all")),
    kinds=Option(list(KINDS), "kinds of queries", KINDS),
    families=Option([DEFAULTS], "hash families", (DEFAULTS, *get_args(HashFamily))),
    searches=Option([DEFAULTS, "exact"], "searches", (DEFAULTS, *get_args(Search))),
    selectors=Option([*_GREEDY[:2], "mmr", "dpp", "max_sum"], "selectors", _SELECTORS),
    dials=Option([0.3], "dials of the selectors"),
    candidates=Option([], "candidate limits; without any, the index's", kind=int),
    duplicate_thresholds=Option([], f"cosines from which copies collapse, or {OFF}"),
    timed=Option(40, "queries timed of each kind, 0 for none"),
)
def crowding(options: Options) -> Iterator[Output]:
    """Points with many near-copies: how many results are distinct, how near they are, and the time.

    Synthetic sets consist of near-copies. `made-10` has ten copies of each item, and `made-power`
    has numbers of copies that follow a power law. In the real sets, a share of the rows is replaced
    by copies of other rows, and half of the copies are exact. The queries are indexed documents,
    new documents, topic vectors and hyperplanes.

    Every figure is compared with exact search over all points. `--half` keeps half of the queries
    apart, so that a setting can be chosen on one half and reported on the other. Times are of one
    query at a time on one thread, with settings taking turns. They include the overhead of
    `Index.query`. The setting `defaults` sets no options.
    """
    every: list[Row] = []
    with threadpool_limits(1):
        for crowd in _crowds(options):
            count = max([_RECALL_POINTS, *options.candidates])
            indexes = dict(_indexes(crowd, options.families))
            for kind in options.kinds:
                queries = crowd.queries[kind]
                if options.half != "all":
                    queries = queries.half(odd=options.half == "report")
                truth = Truth.of(crowd, kind, queries, options.k, count)
                yield Table(f"{crowd.name}: {kind}", crowd.described())
                for row in _of_kind(indexes, truth, options):
                    place = {"set": crowd.name, "kind": kind, "crowded": crowd.crowded}
                    every.append({**row, **place})
                    yield row
    yield Table("What the defaults must reach")
    yield from goals(every)


def _crowds(options: Options) -> Iterator[Crowd]:
    for name in options.sets:
        if name in _REAL:
            # If no folder of data sets is configured, the digits replace every real set.
            data = topics.load([_REAL[name]])[0]
            for percent in options.shares:
                yield crowded_points.injected(data, percent / 100, options.queries)
            continue
        for count in options.points:
            kind = name.removeprefix("made-")
            copies = (
                crowded_points.power_law_copies(count)
                if kind == "power"
                else crowded_points.even_copies(count, int(kind))
            )
            title = f"{name}, {copies.sum():,} points"
            yield crowded_points.made(title, copies, options.queries)


def _indexes(crowd: Crowd, families: Sequence[str]) -> Iterator[tuple[str, Index]]:
    for family in families:
        options: dict[str, Any] = {} if family == DEFAULTS else {"hash_family": family}
        try:
            yield family, Index.build(crowd.points, **options)
        except UnsupportedError:
            continue


def _of_kind(indexes: dict[str, Index], truth: Truth, options: Options) -> Iterator[Row]:
    for (family, index), search in product(indexes.items(), options.searches):
        settings = list(settings_of(options, None if search == DEFAULTS else search))
        times = _times(index, settings, truth, options.timed)
        recalls = Recalls(index, truth)
        for setting in settings:
            result = index.query(truth.queries.rows, k=options.k, **setting.parameters)
            measurement, plain = times.get(setting), times.get(settings[0])
            yield {
                "family, search, setting": f"{family}, {search}, {setting.name}",
                "recall": recalls.of(result.parameters),
                "target recall": float(str(index.info.parameters["target_recall"])),
                **figures(truth, result.ids.astype(np.int64), result.parameters.diversity),
                "us": measurement.microseconds if measurement else None,
                "x nearest": measurement.ratio(plain)[0] if measurement and plain else None,
                "search": result.parameters.search,
                "warnings": [warning.code for warning in result.warnings],
            }
    best = "truth, exact, best items"
    yield {"family, search, setting": best, **figures(truth, truth.distinct, options.dials[0])}


def settings_of(options: Options, search: str | None) -> Iterator[Setting]:
    """Yield plain nearest neighbours, the defaults, and all combinations of the options."""
    yield Setting(_NEAREST, 0.0, search=search)
    yield Setting(search=search)
    counts = options.candidates or [None]
    thresholds = options.duplicate_thresholds or [None]
    for axes in product(options.selectors, options.dials, counts, thresholds):
        yield Setting(*axes, search)


def _times(
    index: Index, settings: Sequence[Setting], truth: Truth, query_count: int
) -> dict[Setting, Timed]:
    rows, k = truth.queries.rows, truth.k
    query_count = min(query_count, rows.shape[0])
    if not query_count:
        return {}

    def ask(parameters: dict[str, Any], query: int) -> IntArray:
        ids: IntArray = index.query(rows[[query]], k=k, **parameters).ids[0]
        return ids

    asks: dict[Setting, Ask] = {setting: partial(ask, setting.parameters) for setting in settings}
    return take_turns(asks, query_count, k)


def goals(every: Sequence[Row]) -> Iterator[Row]:
    """Yield the goals of the default family and search at k = 10, each with the worst case."""
    name = "family, search, setting"
    defaults_rows = [row for row in every if row[name].startswith(f"{DEFAULTS}, {DEFAULTS}, ")]
    defaults = [row for row in defaults_rows if row[name].endswith(f", {DEFAULTS}")]
    crowded_rows = [row for row in defaults if row["crowded"]]
    rows_by_place = {(row["set"], row["kind"], row[name]): row for row in every}

    def of_best(row: Row) -> float:
        best = rows_by_place[row["set"], row["kind"], "truth, exact, best items"]
        return float(row["of topic"] / best["of topic"])

    def of_exact(row: Row) -> float | None:
        exact_name = row[name].replace(f", {DEFAULTS}, ", ", exact, ", 1)
        exact = rows_by_place.get((row["set"], row["kind"], exact_name))
        gap = exact["gap closed"] if exact else None
        return row["gap closed"] / gap if gap and gap > 0 and row["gap closed"] else None

    apart = [row for row in defaults if not row["crowded"]]
    greedy = [row for row in defaults_rows if ", greedy" in row[name]]
    cases: list[tuple[str, Sequence[Row], Callable[[Row], float | None], float]] = [
        ("distinct items", crowded_rows, itemgetter("distinct"), 9.0),
        ("items of the topic, as a share of the best items'", crowded_rows, of_best, 0.9),
        ("mean cosine of best", crowded_rows, itemgetter("of best"), 0.95),
        ("mean cosine of nearest, uncrowded", apart, itemgetter("of nearest"), 0.98),
        (
            "recall of candidates less target_recall",
            defaults_rows,
            lambda row: row["recall"] - row["target recall"],
            0.0,
        ),
        ("gap closed by greedy, as a share of exact's", greedy, of_exact, 0.97),
    ]
    for dial, least in _GAP_GOALS.items():
        ending = f"greedy:marginal {dial:g} collapse off"
        marginal = [row for row in defaults_rows if row[name].endswith(ending)]
        title = f"gap closed by marginal {dial:g}, nothing collapsed"
        cases.append((title, marginal, itemgetter("gap closed"), least))
    for case in cases:
        yield from _goal(*case)


def _goal(
    title: str, cases: Sequence[Row], value_of: Callable[[Row], float | None], least: float
) -> Iterator[Row]:
    values = [(value, row) for row in cases if (value := value_of(row)) is not None]
    if values:
        worst, row = min(values, key=lambda pair: pair[0])
        yield {
            "defaults": title,
            "worst": worst,
            "goal": least,
            "reached": sum(value >= least for value, _ in values),
            "cases": len(values),
            "worst at": f"{row['set']}, {row['kind']}",
        }
