"""The dial of labels: what P@k it costs, and what drank it gains, at 0, by default and above.

Every set has an index with a LEML model, and its hierarchy where it has one. Test documents with
even numbers chose the form of the selector `hierarchy` and its dial; `--part others` reports on the
rest. The change is the least of those of P@1, P@3 and P@5 against dial 0, in percent. drank and h
are of five labels. Times are the median of documents that are asked one at a time.

`--choose` prints instead how the dial of `embedding` is chosen: the greatest of some at which no
P@k of any set falls by more than 1 % of what it is at 0, with a standard error to spare.
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
from divgrpc.metrics import JudgedLabels, Values, mean, measure_labels, precision_at
from divgrpc.types import EffectiveLabelParameters, IntArray, LabelSelector, Mode
from divgrpc.warmup import warm_kernels

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
_TRIED: Final = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3)
# Percent that a P@k may fall by at the dial that is chosen.
_MOST_LOST: Final = 1.0
# The columns of P@1, P@3 and P@5.
_PLACES: Final = [0, 2, 4]


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


@dataclass(frozen=True)
class Trial:
    """One dial on one set, by documents that choose; in percent of P@k at dial 0.

    `change` is the least of the three, `lower` the least after a standard error is taken off.
    """

    data: str
    diversity: float
    change: float
    lower: float
    drank: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the run can be told."""
    parser.add_argument(
        "--sets", nargs="+", choices=documents.SETS, default=list(documents.SETS), metavar="SET"
    )
    parser.add_argument(
        "--part", choices=list(_PARTS), default="others", help="test documents (default others)"
    )
    parser.add_argument("--choose", action="store_true", help="show how the dial is chosen")
    parser.add_argument("--timed", type=int, default=200, metavar="N", help="asked one at a time")


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Measure, print the table, and return the rows for JSON."""
    splits = documents.load(arguments.sets)
    part = "tuning" if arguments.choose else arguments.part
    show(f"\n## The dial of labels: precision in percent, test documents: {part}\n")
    show(facts({f"sha256 of {split.name}": split.sha256 for split in splits}) + "\n")
    warm_kernels()
    if arguments.choose:
        return _choose([split.with_features() for split in splits if split.hierarchy is not None])
    rows = [
        row
        for split in splits
        for row in _rows(split.with_features(), _PARTS[arguments.part], arguments.timed)
    ]
    heads = ["set, mode, selector, dial", "P@1", "P@3", "P@5", "change %", "drank", "h", "us"]
    show(table(heads, [_drawn(row) for row in rows]))
    return {"part": arguments.part, "rows": [asdict(row) for row in rows]}


def _choose(splits: list[Split]) -> dict[str, object]:
    """Print what each dial loses, and the greatest that loses little on every set."""
    trials = [trial for split in splits for trial in _trials(split)]
    heads = ("set, dial", "change %", "less a standard error", "drank")
    lines = [
        (f"{t.data}, {t.diversity:g}", f"{t.change:+.2f}", f"{t.lower:+.2f}", f"{t.drank:.4f}")
        for t in trials
    ]
    show(table(heads, lines))
    chosen = chosen_dial(trials)
    show(f"\nchosen: {chosen:g}")
    return {"chosen": chosen, "trials": [asdict(trial) for trial in trials]}


def chosen_dial(trials: list[Trial]) -> float:
    """Return the greatest dial at which all sets lose little, 0 where there is none."""
    worst: dict[float, float] = {}
    for trial in trials:
        worst[trial.diversity] = min(worst.get(trial.diversity, 0.0), trial.lower)
    return max((dial for dial, lower in worst.items() if lower >= -_MOST_LOST), default=0.0)


def changes(values: Values, plain: Values) -> tuple[Values, Values]:
    """Return the changes of means of columns (n, m), and their standard errors, in percent."""
    percent = 100 / plain.mean(axis=0)
    apart = values - plain
    return percent * apart.mean(axis=0), percent * apart.std(axis=0, ddof=1) / len(apart) ** 0.5


def _trials(split: Split) -> Iterator[Trial]:
    index, own, tree = _built(split), _part(split, _PARTS["tuning"]), documents.tree(split)
    plain: Values | None = None
    for dial in (0.0, *_TRIED):
        told: Told = {"mode": "embedding", "selector": "hierarchy", "diversity": dial}
        judged = JudgedLabels.of(_asked(index, own, told)[0], own.truth)
        values = precision_at(judged)[:, _PLACES]
        if plain is None:
            plain = values
            continue
        change, error = changes(values, plain)
        drank = mean(measure_labels(judged, tree.drank)["drank"]) if tree else float("nan")
        yield Trial(split.name, dial, float(change.min()), float((change - error).min()), drank)


def _built(split: Split) -> Index:
    return Index.build(
        split.documents,
        labels=split.labels,
        label_model="leml",
        hierarchy=split.hierarchy,
        roots=split.roots if split.hierarchy is not None else None,
    )


def _part(split: Split, part: slice) -> Split:
    """Return the same with a part of the test documents."""
    chosen = np.arange(split.asked.shape[0])[part]
    return replace(split, asked=split.asked[chosen], truth=split.truth[chosen])


def _rows(split: Split, part: slice, timed: int) -> Iterator[Row]:
    index, own = _built(split), _part(split, part)
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
    labels, used = _asked(index, split, told)
    tree = documents.tree(split)
    judged = JudgedLabels.of(labels, split.truth)
    measured = measure_labels(judged, tree.drank) if tree else {}
    reached = precisions(split, labels)
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


def _asked(index: Index, split: Split, told: Told) -> tuple[IntArray, EffectiveLabelParameters]:
    """Return the labels of all documents, and the parameters that the answers name."""
    results = [
        index.predict_labels(split.asked[start : start + _BLOCK_ROWS], **told)
        for start in range(0, split.asked.shape[0], _BLOCK_ROWS)
    ]
    return np.concatenate([result.labels for result in results]), results[0].parameters


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
