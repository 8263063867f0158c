"""The gain run in two short tables: what everyone keeps, and what keeping enough costs.

Enough is a gain share of 0.9; where there is no gain to be had, the h of nearest neighbours.
"""

from collections.abc import Sequence
from typing import Final

from benchmarks.gain_rows import BY_COLUMNS, EVERYTHING, EXACT, NEAREST, Row
from benchmarks.tables import table

ENOUGH: Final = 0.9
_OURS: Final = ("lsh_div", "lsh_sdiv")

Group = tuple[str, int]


def kept(rows: Sequence[Row]) -> str:
    """Draw the gain share of every family at default limits, with its interval."""
    families = list(dict.fromkeys(row.name for row in rows if row.search))
    lines = []
    for group, own in _groups(rows).items():
        h = {row.name: row.h for row in own}
        shares = {row.name: _share(row) for row in own if row.search and not row.by_folds}
        ends = (f"{h[NEAREST]:.3f}", f"{h[EVERYTHING]:.3f}")
        lines.append((_title(group), *ends, *(shares.get(name, "") for name in families)))
    heads = ("set, k", "h nearest", "h all points", *families)
    return table(heads, lines)


def costs(rows: Sequence[Row]) -> str:
    """Draw what the fastest of the LSH families takes that keeps enough, beside the baselines."""
    lines = []
    for group, own in _groups(rows).items():
        times = {row.name: row.microseconds or 0.0 for row in own if not row.search}
        floor = next(row.h for row in own if row.name == NEAREST)
        able = [row for row in own if row.name in _OURS and _enough(row, floor)]
        best = min(able, key=lambda row: row.microseconds or 0.0, default=None)
        baselines = (times[EVERYTHING], times.get(BY_COLUMNS), times[EXACT])
        cells = [f"{each:,.0f}" if each else "" for each in baselines]
        if best is None or not best.microseconds:
            lines.append((_title(group), *cells, "none", *[""] * 6))
            continue
        taken = best.microseconds
        share = _share(best)
        ratios = (f"{each / taken:.1f}" if each else "" for each in baselines)
        name = f"{best.name} x {best.part:g}"
        lines.append(
            (_title(group), *cells, name, share, f"{taken:,.0f}", f"{best.hashing:,.0f}", *ratios)
        )
    heads = ("set, k", "all points us", "by columns us", "exact pass us", "fastest LSH, limits")
    faster = ("x all points", "x by columns", "x exact")
    return table((*heads, "share", "us", "hash us", *faster), lines)


def _groups(rows: Sequence[Row]) -> dict[Group, list[Row]]:
    groups: dict[Group, list[Row]] = {}
    for row in rows:
        groups.setdefault((row.data, row.k), []).append(row)
    return groups


def _title(group: Group) -> str:
    return f"{group[0]}, {group[1]}"


def _share(row: Row) -> str:
    if row.share is None:
        return f"h {row.h:.3f}"
    share, low, high = row.share
    return f"{share:.2f} ({low:.2f} to {high:.2f})"


def _enough(row: Row, floor: float) -> bool:
    return row.h >= floor if row.share is None else row.share[0] >= ENOUGH
