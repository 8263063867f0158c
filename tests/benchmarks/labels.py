"""Labels: LEML with default parameters, neighbours that vote, and plain ridge regression.

P@1, P@3 and P@5 in percent on the test documents; drank and h of five labels where they have a
hierarchy. Ridge has a weight for every feature and label, its penalty chosen on a fifth of the
training documents. Every label is scored but for hashed ones, of which a tenth, or 32, are scored
exactly after a scan, and but for votes. Training times have the choice of parameters in them, that
of hashed labels is the index's; neighbours are ten, found at diversity 0. Seconds are wall time.
With `--rivals PYTHON`, an interpreter that has them, napkinXC and PECOS stand beside.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from scipy import linalg, sparse

from benchmarks import documents, label_rivals
from benchmarks.documents import Split, precisions
from benchmarks.tables import facts, show, table
from divgrpc.evaluation.label_votes import NEIGHBOURS, neighbour_vote
from divgrpc.index import Index
from divgrpc.labels import LabelModel, train
from divgrpc.labels.model import as_documents
from divgrpc.metrics import JudgedLabels, mean, measure_labels
from divgrpc.parameters import LabelParameters, QueryParameters
from divgrpc.types import IntArray, Search
from divgrpc.vectors import SparseRows
from divgrpc.warmup import warm_kernels

# Trains and returns what predicts the labels of all documents asked.
Make = Callable[[], Callable[[], IntArray]]

_VOTES: Final[tuple[tuple[Search, bool], ...]] = (
    ("exact", True),
    ("exact", False),
    ("scan", True),
)
# When labels are hashed one in ten is scored exactly, but no fewer than this; and how many may be
# picked.
_HASHED_SHARE: Final = 10
_HASHED_LEAST: Final = 32
_CANDIDATES: Final = 50
_BLOCK_ROWS: Final = 1_000
_PENALTIES: Final = (0.3, 1.0, 3.0, 10.0)


@dataclass(frozen=True)
class Row:
    """One way to label one set; seconds of training, and microseconds a document."""

    data: str
    name: str
    precisions: list[float]
    drank: float | None
    h: float | None
    seconds: float
    microseconds: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the run can be told."""
    parser.add_argument(
        "--sets", nargs="+", choices=documents.SETS, default=list(documents.SETS), metavar="SET"
    )
    parser.add_argument("--seed", type=int, default=0, help="of LEML (default 0)")
    parser.add_argument(
        "--rivals", type=Path, metavar="PYTHON", help="interpreter with napkinxc and libpecos"
    )


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Measure, print the table, and return the rows for JSON."""
    splits = documents.load(arguments.sets)
    show("\n## Labels: precision in percent\n")
    show(facts({f"sha256 of {split.name}": split.sha256 for split in splits}) + "\n")
    warm_kernels()
    rows = []
    for split in splits:
        rows += [*_rows(split, arguments.seed)]
        rows += [*_rivals(split, arguments.rivals)] if arguments.rivals else []
    heads = ["set, labels by", "P@1", "P@3", "P@5", "drank", "h", "training s", "us/document"]
    show(table(heads, [_drawn(row) for row in rows]))
    if not arguments.rivals:
        show("\nnapkinXC and PECOS: not asked, see --rivals")
    return {"rows": [asdict(row) for row in rows]}


def _rows(split: Split, seed: int) -> Iterator[Row]:
    begun = time.perf_counter()
    model = train(split.documents, split.labels, LabelParameters(seed=seed)).model
    taken = time.perf_counter() - begun

    yield _measured(split, "plain ridge", lambda: _ridge(split))
    scored = _measured(split, "LEML", lambda: lambda: model.predict(split.asked).labels)
    yield replace(scored, seconds=taken)
    yield _measured(split, "LEML, hashed", lambda: _hashed(split, model, seed))
    for search, weighted in _VOTES:
        name = f"votes, {search}, {'weighted' if weighted else 'plain'}"
        yield _measured(split, name, _voters(split, search, weighted=weighted))


def _rivals(split: Split, python: Path) -> Iterator[Row]:
    for rival in label_rivals.ask(python, split.documents, split.labels, split.asked):
        if rival.labels is None:
            show(f"{rival.name} on {split.name}: {rival.absent}")
        else:
            yield _row(split, rival.name, rival.labels, rival.training, rival.prediction)


def _measured(split: Split, name: str, make: Make) -> Row:
    begun = time.perf_counter()
    predict = make()
    made = time.perf_counter()
    labels = predict()
    return _row(split, name, labels, made - begun, time.perf_counter() - made)


def _row(split: Split, name: str, labels: IntArray, training: float, prediction: float) -> Row:
    measured = {}
    tree = documents.tree(split)
    if tree is not None:
        measured = measure_labels(JudgedLabels.of(labels, split.truth), tree.drank)
    return Row(
        split.name,
        name,
        precisions(split, labels),
        mean(measured["drank"]) if measured else None,
        mean(measured["h_score"]) if measured else None,
        training,
        1e6 * prediction / len(labels),
    )


def _hashed(split: Split, model: LabelModel, seed: int) -> Callable[[], IntArray]:
    """Index the label factors; what is scored exactly of them is at most one in ten."""
    index = Index.build(split.documents[_worded(split.documents)], label_model=model, seed=seed)
    asked = _worded(split.asked)
    limit = max(_HASHED_LEAST, split.truth.shape[1] // _HASHED_SHARE)

    def predict() -> IntArray:
        every = np.full((split.truth.shape[0], min(5, split.truth.shape[1])), -1)
        for start in range(0, len(asked), _BLOCK_ROWS):
            rows = asked[start : start + _BLOCK_ROWS]
            found = index.predict_labels(
                split.asked[rows],
                search="scan",
                diversity=0,
                hash_limit=limit,
                candidates_limit=_CANDIDATES,
            )
            every[rows] = found.labels[:, : every.shape[1]]
        return every

    return predict


def _worded(rows: sparse.csr_array) -> IntArray:
    """Return which documents have a word: others have no direction, and no neighbours."""
    return np.flatnonzero(np.asarray(abs(rows).sum(axis=1)).ravel())


def _ridge(split: Split) -> Callable[[], IntArray]:
    rows, labels = as_documents(split.documents), split.labels
    dealt = np.random.default_rng(0).permutation(len(rows))
    own, held_out = np.sort(dealt[len(dealt) // 5 :]), np.sort(dealt[: len(dealt) // 5])
    truth = sparse.csr_array(labels[held_out])

    def score(penalty: float) -> float:
        model = _ridge_model(rows[own], labels[own], penalty)
        found = model.predict(split.documents[held_out]).labels
        return float(measure_labels(JudgedLabels.of(found, truth))["precision"].mean())

    model = _ridge_model(rows, labels, max(_PENALTIES, key=score))
    return lambda: model.predict(split.asked).labels


def _ridge_model(rows: Any, labels: sparse.csr_array, penalty: float) -> LabelModel:  # noqa: ANN401  # rows
    """Return ridge regression as a model whose label factors are the identity."""
    matrix = rows.matrix.toarray() if isinstance(rows, SparseRows) else rows
    moments = (matrix.T @ matrix).astype(np.float64)
    moments[np.diag_indices_from(moments)] += penalty
    target = np.asarray((labels.T @ matrix).T, np.float64)
    weights = linalg.solve(moments, target, assume_a="pos").astype(np.float32)
    identity = np.eye(labels.shape[1], dtype=np.float32)
    return LabelModel(identity, weights[:-1], weights[-1], unit_rows=True)


def _voters(split: Split, search: Search, *, weighted: bool) -> Make:
    parameters = QueryParameters(k=NEIGHBOURS, search=search, diversity=0)

    def make() -> Callable[[], IntArray]:
        kept, asked = _worded(split.documents), _worded(split.asked)
        index, labels = Index.build(split.documents[kept]), split.labels[kept]

        def predict() -> IntArray:
            found = neighbour_vote(
                index, split.asked[asked], labels, weighted=weighted, parameters=parameters
            )
            every = np.full((split.truth.shape[0], found.labels.shape[1]), -1)
            every[asked] = found.labels
            return every

        return predict

    return make


def _drawn(row: Row) -> list[str]:
    diverse = ["" if value is None else f"{value:.3f}" for value in (row.drank, row.h)]
    precisions = [f"{value:.2f}" for value in row.precisions]
    taken = [f"{row.seconds:.1f}", f"{row.microseconds:,.0f}"]
    return [f"{row.data}, {row.name}", *precisions, *diverse, *taken]
