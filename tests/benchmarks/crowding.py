"""Points that crowd: how many distinct items come back, how near they are, and at what cost.

Sets are made of near-copies (`made-10` has ten of each item, `made-power` a power law of copies),
or real ones in which a share of the rows are copies of others, half of them exact. Queries are
documents that are indexed, new documents, topic vectors and hyperplanes. Every figure is compared
with exact search over all points. Half of the queries can be kept apart (`--half`): choose a
setting on one half, report it on the other. Times are of one query at a time on one thread, in
turns, and include what `Index.query` does around the search. `defaults` names no option.
`--builds` builds each set that often on busy cores instead, and counts what `auto` became.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from typing import Any, Final, get_args

from threadpoolctl import threadpool_limits

from benchmarks import crowding_builds, crowding_goals, crowding_tables, finders
from benchmarks.crowding_settings import (
    DEFAULTS,
    SELECTORS,
    STRATEGIES,
    Recalls,
    Setting,
    nearest,
    pyversity_picks,
    reported,
    settings,
)
from benchmarks.crowding_tables import Row, measured
from benchmarks.crowding_truth import Truth
from benchmarks.tables import facts, show
from benchmarks.turns import take_turns
from divgrpc.errors import UnsupportedError
from divgrpc.index import Index
from divgrpc.types import HashFamily, IntArray, Search
from divgrpc.warmup import warm_kernels
from divgrpc_lab.data import topics
from support import crowded_points
from support.crowded_points import KINDS, Crowd

_FAMILIES: Final = (DEFAULTS, *get_args(HashFamily))
_SEARCHES: Final = (DEFAULTS, *get_args(Search))
_REAL: Final = {
    "cifar": "cifar100_dense256",
    "bovw": "cifar100_7x5_bovw",
    "news": "newsgroups20",
}
_MADE: Final = ("made-1", "made-3", "made-10", "made-30", "made-power")
# Of the nearest points that recall of candidates is measured against.
_NEAREST: Final = 1_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the run can be told."""
    sets = (*_MADE, *_REAL)
    parser.add_argument(
        "--sets",
        nargs="+",
        default=["made-1", "made-10", "made-power", "cifar", "news"],
        choices=sets,
        metavar="SET",
        help=f"of {' '.join(sets)} (default all but made-3, made-30 and bovw)",
    )
    parser.add_argument(
        "--points", type=int, nargs="+", default=[8_000], help="of made sets (default 8000)"
    )
    parser.add_argument(
        "--shares",
        type=float,
        nargs="+",
        default=[0, 50],
        metavar="PERCENT",
        help="of copies in real sets (default 0 50)",
    )
    parser.add_argument("--k", type=int, default=10, help="results per query (default 10)")
    parser.add_argument("--queries", type=int, default=200, help="of each kind (default 200)")
    parser.add_argument("--half", choices=["choose", "report", "all"], default="report")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--builds", type=int, default=0, help="of each set, and nothing else")
    _add_axes(parser)


def _add_axes(parser: argparse.ArgumentParser) -> None:
    """Declare what is built and how it is asked."""
    parser.add_argument("--families", nargs="+", default=[DEFAULTS], choices=_FAMILIES)
    parser.add_argument("--searches", nargs="+", default=[DEFAULTS, "exact"], choices=_SEARCHES)
    parser.add_argument(
        "--selectors",
        nargs="*",
        default=["greedy:corrected", "greedy:marginal", "mmr", "dpp", "max_sum"],
        choices=SELECTORS,
        metavar="SELECTOR",
        help=f"beside nearest and defaults, of {' '.join(SELECTORS)} (default all but "
        "greedy:printed and rerank)",
    )
    parser.add_argument("--dials", type=float, nargs="+", default=[0.3], help="(default 0.3)")
    parser.add_argument(
        "--candidates", type=int, nargs="*", default=[], help="(default the index's own)"
    )
    parser.add_argument(
        "--duplicate-thresholds",
        nargs="*",
        default=[],
        metavar="T",
        help="cosines above which copies are collapsed, or off (default the index's own)",
    )
    parser.add_argument(
        "--baselines", nargs="*", default=list(STRATEGIES), choices=STRATEGIES, help="of pyversity"
    )
    parser.add_argument(
        "--timed", type=int, default=40, help="queries timed of each kind, 0 for none (default 40)"
    )


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Measure, print a table for each set and kind of queries, and return the rows for JSON."""
    warm_kernels()
    if arguments.builds:
        found = [
            crowding_builds.build_again(crowd, arguments.builds) for crowd in _crowds(arguments)
        ]
        show(crowding_builds.drawn(found))
        return {"builds": [asdict(each) for each in found]}
    described: list[dict[str, str]] = []
    rows: list[Row] = []
    with threadpool_limits(1):
        for crowd in _crowds(arguments):
            show(f"\n## Crowding: {crowd.name}\n")
            described.append(crowd.described())
            show(facts(described[-1]) + "\n")
            rows += _on(crowd, arguments)
    show("All sets together\n")
    show(crowding_tables.summary(rows) + "\n")
    verdicts = crowding_goals.verdicts(rows)
    show("What the defaults must reach\n")
    show(crowding_goals.drawn(verdicts) + "\n")
    return {
        "data": described,
        "k": arguments.k,
        "rows": [asdict(row) for row in rows],
        "goals": [asdict(verdict) for verdict in verdicts],
    }


def _crowds(arguments: argparse.Namespace) -> Iterator[Crowd]:
    """Yield the sets, one in memory at a time."""
    queries = arguments.queries
    for name in arguments.sets:
        if name in _REAL:
            # Without a folder of data sets the digits stand for each of them.
            data = topics.load([_REAL[name]])[0]
            for percent in arguments.shares:
                yield crowded_points.injected(data, percent / 100, queries)
            continue
        for count in arguments.points:
            kind = name.removeprefix("made-")
            copies = (
                crowded_points.power_law_copies(count)
                if kind == "power"
                else crowded_points.even_copies(count, int(kind))
            )
            yield crowded_points.made(f"{name}, {copies.sum():,} points", copies, queries)


def _on(crowd: Crowd, arguments: argparse.Namespace) -> list[Row]:
    """Measure everyone on one set."""
    count = max([_NEAREST, *arguments.candidates])
    truths: list[Truth] = []
    for kind in arguments.kinds:
        queries = crowd.queries[kind]
        if arguments.half != "all":
            queries = queries.half(odd=arguments.half == "report")
        truths.append(Truth.of(crowd, kind, queries, arguments.k, count))
    rows: list[Row] = []
    for family in arguments.families:
        try:
            index = (
                Index.build(crowd.points)
                if family == DEFAULTS
                else Index.build(crowd.points, hash_family=family)
            )
        except UnsupportedError as error:
            show(f"{family}: {error}")
            continue
        show(_became(family, index))
        for truth in truths:
            rows += _asked(index, family, truth, arguments)
    for truth in truths:
        rows += _baselines(truth, arguments)
        drawn = [row for row in rows if row.kind == truth.kind]
        show(f"\n{truth.kind}: {truth.queries.rows.shape[0]} queries\n")
        show(crowding_tables.drawn(drawn) + "\n")
    return rows


def _became(family: str, index: Index) -> str:
    """Say what Build chose, and of what it warned."""
    lines = [f"{family}: {index.info.parameters['hash_family']}, auto {index.info.auto_search}"]
    lines += [f"  {each.parameter} {each.value}: {each.reason}" for each in index.info.choices]
    lines += [f"  {each.code}: {each.message}" for each in index.info.warnings]
    return "\n".join(lines)


def _asked(index: Index, family: str, truth: Truth, arguments: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each setting of our own."""
    asked = [
        setting
        for search in arguments.searches
        for setting in settings(
            arguments.selectors,
            arguments.dials,
            arguments.candidates,
            arguments.duplicate_thresholds,
            None if search == DEFAULTS else search,
        )
    ]
    times = _times(index, asked, truth, arguments.timed)
    recalls = Recalls(index, truth)
    for setting in asked:
        result = index.query(truth.queries.rows, k=arguments.k, **setting.parameters)
        plain = nearest(setting.search)
        yield measured(
            truth,
            result.ids,
            Row(
                data=truth.crowd.name,
                crowded=truth.crowd.crowded,
                kind=truth.kind,
                family=family,
                search=setting.search or DEFAULTS,
                setting=setting.name,
                parameters=reported(result.parameters),
                recall=recalls.of(result.parameters),
                target_recall=float(str(index.info.parameters["target_recall"])),
                microseconds=times.get(setting),
                than_nearest=times[setting] / times[plain] if times else None,
                warnings=[warning.code for warning in result.warnings],
            ),
            result.parameters.diversity,
        )


def _times(index: Index, asked: list[Setting], truth: Truth, timed: int) -> dict[Setting, float]:
    """Return the microseconds of a query at each setting, asked in turns."""
    rows, k = truth.queries.rows, truth.k
    timed = min(timed, rows.shape[0])
    if not timed:
        return {}
    singles = [rows[[i]] for i in range(timed)]

    def ask(parameters: dict[str, Any], query: int) -> IntArray:
        ids: IntArray = index.query(singles[query], k=k, **parameters).ids[0]
        return ids

    askings = {setting: partial(ask, setting.parameters) for setting in asked}
    return {name: each.microseconds for name, each in take_turns(askings, timed, k).items()}


def _baselines(truth: Truth, arguments: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for the nearest distinct items, and for pyversity's picks of exact candidates."""
    row = Row(
        truth.crowd.name,
        truth.crowd.crowded,
        truth.kind,
        "truth",
        "exact",
        crowding_tables.BEST_ITEMS,
    )
    yield measured(truth, truth.distinct, row, arguments.dials[0])
    if arguments.baselines and "pyversity" in finders.missing():
        show("pyversity is not installed and does not take part")
        return
    counts: Sequence[int | None] = arguments.candidates or [None]
    for strategy, dial, count in product(arguments.baselines, arguments.dials, counts):
        picks = pyversity_picks(truth, strategy, dial, count)
        setting = Setting(strategy, dial, count).name
        yield measured(
            truth, picks, replace(row, family="pyversity", setting=setting, recall=1.0), dial
        )
