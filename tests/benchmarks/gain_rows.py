"""The gain run's rows: settings chosen, queries timed, a table drawn."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from benchmarks import shares, sweeps
from benchmarks.exhaustive import Everything
from benchmarks.shares import Chosen
from benchmarks.sweeps import Setting
from benchmarks.tables import show, table
from benchmarks.turns import Asking, take_turns
from divgrpc.index import Index
from divgrpc.kernels.hashing import project
from divgrpc.parameters import QueryParameters
from divgrpc.types import FloatArray, IntArray, Search
from divgrpc_client.reports.hyperplanes import HyperplaneQueries
from divgrpc_client.reports.measures import Values

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
    """What the rows of one k are made from; `measured` by contestant, (4, nq) at every setting."""

    asked: HyperplaneQueries
    everything: Everything
    indexes: Mapping[str, Index]
    measured: Mapping[str, Measured]


@dataclass(frozen=True)
class Row:
    """One contestant on one set at one k; times in microseconds, ratios as times faster.

    `part` is the part of the default limits; the share has its 95 % interval, and is None where
    the exhaustive greedy gains too little for one.
    """

    data: str
    k: int
    name: str
    by_folds: bool
    part: float
    variant: str
    dial: float
    precision: float
    subtopic_recall: float
    diversity: float
    h: float
    share: tuple[float, float, float] | None
    microseconds: float | None
    hashing: float | None
    than_exhaustive: float | None
    than_exact: float | None


def compare(data: str, k: int, ready: Ready, timed: int) -> list[Row]:
    """Choose settings for one k, time `timed` queries, print and return the rows."""
    chosen = _chosen(ready)
    nearest, best = chosen[NEAREST, False], chosen[EVERYTHING, False]
    gain = float((best.h - nearest.h).mean())
    verdict = "" if gain > shares.WORTH else ": no gain to be had"
    show(f"k = {k}: the exhaustive greedy gains {gain:.3f} of h over nearest neighbours{verdict}\n")
    times = _times(k, ready, chosen, timed)
    rows = []
    for (name, by_folds), each in chosen.items():
        ends = (each.h, nearest.h, best.h)
        worth = gain > shares.WORTH and name != NEAREST
        precision, subtopic_recall, diversity, h = each.values.mean(axis=1)
        taken = times.get((name, by_folds))
        rows.append(
            Row(
                data=data,
                k=k,
                name=name,
                by_folds=by_folds,
                part=each.setting.part,
                variant=each.setting.variant,
                dial=each.setting.diversity,
                precision=float(precision),
                subtopic_recall=float(subtopic_recall),
                diversity=float(diversity),
                h=float(h),
                share=(shares.gain_share(*ends), *shares.interval(*ends)) if worth else None,
                microseconds=taken,
                hashing=times[HASHING, False] if name in ready.indexes else None,
                than_exhaustive=taken and times[EVERYTHING, False] / taken,
                than_exact=taken and times[EXACT, False] / taken,
            )
        )
    show(drawn(rows) + "\n")
    return rows


def _chosen(ready: Ready) -> dict[Key, Chosen]:
    """Choose everyone's settings by folds, at default limits and with limits chosen too."""
    folds = shares.dealt(ready.asked.asked)
    measured = ready.measured[EVERYTHING]
    nearest, best = Chosen(measured[Setting(0.0)], Setting(0.0)), shares.choose(measured, folds)
    chosen = {
        (NEAREST, False): nearest,
        (EVERYTHING, False): best,
        (EXACT, False): shares.choose(ready.measured[EXACT], folds),
    }
    if ready.everything.columns is not None:
        chosen[BY_COLUMNS, False] = best
    least = shares.enough(nearest.h, best.h)
    for family in ready.indexes:
        measured = ready.measured[family]
        whole = {setting: each for setting, each in measured.items() if setting.part == 1}
        chosen[family, False] = shares.choose(whole, folds)
        chosen[family, True] = shares.choose(measured, folds, least)
    return chosen


def _times(k: int, ready: Ready, chosen: Mapping[Key, Chosen], timed: int) -> dict[Key, float]:
    """Return the microseconds of a query, of queries of every category in turns."""
    asked = ready.asked.queries
    spread = np.linspace(0, len(asked) - 1, min(timed, len(asked))).astype(np.int64)
    queries = np.ascontiguousarray(asked[spread])
    first = next(iter(ready.indexes.values()))
    askings: dict[Key, Asking] = {(HASHING, False): _hashing(first, queries, k)}
    for (name, by_folds), each in chosen.items():
        if name in (EVERYTHING, BY_COLUMNS):
            askings[name, by_folds] = _exhaustive(ready, queries, k, each, name == BY_COLUMNS)
        elif name != NEAREST:
            search: Search = "exact" if name == EXACT else "auto"
            index = ready.indexes.get(name, first)
            wanted = sweeps.parameters(index, k, search, each.setting)
            askings[name, by_folds] = partial(_ask, index, wanted, queries)
    return {key: each.microseconds for key, each in take_turns(askings, len(queries), k).items()}


def _exhaustive(
    ready: Ready, queries: FloatArray, k: int, each: Chosen, by_columns: bool
) -> Asking:
    dial, variant = each.setting.diversity, each.setting.variant
    greedy: Callable[..., IntArray] = ready.everything.greedy
    return lambda query: greedy(queries[query], k, dial, variant, by_columns=by_columns)


def _ask(index: Index, wanted: QueryParameters, queries: FloatArray, query: int) -> IntArray:
    rows: IntArray = index.answer(queries[query : query + 1], wanted).ids[0]
    return rows


def _hashing(index: Index, queries: FloatArray, k: int) -> Asking:
    """Return what projects a query alone: as many hyperplanes as the index has, any directions."""
    bits = index.info.code_bits
    hyperplanes = np.random.default_rng(0).standard_normal((index.dims, bits), dtype=np.float32)
    projections, none = np.empty(bits, np.float32), np.full(k, -1)

    def ask(query: int) -> IntArray:
        project(queries, query, hyperplanes, projections)
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
        row.name,
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
