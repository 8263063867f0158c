"""Trains a label model: first chooses the parameters that are None, then trains on all rows."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from divgrpc.errors import invalid
from divgrpc.labels.leml import Alternation, start
from divgrpc.labels.model import LabelModel, as_labels
from divgrpc.labels.model_selection import Trial, choose
from divgrpc.labels.products import Multiply, Products
from divgrpc.labels.training_data import TrainingData, prepare_data
from divgrpc.parallel import one_blas_thread
from divgrpc.parameters import LIMITS, LabelParameters
from divgrpc.storage.writers import MemoryStore
from divgrpc.types import Progress, TrainingProgress
from divgrpc.vectors import RowsLike, as_rows


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
    rows = as_rows("documents", documents, None)
    truth = as_labels(labels, len(rows))
    data = prepare_data(MemoryStore(), rows, truth)
    return train_on(data, parameters or LabelParameters(), on_progress)


def train_on(
    data: TrainingData,
    parameters: LabelParameters,
    on_progress: Callable[[Progress], None] | None,
    multiply: Multiply | None = None,
) -> TrainedLabels:
    """Train as `train` does on prepared data.

    multiply: computes products of the data; by default, the cores of this machine do. Trials use a
        sample, and this machine alone.
    """
    _check_rank(parameters.rank, data)
    reports = _Reports(len(data.documents), on_progress)
    # Use one BLAS thread: the products are small, so several would mostly wait for each other.
    with one_blas_thread():
        return _train(data, parameters, reports, multiply)


def _train(
    data: TrainingData,
    parameters: LabelParameters,
    reports: "_Reports",
    multiply: Multiply | None,
) -> TrainedLabels:
    best, trials = choose(data.documents, data.labels, parameters, reports.choosing)
    products = Products(data.documents, data.labels, multiply)
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
    feature_map = data.feature_map_of(training.feature_map)
    factors = data.label_factors_of(training.label_factors)
    model = LabelModel(factors, feature_map[:-1], feature_map[-1], unit_rows=True)
    parameters = replace(
        parameters, rank=best.rank, regularisation=best.regularisation, iterations=best.iterations
    )
    return TrainedLabels(model, parameters, tuple(losses), trials)


def _check_rank(rank: int | None, data: TrainingData) -> None:
    """Raise an error if factors of this `rank` are too large to store."""
    features, labels = data.feature_count, data.label_count
    rank_max = LIMITS["label_factor_numbers_max"] // max(features, labels)
    if rank is not None and rank > rank_max:
        # One feature is constant.
        sizes = f"{features - 1} columns and {labels} labels"
        sentence = f"must be at most {rank_max} with {sizes}, got {rank}"
        raise invalid("rank", f"{sentence}: a factor holds too many numbers")


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
