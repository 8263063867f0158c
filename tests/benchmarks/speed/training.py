"""Training at size: LEML on synthetic documents of LSHTC3's size, its time, memory and precision.

`--share` of 754,000 documents, 1.6 million features and 259,000 labels. Precision is on documents
that were not trained on, beside always predicting the most frequent labels.
"""

import resource
import time
from collections.abc import Iterator
from typing import Final

import numpy as np

from benchmarks.harness.runner import Option, Options, Output
from benchmarks.harness.tables import Row, Table
from divgrpc.labels import LabelModel, train
from divgrpc.metrics import JudgedLabels, precision_at
from divgrpc.parameters import LabelParameters
from divgrpc.types import IntArray, Progress, TrainingProgress
from divgrpc_lab.data.synthetic import (
    ASKED,
    DOCUMENTS,
    FEATURES,
    LABELS,
    LabelledDocuments,
    labelled_documents,
)

OPTIONS: Final = {
    "share": Option(0.02, "share of LSHTC3"),
    "rank": Option(200, "rank"),
    "iterations": Option(5, "outer iterations"),
    "inner": Option(5, "inner iterations of each"),
    "regularisation": Option(1.0, "regularisation"),
}
_TOP_K: Final = 5


def rows(options: Options) -> Iterator[Output]:
    """Yield a table of iterations and one of precisions."""
    sizes = [round(options.share * size) for size in (DOCUMENTS, FEATURES, LABELS, ASKED)]
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
    """The start and the iterations of a training, timed by its reports of progress."""

    def __init__(self, documents: int) -> None:
        self._documents = documents
        self._started, self._processor = time.perf_counter(), time.process_time()
        self.rows: list[Row] = []

    def note(self, progress: Progress) -> None:
        """Take a report, and add a row where a stage is complete."""
        loss = progress.loss if isinstance(progress, TrainingProgress) else None
        # An iteration's last report is the first with its loss.
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
        "LEML": model.predict(data.asked, top_k=_TOP_K).labels,
        "the most frequent": np.tile(frequent, (data.asked.shape[0], 1)),
    }
    for name, labels in predictions.items():
        means = precision_at(JudgedLabels.of(labels, data.truth)).mean(axis=0)
        yield {"labels": name, **{f"P@{k}": float(100 * means[k - 1]) for k in (1, 3, 5)}}
    lengths = np.linalg.norm(model.label_factors, axis=1)
    seen = lengths > 0
    likeness = np.corrcoef(np.log(lengths[seen]), np.log(counts[seen]))[0, 1]
    yield {"labels": "correlation of log row lengths and log counts", "r": float(likeness)}
