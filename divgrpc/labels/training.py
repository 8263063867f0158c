"""Trains a label model: first chooses the parameters that are None, then trains on all rows."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from threadpoolctl import threadpool_limits

from divgrpc.errors import invalid
from divgrpc.labels.leml import Alternation, start
from divgrpc.labels.matrices import Products, without_empty
from divgrpc.labels.model import LabelModel, as_documents, as_labels
from divgrpc.labels.model_selection import Trial, choose
from divgrpc.parameters import LIMITS, LabelParameters
from divgrpc.types import FloatArray, IntArray, Progress, TrainingProgress
from divgrpc.vectors import Rows, RowsLike, SparseRows


@dataclass(frozen=True, slots=True, eq=False)
class TrainedLabels:
    """A trained `model`, and the `parameters` of its training with all values filled in.

    `losses` holds the loss after each iteration. `trials` holds the settings that were tried on
    held-out rows. There are none if rank, regularisation and iterations were given, or with too few
    rows.
    """

    model: LabelModel
    parameters: LabelParameters
    losses: tuple[float, ...]
    trials: tuple[Trial, ...]


def train(
    documents: RowsLike,
    labels: RowsLike,
    parameters: LabelParameters | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> TrainedLabels:
    """Train LEML (`labels.leml`) on `documents` X (n, d) and `labels` Y (n, L), sparse or dense.

    Rows of X are scaled to unit length, and a constant feature is appended. Document i has label j
    if Y[i, j] is not 0. `on_progress` is called several times per iteration, and may raise an error
    to end the training. The same data, parameters, libraries and processor give the same factors.
    Raises `InvalidArgumentError` with the field documents, labels, rank or regularisation.
    """
    rows = as_documents(documents)
    truth = as_labels(labels, len(rows))
    reports = _Reports(len(rows), on_progress)
    # Use one BLAS thread: the products are small, so several would mostly wait for each other.
    with threadpool_limits(1, user_api="blas"):
        return _train(rows, truth, parameters or LabelParameters(), reports)


def _train(
    rows: Rows, truth: SparseRows, parameters: LabelParameters, reports: "_Reports"
) -> TrainedLabels:
    features, labels = rows.shape[1], truth.shape[1]
    _check_size(parameters.rank, features, labels)
    used_features = None
    if isinstance(rows, SparseRows):
        rows, used_features = without_empty(rows)
    truth, used_labels = without_empty(truth)
    best, trials = choose(rows, truth, parameters, reports.choosing)
    products = Products(rows, truth)
    rng = np.random.default_rng((parameters.seed, 2))
    reports.begin(best.iterations)
    first = start(products, best.rank, rng, reports.within)
    training = Alternation(products, first, best.regularisation, parameters.inner_iterations)
    losses: list[float] = []
    for _ in range(best.iterations):
        losses.append(training.iterate(reports.within))
        reports.end_iteration(losses[-1])
        if len(losses) > 1 and losses[-2] - losses[-1] < parameters.tolerance * losses[-2]:
            break
    if not training.label_factors.any():
        raise invalid(
            "regularisation", f"must be lower, {best.regularisation:g} leaves no factors but zeros"
        )
    # Features of sparse documents, and labels, that no document has were left out of training.
    # Insert zeros for them, because regularisation would make their rows zero.
    feature_map = _insert_zeros(training.feature_map, used_features, features)
    factors = _insert_zeros(training.label_factors, used_labels, labels)
    model = LabelModel(factors, feature_map[:-1], feature_map[-1], unit_rows=True)
    parameters = replace(
        parameters, rank=best.rank, regularisation=best.regularisation, iterations=best.iterations
    )
    return TrainedLabels(model, parameters, tuple(losses), trials)


def _check_size(rank: int | None, features: int, labels: int) -> None:
    """Raise an error if factors of this `rank` are too large to store.

    `features` is the number of features including the constant one.
    """
    rank_max = LIMITS["label_factor_numbers_max"] // max(features, labels)
    if rank is not None and rank > rank_max:
        sizes = f"{features - 1} columns and {labels} labels"
        sentence = f"must be at most {rank_max} with {sizes}, got {rank}"
        raise invalid("rank", f"{sentence}: a factor holds too many numbers")


def _insert_zeros(rows: FloatArray, places: IntArray | None, count: int) -> FloatArray:
    """Return `count` rows with `rows` at the row numbers `places`, and zeros elsewhere.

    If `places` is None, `rows` is returned unchanged.
    """
    if places is None or len(places) == count:
        return rows
    spread = np.zeros((count, rows.shape[1]), np.float32)
    spread[places] = rows
    return spread


class _Reports:
    """Reports the progress of the stages "choosing" and "training" as a number of rows.

    The stage "choosing" may end before its reported total is reached. In the stage "training", the
    computation of the initial factors counts as one iteration.
    """

    def __init__(self, rows: int, on_progress: Callable[[Progress], None] | None) -> None:
        self._rows = rows
        self._on_progress = on_progress or (lambda _: None)
        self._start_seconds = time.monotonic()
        self._iteration, self._total = 0, 1
        self._loss: float | None = None

    def choosing(self, share: float) -> None:
        """Report the finished `share` of the maximum number of trials in the stage "choosing"."""
        self._on_progress(TrainingProgress("choosing", round(share * self._rows), self._rows))

    def begin(self, iterations: int) -> None:
        """Start the clock of the training stage."""
        self._start_seconds, self._total = time.monotonic(), iterations + 1

    def within(self, share: float) -> None:
        """Report the finished `share` of an iteration or of the initial factors."""
        if share == 1 and self._iteration == 0:
            self._iteration, share = 1, 0.0
        count = self._iteration + share
        seconds = time.monotonic() - self._start_seconds
        seconds_left = seconds * (self._total - count) / count if count else None
        rows = (round(count * self._rows), self._total * self._rows)
        self._on_progress(TrainingProgress("training", *rows, seconds_left, self._loss))

    def end_iteration(self, loss: float) -> None:
        """Record the loss of a finished iteration, and report progress."""
        self._iteration, self._loss = self._iteration + 1, loss
        self.within(0.0)
