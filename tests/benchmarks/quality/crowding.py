"""Points that crowd: how many distinct items come back, how near they are, and at what cost.

Synthetic sets consist of near-copies (`made-10` has ten of each item, `made-power` a power law of
copies). In real sets a share of the rows are copies of others, half of them exact. Queries are
indexed documents, new documents, topic vectors and hyperplanes. Every figure is compared with exact
search over all points. `--half` keeps half of the queries apart, so that a setting can be chosen on
one half and reported on the other. Times are of one query at a time on one thread, in turns, and
include what `Index.query` does around the search. `defaults` names no option.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, Final, get_args

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.harness import others
from benchmarks.harness.datasets import topics
from benchmarks.harness.runner import Option, Options, Output
from benchmarks.harness.tables import Row, Table
from benchmarks.harness.turns import Ask, Timed, take_turns
from benchmarks.quality.crowding_figures import Recalls, Truth, figures
from divgrpc.errors import UnsupportedError
from divgrpc.index import Index
from divgrpc.types import HashFamily, IntArray, Search
from support import crowded_points
from support.crowded_points import KINDS, Crowd

DEFAULTS: Final = "defaults"
OFF: Final = "off"
_NEAREST: Final = "nearest"
_REAL: Final = {
    "cifar": "cifar100_dense256",
    "bovw": "cifar100_7x5_bovw",
    "news": "newsgroups20",
}
_SETS: Final = ("made-1", "made-3", "made-10", "made-30", "made-power", *_REAL)
_GREEDY: Final = ("greedy:corrected", "greedy:marginal", "greedy:printed")
_SELECTORS: Final = (*_GREEDY, "mmr", "dpp", "max_sum", "rerank")
_BASELINES: Final = ("mmr", "msd", "dpp")
OPTIONS: Final = {
    "sets": Option(["made-1", "made-10", "made-power", "cifar", "news"], "data sets", _SETS),
    "points": Option([8_000], "points of synthetic sets"),
    "shares": Option([0.0, 50.0], "percent of copies in real sets"),
    "k": Option(10, "results per query"),
    "queries": Option(200, "queries of each kind"),
    "half": Option("report", "half of the queries", ("choose", "report", "all")),
    "kinds": Option(list(KINDS), "kinds of queries", KINDS),
    "families": Option([DEFAULTS], "hash families", (DEFAULTS, *get_args(HashFamily))),
    "searches": Option([DEFAULTS, "exact"], "searches", (DEFAULTS, *get_args(Search))),
    "selectors": Option([*_GREEDY[:2], "mmr", "dpp", "max_sum"], "selectors", _SELECTORS),
    "dials": Option([0.3], "dials of the selectors"),
    "candidates": Option([], "candidate limits, the index's without any", kind=int),
    "duplicate_thresholds": Option([], f"cosines of collapsed copies, or {OFF}"),
    "baselines": Option(list(_BASELINES), "strategies of pyversity", _BASELINES),
    "timed": Option(40, "queries timed of each kind, 0 for none"),
}
# Nearest points that recall of candidates is measured against.
_RECALL_POINTS: Final = 1_000
_BASELINE_CANDIDATES: Final = 200
# What `marginal` must close of the gap in J with nothing collapsed, by dial.
_GAP_GOALS: Final = {0.1: 0.95, 0.3: 0.95, 0.5: 0.93}


@dataclass(frozen=True)
class Setting:
    """One way to ask: `selector` may name a variant; None leaves a parameter to its default."""

    selector: str = DEFAULTS
    diversity: float | None = None
    candidates: int | None = None
    threshold: str | None = None
    search: str | None = None

    @property
    def name(self) -> str:
        """The setting in a table, without the search."""
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
        """Parameters of a query beside k."""
        selector, _, variant = self.selector.partition(":")
        named = {
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
        return {name: value for name, value in named.items() if value is not None}


def rows(options: Options) -> Iterator[Output]:
    """Yield a table for each set and kind of queries, and the goals of the defaults."""
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
                    hidden = {"set": crowd.name, "kind": kind, "crowded": crowd.crowded}
                    every.append({**row, **hidden})
                    yield row
    yield Table("What the defaults must reach")
    yield from goals(every)


def _crowds(options: Options) -> Iterator[Crowd]:
    """Yield the sets, one in memory at a time."""
    for name in options.sets:
        if name in _REAL:
            # Without a folder of data sets the digits stand for each of them.
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
            timed, plain = times.get(setting), times.get(settings[0])
            yield {
                "family, search, setting": f"{family}, {search}, {setting.name}",
                "recall": recalls.of(result.parameters),
                "target recall": float(str(index.info.parameters["target_recall"])),
                **figures(truth, result.ids, result.parameters.diversity),
                "us": timed.microseconds if timed else None,
                "x nearest": timed.ratio(plain)[0] if timed and plain else None,
                "search": result.parameters.search,
                "warnings": [warning.code for warning in result.warnings],
            }
    best = "truth, exact, best items"
    yield {"family, search, setting": best, **figures(truth, truth.distinct, options.dials[0])}
    counts = options.candidates or [_BASELINE_CANDIDATES]
    baselines = [] if others.missing("pyversity") else options.baselines
    for strategy, dial, count in product(baselines, options.dials, counts):
        name = f"pyversity, exact, {Setting(strategy, dial, count).name}"
        picks = _pyversity(truth, strategy, dial, count)
        yield {"family, search, setting": name, **figures(truth, picks, dial)}


def settings_of(options: Options, search: str | None) -> Iterator[Setting]:
    """Yield plain nearest neighbours, the defaults, and every combination of the axes."""
    yield Setting(_NEAREST, 0.0, search=search)
    yield Setting(search=search)
    counts = options.candidates or [None]
    thresholds = options.duplicate_thresholds or [None]
    for axes in product(options.selectors, options.dials, counts, thresholds):
        yield Setting(*axes, search)


def _times(
    index: Index, settings: Sequence[Setting], truth: Truth, timed: int
) -> dict[Setting, Timed]:
    rows, k = truth.queries.rows, truth.k
    timed = min(timed, rows.shape[0])
    if not timed:
        return {}

    def ask(parameters: dict[str, Any], query: int) -> IntArray:
        ids: IntArray = index.query(rows[[query]], k=k, **parameters).ids[0]
        return ids

    asks: dict[Setting, Ask] = {each: partial(ask, each.parameters) for each in settings}
    return take_turns(asks, timed, k)


def _pyversity(truth: Truth, strategy: str, diversity: float, count: int) -> IntArray:
    """Return what pyversity picks (nq, k) among the nearest `count` points of each query."""
    k = truth.k
    dial = others.msd_dial(diversity, k) if strategy == "msd" else diversity
    picks = np.full((len(truth.nearest), k), -1)
    for i, rows in enumerate(truth.nearest[:, :count]):
        vectors = truth.crowd.points[rows]
        if hasattr(vectors, "toarray"):
            # Words that no candidate has change no product.
            vectors = vectors[:, np.unique(vectors.indices)].toarray()
        scores = truth.near[i, : len(rows)]
        places = others.pyversity(strategy, vectors, scores, k, dial)
        picks[i, : len(places)] = rows[places]
    return picks


def goals(every: Sequence[Row]) -> Iterator[Row]:
    """Yield the goals of the defaults, with the worst value and where it is; k is ten."""
    name = "family, search, setting"
    own = [row for row in every if row[name].startswith(f"{DEFAULTS}, {DEFAULTS}, ")]
    defaults = [row for row in own if row[name].endswith(f", {DEFAULTS}")]
    crowded = [row for row in defaults if row["crowded"]]
    known = {(row["set"], row["kind"], row[name]): row for row in every}

    def of_best(row: Row) -> float:
        best = known[row["set"], row["kind"], "truth, exact, best items"]
        return float(row["of topic"] / best["of topic"])

    def of_exact(row: Row) -> float | None:
        exact = known.get((row["set"], row["kind"], _exact_name(row[name])))
        gap = exact["gap closed"] if exact else None
        return row["gap closed"] / gap if gap and gap > 0 and row["gap closed"] else None

    yield from _goal("distinct items", crowded, lambda row: row["distinct"], 9.0)
    yield from _goal("items of the topic, as a share of the best items'", crowded, of_best, 0.9)
    yield from _goal("mean cosine of best", crowded, lambda row: row["of best"], 0.95)
    apart = [row for row in defaults if not row["crowded"]]
    yield from _goal(
        "mean cosine of nearest, uncrowded", apart, lambda row: row["of nearest"], 0.98
    )
    yield from _goal(
        "recall of candidates less target_recall",
        own,
        lambda row: row["recall"] - row["target recall"],
        0.0,
    )
    for dial, least in _GAP_GOALS.items():
        ending = f"greedy:marginal {dial:g} collapse off"
        marginal = [row for row in own if row[name].endswith(ending)]
        title = f"gap closed by marginal {dial:g}, nothing collapsed"
        yield from _goal(title, marginal, lambda row: row["gap closed"], least)
    greedy = [row for row in own if ", greedy" in row[name]]
    yield from _goal("gap closed by greedy, as a share of exact's", greedy, of_exact, 0.97)


def _exact_name(name: str) -> str:
    family, _, setting = name.split(", ", 2)
    return f"{family}, exact, {setting}"


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
