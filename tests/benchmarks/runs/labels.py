"""Benchmarks of label predictions and of the training of label models."""

import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from scipy import sparse
from sklearn.linear_model import Ridge
from sklearn.preprocessing import normalize

from benchmarks.harness.datasets import Split, documents, precisions, tree_of
from benchmarks.harness.runner import Option, Options, Output, Row, Table, benchmark
from benchmarks.runs import label_rivals
from divgrpc.evaluation.label_running import NEIGHBOURS, neighbour_vote
from divgrpc.index import Index
from divgrpc.labels import LabelModel, train
from divgrpc.metrics import JudgedLabels, mean, measure_labels, precision_at
from divgrpc.parameters import LabelParameters, QueryParameters
from divgrpc.types import FloatArray, IntArray, Progress, Search, TrainingProgress
from divgrpc_lab.data.synthetic import (
    DOCUMENTS,
    FEATURES,
    LABELS,
    TEST_DOCUMENTS,
    LabelledDocuments,
    labelled_documents,
)

_VOTES: Final[tuple[tuple[Search, bool], ...]] = (
    ("exact", True),
    ("exact", False),
    ("scan", True),
)
# A search by hashes scores a share of 1 / _HASHED_SHARE of the labels exactly, but at least
# _HASHED_LEAST of them, and has _CANDIDATES candidates.
_HASHED_SHARE, _HASHED_LEAST, _CANDIDATES = 10, 32, 50
_BLOCK_ROWS: Final = 1_000
_PENALTIES: Final = (0.3, 1.0, 3.0, 10.0)

# A function that predicts the labels (nq, 5) of all test documents.
Predict = Callable[[], IntArray]


@benchmark(
    "labels",
    sets=Option(list(documents.SETS), "data sets", documents.SETS),
    seed=Option(0, "seed of LEML"),
    rivals=Option(None, "interpreter with napkinxc and libpecos", kind=Path),
)
def label_precision(options: Options) -> Iterator[Output]:
    """Precision of label predictions by LEML, voting neighbours and plain ridge regression.

    The figures are P@1, P@3 and P@5 in percent on the test documents. drank and h of five labels
    are added if the labels have a hierarchy. Ridge regression has a weight for every pair of a
    feature and a label, and its penalty is chosen on a fifth of the training documents. Rows with
    "hashed" scan codes and then score only a tenth of the labels exactly, but at least 32. Ten
    neighbours vote, which are found at diversity 0.

    Training times include the choice of parameters. Seconds are wall time. `--rivals PYTHON` names
    an interpreter that has napkinXC and PECOS, which are then compared too.
    """
    for split in documents.load(options.sets):
        yield Table(f"Labels of {split.name}", {"sha256": split.sha256})
        yield from _rows(split, options.seed)
        if options.rivals:
            yield from _rivals(split, options.rivals)


def _rows(split: Split, seed: int) -> Iterator[Row]:
    yield _measured(split, "plain ridge", lambda: _ridge(split))
    models: list[LabelModel] = []

    def leml() -> Predict:
        models.append(train(split.documents, split.labels, LabelParameters(seed=seed)).model)
        return lambda: models[0].predict(split.test_documents).labels

    yield _measured(split, "LEML", leml)
    yield _measured(split, "LEML, hashed", lambda: _hashed(split, models[0], seed))
    for search, weighted in _VOTES:
        name = f"votes, {search}, {'weighted' if weighted else 'plain'}"
        yield _measured(split, name, _voters(split, search, weighted=weighted))


def _rivals(split: Split, python: Path) -> Iterator[Output]:
    for rival in label_rivals.ask(python, split.documents, split.labels, split.test_documents):
        if rival.labels is None:
            yield f"{rival.name} on {split.name}: {rival.absent}"
        else:
            yield _row(split, rival.name, rival.labels, rival.training, rival.prediction)


def _measured(split: Split, name: str, make: Callable[[], Predict]) -> Row:
    begin = time.perf_counter()
    predict = make()
    end = time.perf_counter()
    labels = predict()
    return _row(split, name, labels, end - begin, time.perf_counter() - end)


def _row(split: Split, name: str, labels: IntArray, training: float, prediction: float) -> Row:
    tree = tree_of(split)
    values = measure_labels(JudgedLabels.of(labels, split.truth), tree.drank) if tree else {}
    return {
        "labels by": name,
        **precisions(split, labels),
        "drank": mean(values["drank"]) if values else None,
        "h": mean(values["h_score"]) if values else None,
        "training s": training,
        "us/document": 1e6 * prediction / len(labels),
    }


def _hashed(split: Split, model: LabelModel, seed: int) -> Predict:
    index = Index.build(split.documents[_with_words(split.documents)], label_model=model, seed=seed)
    tests = _with_words(split.test_documents)
    limit = max(_HASHED_LEAST, split.truth.shape[1] // _HASHED_SHARE)

    def predict() -> IntArray:
        labels = np.full((split.truth.shape[0], min(5, split.truth.shape[1])), -1)
        for start in range(0, len(tests), _BLOCK_ROWS):
            block = tests[start : start + _BLOCK_ROWS]
            labels[block] = index.predict_labels(
                split.test_documents[block],
                search="scan",
                diversity=0,
                hash_limit=limit,
                candidates_limit=_CANDIDATES,
            ).labels[:, : labels.shape[1]]
        return labels

    return predict


def _with_words(rows: sparse.csr_array) -> IntArray:
    """Return a mask of the documents with a word.

    Documents without words have no direction and no neighbours.
    """
    return np.flatnonzero(np.asarray(abs(rows).sum(axis=1)).ravel())


def _ridge(split: Split) -> Predict:
    rows, tests = (_unit(documents) for documents in (split.documents, split.test_documents))
    labels = split.labels.toarray()
    order = np.random.default_rng(0).permutation(len(rows))
    fold = len(order) // 5
    training, validation = np.sort(order[fold:]), np.sort(order[:fold])

    def score(penalty: float) -> float:
        prediction = _best(Ridge(penalty).fit(rows[training], labels[training]), rows[validation])
        judged = JudgedLabels.of(prediction, split.labels[validation])
        return float(measure_labels(judged)["precision"].mean())

    model = Ridge(max(_PENALTIES, key=score)).fit(rows, labels)
    return lambda: _best(model, tests)


def _unit(documents: Any) -> FloatArray:  # noqa: ANN401  # dense, or scipy's
    rows = normalize(documents)
    return np.asarray(rows.toarray() if sparse.issparse(rows) else rows)


def _best(model: Ridge, documents: FloatArray) -> IntArray:
    return np.argsort(-model.predict(documents), axis=1, kind="stable")[:, :5]


def _voters(split: Split, search: Search, *, weighted: bool) -> Callable[[], Predict]:
    parameters = QueryParameters(k=NEIGHBOURS, search=search, diversity=0)

    def make() -> Predict:
        training, tests = _with_words(split.documents), _with_words(split.test_documents)
        index, votes = Index.build(split.documents[training]), split.labels[training]

        def predict() -> IntArray:
            prediction = neighbour_vote(
                index, split.test_documents[tests], votes, weighted=weighted, parameters=parameters
            )
            labels = np.full((split.truth.shape[0], prediction.labels.shape[1]), -1)
            labels[tests] = prediction.labels
            return labels

        return predict

    return make


_TOP_K: Final = 5


@benchmark(
    "training",
    long=True,
    share=Option(0.02, "share of LSHTC3"),
    rank=Option(200, "rank"),
    iterations=Option(5, "outer iterations"),
    inner=Option(5, "inner iterations of each"),
    regularisation=Option(1.0, "regularisation"),
)
def training(options: Options) -> Iterator[Output]:
    """Time and precision of LEML training on synthetic documents of the size of LSHTC3.

    `--share` sets the share of 754,000 documents, 1.6 million features and 259,000 labels.
    Precision is measured on documents that were not used in training, and compared with always
    predicting the most frequent labels.
    """
    sizes = [round(options.share * size) for size in (DOCUMENTS, FEATURES, LABELS, TEST_DOCUMENTS)]
    data = labelled_documents(*sizes)
    parameters = LabelParameters(
        rank=options.rank,
        regularisation=options.regularisation,
        iterations=options.iterations,
        inner_iterations=options.inner,
        tolerance=0,
    )
    stages = _Stages(sizes[0])
    model = train(data.documents, data.labels, parameters, stages.note).model
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    facts = {"documents, features, labels": " x ".join(f"{size:,}" for size in sizes[:3])}
    yield Table(f"Training of rank {options.rank}", facts)
    yield from stages.rows
    yield Table("Precision in percent", {"peak memory": f"{peak / 1e9:.1f} GB, documents included"})
    yield from _precisions(data, model)


class _Stages:
    """Times the start and the iterations of a training, as its progress reports show them."""

    def __init__(self, documents: int) -> None:
        self._documents = documents
        self._started, self._processor = time.perf_counter(), time.process_time()
        self.rows: list[Row] = []

    def note(self, progress: Progress) -> None:
        """Take a progress report, and add a row when a stage is complete."""
        loss = progress.loss if isinstance(progress, TrainingProgress) else None
        # An iteration is complete with the first report of its loss.
        if self.rows:
            complete = loss != self.rows[-1]["loss"]
        else:
            complete = progress.rows_done >= self._documents
        if complete:
            now, processor = time.perf_counter(), time.process_time()
            self.rows.append(
                {
                    "stage": "iteration" if self.rows else "start",
                    "s": now - self._started,
                    "processor s": processor - self._processor,
                    "loss": loss,
                }
            )
            self._started, self._processor = now, processor


def _precisions(data: LabelledDocuments, model: LabelModel) -> Iterator[Row]:
    counts = np.bincount(data.labels.indices, minlength=data.labels.shape[1])
    frequent = np.argsort(-counts, kind="stable")[:_TOP_K]
    predictions: dict[str, IntArray] = {
        "LEML": model.predict(data.test_documents, top_k=_TOP_K).labels,
        "the most frequent": np.tile(frequent, (data.test_documents.shape[0], 1)),
    }
    for name, labels in predictions.items():
        means = precision_at(JudgedLabels.of(labels, data.truth)).mean(axis=0)
        yield {"labels": name, **{f"P@{k}": float(100 * means[k - 1]) for k in (1, 3, 5)}}
    lengths = np.linalg.norm(model.label_factors, axis=1)
    present = lengths > 0
    likeness = np.corrcoef(np.log(lengths[present]), np.log(counts[present]))[0, 1]
    yield {"labels": "correlation of log row lengths and log counts", "r": float(likeness)}
