"""Training at size: LEML on made-up documents of LSHTC3's size, its time, memory and precision.

`--share` of 754,000 documents, 1.6 million features and 259,000 labels. An iteration is compared
with what the same products of sparse and dense matrices, counted as they are asked for, take scipy;
each kind of them is timed once, after the training, as processor time: scipy has one thread, and is
not blamed for what others do on the machine. Precision is on documents of known labels that were
not trained on, beside always saying the most frequent labels.
"""

import argparse
import resource
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from unittest import mock

import numpy as np

from benchmarks.tables import facts, show, table
from divgrpc.labels import LabelModel, matrices, train
from divgrpc.metrics import JudgedLabels, precision_at
from divgrpc.parameters import LabelParameters
from divgrpc.types import FloatArray, IntArray, Progress, TrainingProgress
from divgrpc.vectors import SparseRows
from divgrpc.warmup import warm_kernels
from divgrpc_lab.data.labelled_documents import (
    ASKED,
    DOCUMENTS,
    FEATURES,
    LABELS,
    LabelledDocuments,
    labelled_documents,
)

_TOP_K: Final = 5
_SHOWN_EVERY: Final = 10.0
_GB: Final = 1e9

# Stored numbers and columns of a product, and one of the matrices that are so.
Kind = tuple[int, int, int]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the run can be told."""
    parser.add_argument("--share", type=float, default=0.02, help="of LSHTC3 (default 0.02)")
    parser.add_argument("--rank", type=int, default=200, help="(default 200)")
    parser.add_argument("--iterations", type=int, default=5, help="outer ones (default 5)")
    parser.add_argument("--inner", type=int, default=5, help="inner ones of each (default 5)")
    parser.add_argument("--regularisation", type=float, default=1.0, help="(default 1)")


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Make the documents, train, measure, print, and return the figures for JSON."""
    sizes = [round(arguments.share * size) for size in (DOCUMENTS, FEATURES, LABELS, ASKED)]
    warm_kernels()
    made = labelled_documents(*sizes)
    show(f"\n## Training at size: rank {arguments.rank}\n")
    show(facts(_described(made)) + "\n")
    parameters = LabelParameters(
        rank=arguments.rank,
        regularisation=arguments.regularisation,
        iterations=arguments.iterations,
        inner_iterations=arguments.inner,
        tolerance=0,
    )
    watched = _Watched(sizes[0])
    with watched.products():
        model = train(made.documents, made.labels, parameters, watched.note).model
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    stages = watched.stages
    scipys = watched.scipys_seconds()
    rows = [_row(stage, scipys) for stage in stages]
    heads = ["stage", "s", "processor s", "products s", "scipy's s", "s by scipy's", "loss"]
    show("\n" + table(heads, [_drawn(row) for row in rows]) + "\n")
    reached = _reached(made, model)
    show(facts({"peak memory": f"{peak / _GB:.1f} GB, the documents included", **_told(reached)}))
    return {"stages": rows, "peak_bytes": peak, **reached}


@dataclass
class _Stage:
    """The start, or an iteration: what it took, and the products in it with what those took."""

    seconds: float = 0.0
    processor: float = 0.0
    loss: float | None = None
    products: float = 0.0
    kinds: Counter[Kind] = field(default_factory=Counter)


class _Watched:
    """A training looked at from outside: its progress is shown, its products counted."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._begun = self._shown = self._stage_begun = time.perf_counter()
        self._processor_begun = time.process_time()
        self._matrices: dict[Kind, Any] = {}
        self._under_way = _Stage()
        self.stages: list[_Stage] = []

    def note(self, progress: Progress) -> None:
        """Take a report: where another stage is done, begin the next; show one now and then."""
        now = time.perf_counter()
        loss = progress.loss if isinstance(progress, TrainingProgress) else None
        # An iteration's last report is the first with its loss.
        ended = loss != self.stages[-1].loss if self.stages else progress.rows_done >= self._rows
        if ended:
            stage, processor = self._under_way, time.process_time()
            stage.seconds, stage.loss = now - self._stage_begun, loss
            stage.processor = processor - self._processor_begun
            self.stages.append(stage)
            self._under_way, self._stage_begun, self._processor_begun = _Stage(), now, processor
        if ended or now - self._shown > _SHOWN_EVERY:
            self._shown = now
            done = progress.rows_done / max(1, progress.rows_total)
            left = f"{progress.seconds_left or 0:.0f} s left"
            told = "" if loss is None else f", loss {loss:,.0f}"
            show(f"{now - self._begun:5.0f} s  {done:4.0%}, {left}{told}")

    @contextmanager
    def products(self) -> Iterator[None]:
        """Count the products of sparse matrices that are asked for within."""
        multiply = matrices.multiply

        def counted(matrix: matrices.Matrix, columns: FloatArray) -> FloatArray:
            begun = time.perf_counter()
            product = multiply(matrix, columns)
            self._under_way.products += time.perf_counter() - begun
            assert isinstance(matrix, SparseRows)
            kind = (len(matrix), len(matrix.indices), columns.shape[1])
            self._matrices[kind] = matrix.matrix
            self._under_way.kinds[kind] += 1
            return product

        with mock.patch.object(matrices, "multiply", counted):
            yield

    def scipys_seconds(self) -> Mapping[Kind, float]:
        """Return what one product of each kind takes scipy."""
        rng = np.random.default_rng(0)
        seconds = {}
        for kind, matrix in self._matrices.items():
            columns = rng.standard_normal((matrix.shape[1], kind[-1]), np.float32)
            begun = time.thread_time()
            _ = matrix @ columns
            seconds[kind] = time.thread_time() - begun
        return seconds


def _row(stage: _Stage, scipys: Mapping[Kind, float]) -> dict[str, float | None]:
    by_scipy = sum(count * scipys[kind] for kind, count in stage.kinds.items())
    return {
        "seconds": stage.seconds,
        "processor": stage.processor,
        "products": stage.products,
        "by_scipy": by_scipy,
        "ratio": stage.seconds / by_scipy,
        "loss": stage.loss,
    }


def _drawn(row: Mapping[str, float | None]) -> tuple[str, ...]:
    loss = row["loss"]
    name = "start" if loss is None else "iteration"
    numbers = (f"{row[each]:.1f}" for each in ("seconds", "processor", "products", "by_scipy"))
    return (name, *numbers, f"{row['ratio']:.2f}", "" if loss is None else f"{loss:,.0f}")


def _described(made: LabelledDocuments) -> dict[str, str]:
    rows, features = made.documents.shape
    counts = _counts(made)
    return {
        "documents": f"{rows:,}, and {made.asked.shape[0]:,} to be asked",
        "features": f"{features:,}, {made.documents.nnz / rows:.1f} a document",
        "labels": f"{len(counts):,}, {made.labels.nnz / rows:.1f} a document; the most frequent "
        f"has {counts.max():,}, {np.mean(counts == 0):.1%} have none",
    }


def _reached(made: LabelledDocuments, model: LabelModel) -> dict[str, Any]:
    counts = _counts(made)
    popular = np.argsort(-counts, kind="stable")[:_TOP_K]
    always = np.tile(popular, (made.asked.shape[0], 1))
    lengths = np.linalg.norm(model.label_factors, axis=1)
    seen = lengths > 0
    likeness = np.corrcoef(np.log(lengths[seen]), np.log(counts[seen]))[0, 1]
    return {
        "precisions": _precisions(model.predict(made.asked, top_k=_TOP_K).labels, made),
        "precisions_of_popular": _precisions(always, made),
        "correlation": float(likeness),
    }


def _told(reached: Mapping[str, Any]) -> dict[str, str]:
    drawn = {
        name: " ".join(f"{100 * value:.1f}" for value in reached[key])
        for name, key in (
            ("P@1/3/5, percent", "precisions"),
            ("of the most frequent", "precisions_of_popular"),
        )
    }
    likeness = f"{reached['correlation']:.2f} correlated, by their logarithms"
    return {**drawn, "row lengths and counts": likeness}


def _precisions(labels: IntArray, made: LabelledDocuments) -> list[float]:
    means = precision_at(JudgedLabels.of(labels, made.truth)).mean(axis=0)
    return [float(means[k - 1]) for k in (1, 3, 5)]


def _counts(made: LabelledDocuments) -> IntArray:
    return np.bincount(made.labels.indices, minlength=made.labels.shape[1])
