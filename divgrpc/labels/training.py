"""Training a label model from documents and their labels: parameters chosen, then all rows used."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from threadpoolctl import threadpool_limits

from divgrpc.errors import InvalidArgumentError
from divgrpc.labels.leml import Alternation, start
from divgrpc.labels.matrices import Products, without_empty
from divgrpc.labels.model import LabelModel, as_documents, as_labels
from divgrpc.labels.model_selection import Trial, choose
from divgrpc.parameters import LIMITS, LabelParameters
from divgrpc.types import FloatArray, IntArray, Progress, TrainingProgress
from divgrpc.vectors import Rows, RowsLike, SparseRows


@dataclass(frozen=True, slots=True, eq=False)
class TrainedLabels:
    """A `model`, the `parameters` it was trained with, none open, and how that went.

    `losses`: what the loss was after each iteration, falling; `trials`: what was tried on rows held
    out.
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
    """Train LEML on `documents` X (n, d) and `labels` Y (n, L), each sparse or dense.

    Rows of X are scaled to unit length and get a constant feature; what is not 0 in Y is a label.
    `on_progress` is called several times an iteration, and ends the training by raising. The same
    data, parameters and libraries on the same machine give the same factors. Raises
    `InvalidArgumentError` with the field named: documents, labels, rank, regularisation.
    """
    rows = as_documents(documents)
    truth = as_labels(labels, len(rows))
    given = parameters or LabelParameters()
    reported = _Reports(len(rows), on_progress)
    # Products of BLAS are small here: its threads wait for one another, on a busy machine for long.
    with threadpool_limits(1, user_api="blas"):
        return _trained(rows, truth, given, reported)


def _trained(
    rows: Rows, truth: SparseRows, given: LabelParameters, reported: "_Reports"
) -> TrainedLabels:
    features, labels = rows.shape[1], truth.shape[1]
    _check_size(given.rank, features, labels)
    used = None
    if isinstance(rows, SparseRows):
        rows, used = without_empty(rows)
    truth, had = without_empty(truth)
    chosen = choose(rows, truth, given, reported.choosing)
    products = Products(rows, truth)
    rng = np.random.default_rng((given.seed, 2))
    reported.begin(chosen.iterations)
    first = start(products, chosen.rank, rng, reported.within)
    training = Alternation(products, first, chosen.regularisation, given.inner_iterations)
    losses: list[float] = []
    for _ in range(chosen.iterations):
        losses.append(training.iterate(reported.within))
        reported.end_iteration(losses[-1])
        if len(losses) > 1 and losses[-2] - losses[-1] < given.tolerance * losses[-2]:
            break
    if not training.label_factors.any():
        raise InvalidArgumentError(
            "regularisation",
            f"regularisation must be lower, {chosen.regularisation:g} leaves no factors but zeros",
        )
    # What no document has stays at none, as regularisation has it.
    feature_map = _spread(training.feature_map, used, features)
    factors = _spread(training.label_factors, had, labels)
    model = LabelModel(factors, feature_map[:-1], feature_map[-1], unit_rows=True)
    filled = replace(
        given,
        rank=chosen.rank,
        regularisation=chosen.regularisation,
        iterations=chosen.iterations,
    )
    return TrainedLabels(model, filled, tuple(losses), chosen.trials)


def _check_size(rank: int | None, features: int, labels: int) -> None:
    """Refuse a rank whose factors are too large to keep, the constant feature counted."""
    most = LIMITS["label_factor_numbers_max"] // max(features, labels)
    if rank is not None and rank > most:
        raise InvalidArgumentError(
            "rank",
            f"rank must be at most {most} with {features - 1} columns and {labels} labels, "
            f"got {rank}: a factor holds too many numbers",
        )


def _spread(found: FloatArray, places: IntArray | None, count: int) -> FloatArray:
    """Return what was found at their places among `count` rows of zeros; None is everywhere."""
    if places is None or len(places) == count:
        return found
    spread = np.zeros((count, found.shape[1]), np.float32)
    spread[places] = found
    return spread


class _Reports:
    """Progress of both stages: the first may end before all of it is done.

    In the second, the start of the factors is as much as an iteration.
    """

    def __init__(self, rows: int, on_progress: Callable[[Progress], None] | None) -> None:
        self._rows = rows
        self._on_progress = on_progress or (lambda _: None)
        self._begun = time.monotonic()
        self._done, self._total = 0, 1
        self._loss: float | None = None

    def choosing(self, share: float) -> None:
        """Say how many settings have been tried, as a share of the most that may be."""
        self._on_progress(TrainingProgress("choosing", round(share * self._rows), self._rows))

    def begin(self, iterations: int) -> None:
        """Start the clock of the training itself."""
        self._begun, self._total = time.monotonic(), iterations + 1

    def within(self, share: float) -> None:
        """Say how far an iteration, or the start, has come."""
        if share == 1 and self._done == 0:
            self._done, share = 1, 0.0
        done = self._done + share
        left = (time.monotonic() - self._begun) * (self._total - done) / done if done else None
        rows = (round(done * self._rows), self._total * self._rows)
        self._on_progress(TrainingProgress("training", *rows, left, self._loss))

    def end_iteration(self, loss: float) -> None:
        """Note what it came to."""
        self._done, self._loss = self._done + 1, loss
        self.within(0.0)
