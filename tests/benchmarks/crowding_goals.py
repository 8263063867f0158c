"""What the defaults must reach on points that crowd, and the worst that a run saw of it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.crowding_settings import DEFAULTS
from benchmarks.crowding_tables import BEST_ITEMS, Row
from benchmarks.tables import table

# Distinct items in ten places.
_DISTINCT: Final = 9.0
# Of the mean cosine of the best ten distinct items, and of plain neighbours where nothing crowds.
_OF_BEST: Final = 0.95
_OF_NEAREST: Final = 0.98
# Of the gap in J that `marginal` closes with nothing collapsed, by the dial.
_GAPS: Final = {0.1: 0.95, 0.3: 0.95, 0.5: 0.93}
# Of the gap that the exact search closes with the same selector.
_OF_EXACT: Final = 0.97


@dataclass(frozen=True)
class Verdict:
    """One goal, the worst value of a run and where it was seen; `held` of `cases` reach it."""

    goal: str
    worst: float
    least: float
    where: str
    held: int
    cases: int


def verdicts(rows: Sequence[Row]) -> list[Verdict]:
    """Return what of the goals the defaults reach, by the rows of a run; k is taken to be ten."""
    own = [row for row in rows if (row.family, row.search) == (DEFAULTS, DEFAULTS)]
    defaults = [row for row in own if row.setting == DEFAULTS]
    crowded = [row for row in defaults if row.crowded]
    best = {(row.data, row.kind): row for row in rows if row.setting == BEST_ITEMS}
    found = [
        _verdict("distinct items", crowded, lambda row: row.distinct, _DISTINCT),
        _verdict(
            "distinct items of the topic, as a share of the nearest distinct items'",
            crowded,
            lambda row: row.relevant_distinct / best[row.data, row.kind].relevant_distinct,
            _DISTINCT / 10,
        ),
        _verdict("mean cosine of best", crowded, lambda row: row.of_best, _OF_BEST),
        _verdict(
            "mean cosine of nearest, uncrowded",
            [row for row in defaults if not row.crowded],
            lambda row: row.of_nearest,
            _OF_NEAREST,
        ),
        _verdict(
            "recall of candidates less target_recall",
            own,
            lambda row: (row.recall or 0.0) - (row.target_recall or 0.0),
            0.0,
        ),
    ]
    found += [
        _verdict(
            f"gap closed by marginal {dial:g}, nothing collapsed",
            [row for row in own if row.setting == f"greedy:marginal {dial:g} collapse off"],
            lambda row: row.gap,
            least,
        )
        for dial, least in _GAPS.items()
    ]
    found.append(_beside_exact(rows, own))
    return [verdict for verdict in found if verdict.cases]


def _beside_exact(rows: Sequence[Row], own: Sequence[Row]) -> Verdict:
    """Compare the gap that the default search closes with that of the exact search."""
    exact = {
        (row.data, row.kind, row.setting): row.gap
        for row in rows
        if (row.family, row.search) == (DEFAULTS, "exact")
    }

    def share(row: Row) -> float | None:
        gap = exact.get((row.data, row.kind, row.setting))
        return None if row.gap is None or not gap or gap < 0 else row.gap / gap

    marginal = [row for row in own if row.setting.startswith("greedy")]
    return _verdict("gap closed by greedy, as a share of exact's", marginal, share, _OF_EXACT)


def _verdict(
    goal: str, rows: Sequence[Row], value_of: Callable[[Row], float | None], least: float
) -> Verdict:
    def values() -> Iterator[tuple[float, Row]]:
        for row in rows:
            value = value_of(row)
            if value is not None:
                yield value, row

    seen = sorted(values(), key=lambda pair: pair[0])
    if not seen:
        return Verdict(goal, float("nan"), least, "", 0, 0)
    worst, row = seen[0]
    held = sum(value >= least for value, _ in seen)
    return Verdict(goal, worst, least, f"{row.data}, {row.kind}, {row.setting}", held, len(seen))


def drawn(found: Sequence[Verdict]) -> str:
    """Draw one line per goal."""
    return table(
        ("defaults", "worst", "goal", "reached", "worst at"),
        [
            (
                each.goal,
                f"{each.worst:.3f}",
                f">= {each.least:g}",
                f"{each.held} of {each.cases}",
                each.where,
            )
            for each in found
        ],
    )
