"""The dial of labels: what P@k it costs, and what drank it gains, at 0, by default and above.

Every set has an index with a LEML model, and its hierarchy where it has one. Test documents with
even numbers chose the form of the selector `hierarchy`; `--part others` reports on the rest. The
change is the least of those of P@1, P@3 and P@5 against dial 0, in percent. drank and h are of five
labels. Times are the median of documents that are asked one at a time.
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, TypeAlias, get_args

import numpy as np

from benchmarks import documents
from benchmarks.documents import Split, precisions
from benchmarks.tables import facts, optional, show, table
from divgrpc.index import Index
from divgrpc.metrics import JudgedLabels, mean, measure_labels
from divgrpc.types import IntArray, LabelSelector, Mode
from divgrpc.warming import warm_kernels

# What `predict_labels` is told by name.
Told: TypeAlias = dict[str, Any]

_PARTS: Final = {"tuning": slice(0, None, 2), "others": slice(1, None, 2), "all": slice(None)}
# None: what predict_labels takes where nobody says. Without a hierarchy greedy is the default.
_ASKED: Final[tuple[tuple[LabelSelector | None, float | None], ...]] = (
    (None, 0.0),
    (None, None),
    (None, 0.3),
    (None, 0.5),
    ("greedy", 0.3),
    ("greedy", 0.5),
)
_BLOCK_ROWS: Final = 1_000


@dataclass(frozen=True)
class Row:
    """One dial on one set; `change` in percent, and microseconds for a document by itself."""

    data: str
    mode: Mode
    selector: LabelSelector
    diversity: float
    by_default: bool
    precisions: list[float]
    change: float
    drank: float | None
    h: float | None
    microseconds: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the run can be told."""
    parser.add_argument(
        "--sets", nargs="+", choices=documents.SETS, default=list(documents.SETS), metavar="SET"
    )
    parser.add_argument(
        "--part", choices=list(_PARTS), default="others", help="test documents (default others)"
    )
    parser.add_argument("--timed", type=int, default=200, metavar="N", help="asked one at a time")


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Measure, print the table, and return the rows for JSON."""
    splits = documents.load(arguments.sets)
    show(f"\n## The dial of labels: precision in percent, test documents: {arguments.part}\n")
    show(facts({f"sha256 of {split.name}": split.sha256 for split in splits}) + "\n")
    warm_kernels()
    rows = [
        row
        for split in splits
        for row in _rows(split.with_features(), _PARTS[arguments.part], arguments.timed)
    ]
    heads = ["set, mode, selector, dial", "P@1", "P@3", "P@5", "change %", "drank", "h", "us"]
    show(table(heads, [_drawn(row) for row in rows]))
    return {"part": arguments.part, "rows": [asdict(row) for row in rows]}


def _rows(split: Split, part: slice, timed: int) -> Iterator[Row]:
    index = Index.build(
        split.documents,
        labels=split.labels,
        label_model="leml",
        hierarchy=split.hierarchy,
        roots=split.roots if split.hierarchy is not None else None,
    )
    chosen = np.arange(split.asked.shape[0])[part]
    own = replace(split, asked=split.asked[chosen], truth=split.truth[chosen])
    for mode in get_args(Mode):
        plain: list[float] = []
        for selector, diversity in _ASKED:
            if selector is None or split.hierarchy is not None:
                told: Told = {"mode": mode, "selector": selector, "diversity": diversity}
                row = _row(index, own, told, plain)
                plain = plain or row.precisions
                yield replace(row, microseconds=_microseconds(index, own.asked[:timed], told))


def _row(index: Index, split: Split, told: Told, plain: list[float]) -> Row:
    """Measure all of a split's documents; `plain` are P@1, P@3 and P@5 at dial 0, if known."""
    results = [
        index.predict_labels(split.asked[start : start + _BLOCK_ROWS], **told)
        for start in range(0, split.asked.shape[0], _BLOCK_ROWS)
    ]
    labels: IntArray = np.concatenate([result.labels for result in results])
    tree = documents.tree(split)
    judged = JudgedLabels.of(labels, split.truth)
    measured = measure_labels(judged, tree.drank) if tree else {}
    reached = precisions(split, labels)
    used = results[0].parameters
    return Row(
        split.name,
        used.mode,
        used.selector,
        used.diversity,
        told["diversity"] is None,
        reached,
        min(100 * (new / old - 1) for new, old in zip(reached, plain or reached, strict=True)),
        mean(measured["drank"]) if measured else None,
        mean(measured["h_score"]) if measured else None,
        0.0,
    )


def _microseconds(index: Index, asked: Any, told: Told) -> float:  # noqa: ANN401  # dense, or scipy's
    seconds = []
    for row in range(asked.shape[0]):
        document = asked[row : row + 1]
        begun = time.perf_counter()
        index.predict_labels(document, **told)
        seconds.append(time.perf_counter() - begun)
    return 1e6 * float(np.median(seconds))


def _drawn(row: Row) -> list[str]:
    name = f"{row.data}, {row.mode}, {row.selector}, {row.diversity:g}"
    return [
        name + (" (default)" if row.by_default else ""),
        *(f"{value:.2f}" for value in row.precisions),
        f"{row.change:+.2f}",
        optional(row.drank, ".4f"),
        optional(row.h, ".4f"),
        f"{row.microseconds:,.0f}",
    ]
