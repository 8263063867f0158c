"""The benchmark of the training of label models."""

import resource
import time
from collections.abc import Iterator
from typing import Final

import numpy as np

from benchmarks.harness.datasets import precisions
from benchmarks.harness.runner import Option, Options, Output, Row, Table, benchmark
from divgrpc.labels import LabelModel, train
from divgrpc.parameters import LabelParameters
from divgrpc.types import IntArray, Progress, TrainingProgress
from divgrpc_lab.data.synthetic import (
    DOCUMENTS,
    FEATURES,
    LABELS,
    TEST_DOCUMENTS,
    LabelledDocuments,
    labelled_documents,
)

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
        yield {"labels": name, **precisions(data, labels)}
