"""h of the defaults on hyperplane queries, beside nearest neighbours and beside the first default.

Sets with sub-topics, no option at Build, and half of the queries of each category: the half that
did not choose the defaults. A category's h is the mean over its queries and over the hash seeds.
Changes are paired by category, with a 95 % Student interval over categories. The first default is
`greedy`, `corrected`, at 0.3, of 200 candidates, with nothing collapsed; it is asked as queries are
searched today.
`--dials` adds the defaults at other dials. *Of nearest* is the mean cosine as a share of plain
neighbours'.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from scipy import stats
from threadpoolctl import threadpool_limits

from benchmarks.tables import facts, show, table
from divgrpc.index import Index
from divgrpc.metrics import Values, h_score, judge, list_distances
from divgrpc.types import IntArray
from divgrpc.warmup import warm_kernels
from divgrpc_lab.data import topics

Options = Mapping[str, Any]

DEFAULTS: Final = "defaults"
_NEAREST: Final = "nearest"
_FIRST: Final = "first default"
_BESIDE: Final[Mapping[str, Options]] = {
    _NEAREST: {"diversity": 0.0},
    _FIRST: {
        "selector": "greedy",
        "variant": "corrected",
        "diversity": 0.3,
        "candidates_limit": 200,
        "keep_duplicates": True,
    },
}
_CONFIDENCE: Final = 0.95


@dataclass(frozen=True)
class Row:
    """The change of h of one setting on one set; means over categories."""

    data: str
    setting: str
    beside: str
    categories: int
    queries: int
    h: float
    of_nearest: float
    change: float
    low: float
    high: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the run can be told."""
    sets = list(topics.SETS)
    parser.add_argument("--sets", nargs="+", default=sets, choices=sets, help="(default all)")
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument(
        "--per-category", type=int, default=50, help="queries, half of which report (default 50)"
    )
    parser.add_argument("--seeds", type=int, default=3, help="of the hash (default 3)")
    parser.add_argument("--dials", type=float, nargs="*", default=[], help="beside the default")


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Measure, print a table, and return the rows for JSON."""
    warm_kernels()
    described: list[dict[str, str]] = []
    rows: list[Row] = []
    show(f"\n## h of the defaults, k = {arguments.k}\n")
    for data in topics.load(arguments.sets):
        described.append(data.described())
        show(facts(described[-1]) + "\n")
        with threadpool_limits(1):
            rows += _rows(data, arguments)
    show(drawn(rows))
    return {"data": described, "rows": [asdict(row) for row in rows]}


def change_over_categories(
    values: Values, others: Values, asked: IntArray
) -> tuple[float, float, float]:
    """Return the mean change over categories from `others` (nq,) to `values` (nq,), and its ends.

    The interval is Student's, at 95 %, of the categories' mean changes. `asked` (nq,) are the
    categories; there are at least two.
    """
    changes = np.array([(values - others)[asked == each].mean() for each in np.unique(asked)])
    error = changes.std(ddof=1) / len(changes) ** 0.5
    room = float(stats.t.ppf((1 + _CONFIDENCE) / 2, len(changes) - 1) * error)
    mean = float(changes.mean())
    return mean, mean - room, mean + room


def _rows(data: topics.Topics, arguments: argparse.Namespace) -> list[Row]:
    queries, asked = data.queries(arguments.per_category)
    # Every category has as many queries, one after another.
    reported = np.arange(len(asked)) % arguments.per_category % 2 == 1
    queries, asked = queries[reported], asked[reported]
    settings = {DEFAULTS: {}, **{f"at {dial:g}": {"diversity": dial} for dial in arguments.dials}}
    measured: dict[str, list[tuple[Values, Values]]] = {name: [] for name in (*settings, *_BESIDE)}
    for seed in range(arguments.seeds):
        index = Index.build(data.points, seed=seed)
        for name, options in (settings | dict(_BESIDE)).items():
            ids = index.query(queries, k=arguments.k, **options).ids
            cosines = 1 - list_distances(data.points, queries, ids).to_query / 2
            measured[name].append((h_score(judge(ids, asked, data.labels)), cosines))
    means = {name: np.mean(values, axis=0) for name, values in measured.items()}
    return [
        Row(
            data.name,
            setting,
            beside,
            len(np.unique(asked)),
            len(asked),
            float(means[setting][0].mean()),
            float(means[setting][1].mean() / means[_NEAREST][1].mean()),
            *change_over_categories(means[setting][0], means[beside][0], asked),
        )
        for setting in settings
        for beside in _BESIDE
    ]


def drawn(rows: Sequence[Row]) -> str:
    """Draw one line per setting and what it is beside."""
    heads = ("set, setting", "beside", "categories", "queries", "h", "of nearest")
    return table(
        (*heads, "change of h", "from", "to"),
        [
            (
                f"{row.data}, {row.setting}",
                row.beside,
                f"{row.categories}",
                f"{row.queries}",
                f"{row.h:.3f}",
                f"{row.of_nearest:.3f}",
                f"{row.change:+.3f}",
                f"{row.low:+.3f}",
                f"{row.high:+.3f}",
            )
            for row in rows
        ],
    )
