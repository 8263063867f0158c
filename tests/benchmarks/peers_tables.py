"""The tables of `peers`."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.choosing import Built, Ratio, Row
from benchmarks.tables import optional, table


def construction(built: Mapping[str, Built]) -> str:
    """Draw what building took, and took up."""
    rows = [(name, f"{each.seconds:.2f}", _megabytes(each.bytes)) for name, each in built.items()]
    return table(("index", "built in s", "MB on top"), rows)


def drawn(rows: Sequence[Row]) -> str:
    """Draw who closes the gap, the fastest first, then who does not."""
    heads = ("contestant: candidates", "dial", "gap closed", "h", "us/query", "queries/s")
    return table(
        (*heads, "built in s", "MB on top"),
        [
            (
                ": ".join(filter(None, (row.name, row.configuration))),
                f"{row.dial:.3f}",
                f"{row.gap:.3f}" + ("" if row.reached else " (less)"),
                optional(row.h, ".3f"),
                f"{row.microseconds:,.0f}",
                f"{1e6 / row.microseconds:,.0f}",
                f"{row.build_seconds:.2f}" if row.build_seconds else "",
                _megabytes(row.bytes) if row.build_seconds else "",
            )
            for row in rows
        ],
    )


def ratios_drawn(ratios: Sequence[Ratio]) -> str:
    """Draw how many times the speed of others ours have."""
    heads = (
        "ours, at diversity",
        "gap closed",
        "x hnswlib + pyversity",
        "x best faiss + ours",
        "x greedy over all",
        "x MMR over all",
        "x exact pass",
        "x hnswlib in building",
        "bytes of hnswlib's",
    )
    return table(
        heads,
        [
            (
                f"{row.name}, {row.objective} {row.diversity}",
                f"{row.gap:.3f}",
                optional(row.pyversity, ".1f"),
                f"{optional(row.faiss, '.2f')} {row.best_faiss.removeprefix('faiss ')}".strip(),
                optional(row.greedy, ",.0f"),
                optional(row.mmr, ",.0f"),
                optional(row.exact, ".1f"),
                optional(row.building, ".1f"),
                optional(row.memory, ".2f"),
            )
            for row in ratios
        ],
    )


def front_drawn(front: Sequence[Mapping[str, Any]]) -> str:
    """Draw a Pareto front; `front` as `choosing.front` returns it."""
    by = "gap" if front and "gap" in front[0] else "h"
    return table(
        ("who", by, "queries/s"),
        [
            (
                f"{row['name']}: {row['configuration']}",
                f"{row[by]:.3f}",
                f"{row['per_second']:,.0f}",
            )
            for row in front
        ],
    )


def recall_drawn(curves: Sequence[Mapping[str, Any]]) -> str:
    """Draw recall against ef, a line for each graph."""
    efs = list(curves[0]["recall"])
    return table(
        ("hnswlib", *map(str, efs)),
        [(each["graph"], *(f"{each['recall'][ef]:.3f}" for ef in efs)) for each in curves],
    )


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.1f}"
