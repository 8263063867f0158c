"""Dials chosen for each query, beside the best fixed one and beside what no rule can know.

Hyperplane queries on sets with sub-topics, and made points where nothing crowds: stories of topics,
a story once, asked with stories. Searches are exact. Half of the queries choose the fixed dial, the
other half is reported. *Fixed* is the best one dial for all sets together and *own* the best for
this set. *Oracle* takes for each query the dial that its labels like best, with hindsight; *by
category* the dial that labels like best on other queries of the same category, which is more than a
rule without labels can know. A share is of the way from *own* to *oracle*. Times are of one query
at a time on one thread, in turns, as a multiple of the time at a fixed dial of as many candidates.
The time of the rule is that of the kernel that chooses the dial, its call included.
"""

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from benchmarks.tables import show, table
from benchmarks.turns import Asking, take_turns
from divgrpc.index import Index
from divgrpc.kernels.dials import fall_off_step
from divgrpc.kernels.records import Candidates
from divgrpc.metrics import Labels, Values, alpha_ndcg, h_score, judge
from divgrpc.search.dials import METRICS
from divgrpc.types import FloatArray, IntArray
from divgrpc.warmup import warm_kernels
from divgrpc_lab.data import topics
from reference.index import kernel_points, selection_scratch

_DIALS: Final = tuple(step / 32 for step in range(0, 33, 2))
_SELECTORS: Final[Mapping[str, Mapping[str, str]]] = {
    "greedy, marginal": {"selector": "greedy", "variant": "marginal"},
    "mmr": {"selector": "mmr"},
    "dpp": {"selector": "dpp"},
}
_MEASURES: Final = {"alpha-nDCG": alpha_ndcg, "h": h_score}
_UNCROWDED: Final = "made, nothing crowds"
_BOUND: Final = 0.05
_CANDIDATES: Final = 200
# Calls of the rule that are timed together, and how often.
_CALLS: Final = 1_000
_TIMINGS: Final = 9


@dataclass(frozen=True)
class Row:
    """One selector and measure on one set; means over the reported half of the queries."""

    data: str
    selector: str
    measure: str
    nearest: float
    fixed: float
    own: float
    auto: float
    by_category: float
    oracle: float
    share: float
    times_auto: float
    times_bound: float
    rule_microseconds: float


@dataclass(frozen=True, eq=False)
class _Set:
    name: str
    index: Index
    queries: FloatArray
    asked: IntArray
    labels: Labels

    def values(self, k: int, **told: Any) -> dict[str, Values]:  # noqa: ANN401  # options of a query
        found = self.index.query(self.queries, k=k, search="exact", **told)
        judged = judge(found.ids, self.asked, self.labels)
        return {name: measure(judged) for name, measure in _MEASURES.items()}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the run can be told."""
    sets = list(topics.SETS)
    parser.add_argument("--sets", nargs="+", default=sets, choices=sets, help="(default all)")
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--per-category", type=int, default=50, help="queries (default 50)")
    parser.add_argument("--timed", type=int, default=80, help="queries timed (default 80)")


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Measure, print a table for each selector, and return the rows for JSON."""
    warm_kernels()
    sets = [
        _Set(
            data.name, Index.build(data.points), *data.queries(arguments.per_category), data.labels
        )
        for data in topics.load(arguments.sets)
    ]
    sets.append(_uncrowded())
    rows: list[Row] = []
    for selector, told in _SELECTORS.items():
        own = _rows(sets, selector, told, arguments)
        show(f"\n## Dials of each query: {selector}, k = {arguments.k}\n")
        show(_drawn(own))
        rows += own
    show("\nShare of the way from own to oracle, over real sets and both measures\n")
    show(_summary(rows))
    return {"rows": [asdict(row) for row in rows]}


def _uncrowded(topic_count: int = 40, stories: int = 20, dims: int = 128) -> _Set:
    """Return stories with a cosine of .6 within a topic, each once, asked with stories."""
    rng = np.random.default_rng(0)
    centres = _unit(rng.standard_normal((topic_count, 1, dims)))
    own = _unit(rng.standard_normal((topic_count, stories, dims)))
    points = _unit(np.sqrt(0.6) * centres + np.sqrt(0.4) * own).reshape(-1, dims)
    points = points.astype(np.float32)
    asked = np.repeat(np.arange(topic_count), stories)
    labels = Labels.of(asked, np.arange(len(points)))
    return _Set(_UNCROWDED, Index.build(points), points[::4], asked[::4], labels)


def _unit(rows: Any) -> Any:  # noqa: ANN401  # float64 in, float64 out
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def _rows(
    sets: Sequence[_Set], selector: str, told: Mapping[str, str], arguments: argparse.Namespace
) -> list[Row]:
    k, rows = arguments.k, []
    at_dials = {each.name: [each.values(k, diversity=d, **told) for d in _DIALS] for each in sets}
    autos = {each.name: each.values(k, diversity="auto", **told) for each in sets}
    times = {each.name: _times(each, k, told, arguments.timed) for each in sets}
    rules = {each.name: _rule_microseconds(each, k) for each in sets}
    for measure in _MEASURES:
        tables = {
            name: np.array([values[measure] for values in each]) for name, each in at_dials.items()
        }
        fixed = int(np.mean([t[:, ::2].mean(axis=1) for t in tables.values()], axis=0).argmax())
        for each in sets:
            values, auto = tables[each.name], autos[each.name][measure][1::2].mean()
            chosen, reported = values[:, ::2], values[:, 1::2]
            own = reported[chosen.mean(axis=1).argmax()].mean()
            oracle = reported.max(axis=0).mean()
            share = (auto - own) / (oracle - own) if oracle - own > 1e-3 else float("nan")
            rows.append(
                Row(
                    each.name,
                    selector,
                    measure,
                    float(reported[0].mean()),
                    float(reported[fixed].mean()),
                    float(own),
                    float(auto),
                    _by_category(values, each.asked),
                    float(oracle),
                    float(share),
                    *times[each.name],
                    rules[each.name],
                )
            )
    return rows


def _by_category(values: Values, asked: IntArray) -> float:
    """Return the mean at the dials that are best on the first half of a category's queries."""
    reported = []
    for category in np.unique(asked):
        own = values[:, asked == category]
        reported.append(own[own[:, ::2].mean(axis=1).argmax(), 1::2])
    return float(np.concatenate(reported).mean())


def _times(each: _Set, k: int, told: Mapping[str, str], timed: int) -> tuple[float, float]:
    """Return how many times as long a chosen dial takes: an automatic one, and a bounded one."""
    options: dict[str, Mapping[str, Any]] = {
        "fixed": {"diversity": 0.25, "candidates_limit": _CANDIDATES},
        "auto": {"diversity": "auto"},
        "bound": {"lose_at_most": _BOUND},
    }
    asks: dict[str, Asking] = {
        name: partial(_ask, each, {"k": k, **told, **option}) for name, option in options.items()
    }
    found = take_turns(asks, min(timed, len(each.queries)), k)
    base = found["fixed"].microseconds
    return found["auto"].microseconds / base, found["bound"].microseconds / base


def _rule_microseconds(each: _Set, k: int) -> float:
    """Return what choosing one dial takes, the least of some timings, a query after another.

    The distances are those of the set. The vectors, which are compared to find near-copies, are
    random ones of 256 dimensions.
    """
    scores = each.index.query(
        each.queries[:_TIMINGS],
        k=min(_CANDIDATES, len(each.index)),
        selector="nearest",
        diversity=0.0,
        search="exact",
    ).scores
    seconds = []
    count, rng = scores.shape[1], np.random.default_rng(0)
    points = kernel_points(rng.standard_normal((count, 256)).astype(np.float32))
    rows = np.arange(count, dtype=np.int32)
    rest = (np.float32(0.1), selection_scratch(count, points), 0.5, METRICS["cosine"])
    for distances in (2 - 2 * scores).astype(np.float32):
        candidates = Candidates(rows, distances)
        begun = time.perf_counter()
        for _ in range(_CALLS):
            fall_off_step(points, candidates, count, k, *rest)
        seconds.append((time.perf_counter() - begun) / _CALLS)
    return 1e6 * min(seconds)


def _ask(each: _Set, options: Mapping[str, Any], query: int) -> IntArray:
    ids: IntArray = each.index.query(each.queries[query], **options).ids[0]
    return ids


def _drawn(rows: Sequence[Row]) -> str:
    heads = ["set, measure", "nearest", "fixed", "own", "auto", "by category", "oracle", "share"]
    return table(
        [*heads, "time of auto", "of a bound", "us of the rule"],
        [
            (
                f"{row.data}, {row.measure}",
                *(
                    f"{value:.3f}"
                    for value in (
                        row.nearest,
                        row.fixed,
                        row.own,
                        row.auto,
                        row.by_category,
                        row.oracle,
                    )
                ),
                "" if np.isnan(row.share) else f"{row.share:+.2f}",
                f"{row.times_auto:.2f}",
                f"{row.times_bound:.2f}",
                f"{row.rule_microseconds:.2f}",
            )
            for row in rows
        ],
    )


def _summary(rows: Sequence[Row]) -> str:
    """Draw a line for each selector: shares of the rule, and what it keeps where nothing crowds."""
    lines = []
    for selector in dict.fromkeys(row.selector for row in rows):
        own = [row for row in rows if row.selector == selector]
        real = [row for row in own if row.data != _UNCROWDED and not np.isnan(row.share)]
        known = [(row.by_category - row.own) / (row.oracle - row.own) for row in real]
        [apart] = (r for r in own if r.data == _UNCROWDED and r.measure == "alpha-nDCG")
        lines.append(
            (
                selector,
                *(_spread([row.share for row in real])),
                *(_spread(known)),
                f"{apart.fixed / apart.nearest:.3f}",
                f"{apart.auto / apart.nearest:.3f}",
            )
        )
    heads = ("selector", "auto: mean", "least", "most", "by category: mean", "least", "most")
    return table((*heads, "nothing crowds, alpha-nDCG of nearest: fixed", "auto"), lines)


def _spread(shares: Sequence[float]) -> tuple[str, str, str]:
    """Return the mean, the least and the greatest; nothing where there is none."""
    if not shares:
        return "", "", ""
    mean, least, most = float(np.mean(shares)), min(shares), max(shares)
    return f"{mean:+.2f}", f"{least:+.2f}", f"{most:+.2f}"
