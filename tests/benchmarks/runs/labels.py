"""Benchmarks of label predictions and of the training of label models."""

import resource
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
from scipy import sparse
from sklearn.linear_model import Ridge
from sklearn.preprocessing import normalize

from benchmarks.harness.datasets import Split, documents, precisions
from benchmarks.harness.runner import Option, Options, Output, Row, Table, benchmark
from divgrpc.labels import LabelModel, train
from divgrpc.metrics import JudgedLabels, measure_labels, precision_at
from divgrpc.parameters import LabelParameters
from divgrpc.types import FloatArray, IntArray, Progress, TrainingProgress
from divgrpc_lab.data.synthetic import (
    DOCUMENTS,
    FEATURES,
    LABELS,
    TEST_DOCUMENTS,
    LabelledDocuments,
    labelled_documents,
)

_PENALTIES: Final = (0.3, 1.0, 3.0, 10.0)
_TOP_K: Final = 5

# A function that predicts the labels (nq, 5) of all test documents.
Predict = Callable[[], IntArray]


@benchmark("labels", sets=Option(list(documents.SETS), "data sets", documents.SETS))
def label_precision(options: Options) -> Iterator[Output]:
    """Precision of label predictions by LEML and by plain ridge regression.

    The figures are P@1, P@3 and P@5 in percent on the test documents. Ridge regression has a weight
    for every pair of a feature and a label, and its penalty is chosen on a fifth of the training
    documents. Training times include the choice of parameters. Seconds are wall time.
    """
    for split in documents.load(options.sets):
        yield Table(f"Labels of {split.name}", {"sha256": split.sha256})
        for name, fit in (("plain ridge", _ridge), ("LEML", _leml)):
            begin = time.perf_counter()
            predict = fit(split)
            end = time.perf_counter()
            labels = predict()
            yield {
                "labels by": name,
                **precisions(split, labels),
                "training s": end - begin,
                "us/document": 1e6 * (time.perf_counter() - end) / len(labels),
            }


def _leml(split: Split) -> Predict:
    model = train(split.documents, split.labels, LabelParameters()).model
    return lambda: model.predict(split.test_documents).labels


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
    return np.argsort(-model.predict(documents), axis=1, kind="stable")[:, :_TOP_K]


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
    begin = time.perf_counter()
    # The time of the first report of each loss; the start of a training has no loss.
    ends: dict[float | None, float] = {}

    def note(progress: Progress) -> None:
        loss = progress.loss if isinstance(progress, TrainingProgress) else None
        if loss is not None or progress.rows_done >= sizes[0]:
            ends.setdefault(loss, time.perf_counter())

    model = train(data.documents, data.labels, parameters, note).model
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    facts = {"documents, features, labels": " x ".join(f"{size:,}" for size in sizes[:3])}
    yield Table(f"Training of rank {options.rank}", facts)
    for (loss, end), start in zip(ends.items(), (begin, *ends.values()), strict=False):
        yield {"stage": "iteration" if loss else "start", "s": end - start, "loss": loss}
    yield Table("Precision in percent", {"peak memory": f"{peak / 1e9:.1f} GB, documents included"})
    yield from _precisions(data, model)


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
