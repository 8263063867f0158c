"""The gain run's rows: settings chosen, queries timed, a table drawn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from benchmarks import shares, sweeps
from benchmarks.exhaustive import Everything
from benchmarks.shares import Choice
from benchmarks.sweeps import Setting
from benchmarks.tables import show, table
from benchmarks.trees import Trees
from benchmarks.turns import Asking, take_turns
from divgrpc.evaluation import FOLDS, deal_folds
from divgrpc.hashing.count_sketch import CountSketch
from divgrpc.index import Index
from divgrpc.kernels.projection import project_query
from divgrpc.kernels.records import Hashing, Queries
from divgrpc.metrics import Interval, Values, gain_share_interval
from divgrpc.parameters import QueryParameters
from divgrpc.search.arrays import pack_queries
from divgrpc.types import FloatArray, IntArray, Search
from divgrpc.vectors import Rows
from divgrpc_lab.data.hyperplanes import HyperplaneQueries

NEAREST: Final = "nearest"
EVERYTHING: Final = "all points"
BY_COLUMNS: Final = "all points, by columns"
EXACT: Final = "exact pass"
HASHING: Final = "hashing"

Measured = dict[Setting, Values]
# A contestant's name, and whether its limits are by folds.
Key = tuple[str, bool]


@dataclass(frozen=True, eq=False)
class Ready:
    """What the rows of one k are made from.

    `measured` has for each contestant and hash seed its measures (4, nq) by setting: the first
    seed's at all, the others' at what was chosen.
    """

    data: str
    k: int
    asked: HyperplaneQueries
    everything: Everything
    indexes: Mapping[str, Index]
    measured: Mapping[str, Sequence[Measured]]
    trees: Mapping[str, Trees]


@dataclass(frozen=True)
class Row:
    """One contestant on one set at one k; times in microseconds, ratios as times faster.

    `part` is the part of the default limits; the share has its 95 % interval, and is None where
    the exhaustive greedy gains too little for one.
    """

    data: str
    k: int
    name: str
    search: str
    by_folds: bool
    part: float
    variant: str
    dial: float
    precision: float
    subtopic_recall: float
    diversity: float
    h: float
    share: Interval | None
    microseconds: float | None
    hashing: float | None
    than_exhaustive: float | None
    than_exact: float | None


def dials(ready: Ready) -> dict[str, dict[float, Choice]]:
    """Choose dial and variant by folds, for everyone at each part of the default limits."""
    folds = deal_folds(ready.asked.asked)
    chosen: dict[str, dict[float, Choice]] = {}
    for name, (first, *_) in ready.measured.items():
        for part in dict.fromkeys(setting.part for setting in first):
            own = {setting: values for setting, values in first.items() if setting.part == part}
            chosen.setdefault(name, {})[part] = shares.choose(own, folds)
    return chosen


def _choices(ready: Ready, by_part: Mapping[str, Mapping[float, Choice]]) -> dict[Key, Choice]:
    """Return what is reported: everyone at default limits, ours with limits by folds as well."""
    folds = deal_folds(ready.asked.asked)
    everything, best = ready.measured[EVERYTHING], by_part[EVERYTHING][1.0]
    chosen = {
        (NEAREST, False): Choice((Setting(0.0),) * FOLDS, Setting(0.0)),
        (EVERYTHING, False): best,
    }
    if ready.everything.columns is not None:
        chosen[BY_COLUMNS, False] = best
    for name in (EXACT, *ready.trees):
        chosen[name, False] = by_part[name][1.0]
    least = shares.enough(everything[0][Setting(0.0)][3], best.values(everything, folds)[3])
    for name in ready.indexes:
        own = by_part[name]
        chosen[name, False] = own[1.0]
        chosen[name, True] = shares.choose_limits(own, ready.measured[name], folds, least)
    return chosen


def compare(ready: Ready, by_part: Mapping[str, Mapping[float, Choice]], timed: int) -> list[Row]:
    """Time so many queries at what was chosen for one k, print and return the rows."""
    folds, chosen = deal_folds(ready.asked.asked), _choices(ready, by_part)
    values = {
        key: choice.values(ready.measured.get(key[0], ready.measured[EVERYTHING]), folds)
        for key, choice in chosen.items()
    }
    nearest, best = values[NEAREST, False][3], values[EVERYTHING, False][3]
    gain = float((best - nearest).mean())
    verdict = "" if gain > shares.WORTH else ": no gain to be had"
    show(f"k = {ready.k}: exhaustive greedy gains {gain:.3f} of h over nearest points{verdict}\n")
    times = _times(ready, chosen, timed)
    rows = []
    for key, choice in chosen.items():
        ends = (values[key][3], nearest, best)
        worth = gain > shares.WORTH and key[0] != NEAREST
        share = gain_share_interval(*ends) if worth else None
        rows.append(_row(ready, key, choice.overall, values[key], share=share, times=times))
    show(drawn(rows) + "\n")
    return rows


def _row(
    ready: Ready,
    key: Key,
    setting: Setting,
    values: Values,
    *,
    share: Interval | None,
    times: Mapping[Key, float],
) -> Row:
    name, by_folds = key
    index, taken = ready.indexes.get(name), times.get(key)
    precision, subtopic_recall, diversity, h = values.mean(axis=1).tolist()
    return Row(
        data=ready.data,
        k=ready.k,
        name=name,
        search=_search(index, name) if index else "",
        by_folds=by_folds,
        part=setting.part,
        variant=setting.variant,
        dial=setting.diversity,
        precision=precision,
        subtopic_recall=subtopic_recall,
        diversity=diversity,
        h=h,
        share=share,
        microseconds=taken,
        hashing=times[HASHING, False] if index else None,
        than_exhaustive=taken and times[EVERYTHING, False] / taken,
        than_exact=taken and times[EXACT, False] / taken,
    )


def _search(index: Index, name: str) -> str:
    search = sweeps.hashed(index, name)
    return index.info.auto_search if search == "auto" else search


def _times(ready: Ready, chosen: Mapping[Key, Choice], timed: int) -> dict[Key, float]:
    """Return the microseconds of a query, of queries of every category in turns."""
    asked, k = ready.asked.queries, ready.k
    spread = np.linspace(0, len(asked) - 1, min(timed, len(asked))).astype(np.int64)
    queries = np.ascontiguousarray(asked[spread])
    first = next(iter(ready.indexes.values()))
    askings: dict[Key, Asking] = {(HASHING, False): projecting(first, queries, k)}
    for (name, by_folds), choice in chosen.items():
        if name in (EVERYTHING, BY_COLUMNS):
            asking = _exhaustive(ready, queries, choice.overall, by_columns=name == BY_COLUMNS)
            askings[name, by_folds] = asking
        elif name in ready.trees:
            askings[name, by_folds] = partial(
                _ask_trees, ready.trees[name], k, choice.overall, queries
            )
        elif name != NEAREST:
            index = ready.indexes.get(name, first)
            search: Search = "exact" if name == EXACT else sweeps.hashed(index, name)
            wanted = sweeps.parameters(index, k, search, choice.overall)
            askings[name, by_folds] = partial(_ask, index, wanted, queries)
    return {key: each.microseconds for key, each in take_turns(askings, len(queries), k).items()}


def _exhaustive(ready: Ready, queries: FloatArray, setting: Setting, *, by_columns: bool) -> Asking:
    dial, variant = setting.diversity, setting.variant

    def ask(query: int) -> IntArray:
        return ready.everything.greedy(
            queries[query], ready.k, dial, variant, by_columns=by_columns
        )

    return ask


def _ask(index: Index, wanted: QueryParameters, queries: FloatArray, query: int) -> IntArray:
    rows: IntArray = index.engine.answer(queries[query : query + 1], wanted).ids[0]
    return rows


def _ask_trees(trees: Trees, k: int, setting: Setting, queries: FloatArray, query: int) -> IntArray:
    return trees.pick(trees.nearest(queries[query : query + 1], k), k, setting)


def projecting(index: Index, queries: Rows, k: int) -> Asking:
    """Return what projects a query alone: as many hyperplanes as the index has, any directions."""
    bits, sketch = index.info.code_bits, CountSketch.draw(index.dims, 0)
    hyperplanes = np.random.default_rng(0).standard_normal((sketch.dims, bits), dtype=np.float32)
    codes, terms = np.empty((0, 0), np.uint64), np.empty(0, np.uint32)
    hashing = Hashing(hyperplanes, np.empty(0, np.float32), codes, terms, sketch.places)
    asked = Queries(*pack_queries(queries))
    sketched, projections = np.empty((1, sketch.dims), np.float32), np.empty(bits, np.float32)
    none = np.full(k, -1)

    def ask(query: int) -> IntArray:
        project_query(asked, query, hashing, sketched, projections)
        return none

    return ask


def drawn(rows: Sequence[Row]) -> str:
    """Draw one line per row."""
    heads = ("contestant", "limits", "variant", "dial", "P", "SR", "D", "h", "gain share", "95 %")
    times = ("us/query", "hash us", "x all points", "x exact")
    return table((*heads, *times), [_cells(row) for row in rows])


def _cells(row: Row) -> tuple[str, ...]:
    measures = (row.precision, row.subtopic_recall, row.diversity, row.h)
    share, low, high = row.share or (None, None, None)
    ours = row.hashing is not None
    return (
        f"{row.name}, {row.search}" if row.search else row.name,
        (f"x {row.part:g}, by folds" if row.by_folds else "default") if ours else "",
        row.variant,
        f"{row.dial:g}",
        *(f"{value:.3f}" for value in measures),
        "" if share is None else f"{share:.2f}",
        "" if share is None else f"{low:.2f} to {high:.2f}",
        *(
            "" if value is None else f"{value:,.{digits}f}"
            for value, digits in (
                (row.microseconds, 0),
                (row.hashing, 0),
                (row.than_exhaustive, 1),
                (row.than_exact, 1),
            )
        ),
    )
