"""Which configurations of `peers` stand for their kind, and how many times one is as fast."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from benchmarks import truth
from benchmarks.entries import Entry
from benchmarks.finders import Graph
from divgrpc.metrics import pareto_front
from divgrpc.types import FloatArray, IntArray

EXACT: Final = "exact pass"
GREEDY: Final = "greedy over all points"
MMR: Final = "MMR over all points"


@dataclass(frozen=True)
class Built:
    """What building took with all cores, and bytes on top of the vectors."""

    seconds: float = 0.0
    bytes: int = 0


@dataclass(frozen=True)
class Row:
    """The fastest of one kind at one target, or what closes most of the gap where none does."""

    objective: str
    diversity: float
    wanted: float
    name: str
    configuration: str
    dial: float
    gap: float
    h: float | None
    microseconds: float
    build_seconds: float
    bytes: int

    @property
    def reached(self) -> bool:
        """Tell whether it closes what is wanted."""
        return self.gap >= self.wanted


@dataclass(frozen=True)
class Ratio:
    """How many times one of ours is as fast as others at one target; None where one has no row.

    `building` and `memory` are against the hnswlib that `pyversity` names: times as fast to build,
    and the share of its bytes on top of the vectors.
    """

    objective: str
    diversity: float
    name: str
    gap: float
    pyversity: float | None
    faiss: float | None
    best_faiss: str
    greedy: float | None
    mmr: float | None
    exact: float | None
    building: float | None
    memory: float | None


def finalists(tried: Sequence[Entry], wanted: float, most: int) -> tuple[float, list[Entry]]:
    """Return the gap that somebody of ours and of others closes, and who is to be timed.

    Of each name those are the `most` that were the fastest to close it, or who closes most of it.
    """
    kinds = {entry.name: [other for other in tried if other.name == entry.name] for entry in tried}
    reach = {name: max(entry.gap for entry in kind) for name, kind in kinds.items()}
    pairs = [gap for name, gap in reach.items() if " + " in name]
    alone = [gap for name, gap in reach.items() if " + " not in name]
    wanted = min([wanted, *(max(side) for side in (pairs, alone) if side)])
    chosen: list[Entry] = []
    for kind in kinds.values():
        closing = [entry for entry in kind if entry.gap >= wanted]
        fastest = sorted(closing, key=lambda entry: entry.roughly)[:most]
        chosen += fastest or [max(kind, key=lambda entry: entry.gap)]
    return wanted, chosen


def best(rows: Iterable[Row]) -> list[Row]:
    """Return the fastest of each name, those that close the gap before the others."""
    found: dict[str, Row] = {}
    for row in sorted(rows, key=lambda row: (not row.reached, row.microseconds)):
        found.setdefault(row.name, row)
    return list(found.values())


def ratios(rows: Sequence[Row], names: Sequence[str]) -> list[Ratio]:
    """Compare each of ours that closes the gap with the fastest others that do, by target."""
    found = []
    for at in dict.fromkeys((row.objective, row.diversity) for row in rows):
        here = [row for row in rows if (row.objective, row.diversity) == at and row.reached]
        graph = _fastest(row for row in here if "hnswlib + pyversity" in row.name)
        list_ = _fastest(row for row in here if row.name.startswith("faiss"))
        others = {row.name: row for row in here}
        found += [
            Ratio(
                *at,
                row.name,
                row.gap,
                pyversity=_times(graph, row),
                faiss=_times(list_, row),
                best_faiss=list_.name.split(" + ")[0] if list_ else "",
                greedy=_times(others.get(GREEDY), row),
                mmr=_times(others.get(MMR), row),
                exact=_times(others.get(EXACT), row),
                building=graph.build_seconds / row.build_seconds if graph else None,
                memory=row.bytes / graph.bytes if graph else None,
            )
            for row in (others[name] for name in names if name in others)
        ]
    return found


def _fastest(rows: Iterable[Row]) -> Row | None:
    return min(rows, key=lambda row: row.microseconds, default=None)


def _times(other: Row | None, row: Row) -> float | None:
    return other.microseconds / row.microseconds if other else None


def front(entries: Sequence[Entry], by: str) -> list[dict[str, object]]:
    """Return those that nobody beats in both `by`, "gap" or "h", and time, by target if by gap.

    Times are those of one pass, not in turns: good enough for a picture.
    """
    found: list[dict[str, object]] = []
    for kind in ("divgrpc", "others"):
        mine = [entry for entry in entries if (" + " in entry.name) == (kind == "others")]
        values = [getattr(entry, by) for entry in mine]
        if not values or np.isnan(values).any():
            continue
        kept = pareto_front(values, [entry.roughly for entry in mine])
        best = [entry for entry, is_kept in zip(mine, kept, strict=True) if is_kept]
        found += [
            {
                "side": kind,
                "name": entry.name,
                "configuration": entry.configuration,
                by: getattr(entry, by),
                "per_second": 1e6 / entry.roughly,
            }
            for entry in sorted(best, key=lambda entry: entry.roughly)
        ]
    return found


def recall(graph: Graph, queries: FloatArray, exact: IntArray, ef: int) -> float:
    """Return the share of the nearest (nq, m) that a graph finds at ef, which is at least m."""
    count = exact.shape[1]
    found = (graph.nearest(query, count, (ef / count,))[0] for query in queries)
    return truth.recall(found, exact)
