"""Chooses the rank, regularisation and iterations of LEML by the precision on held-out rows.

A random fifth of the training rows is held out, at most 2,500 rows. The model is trained on at most
20,000 of the other rows. If these are only a sample of the other rows, labels (and features of
sparse documents) that do not occur in the sample are dropped. The score of a setting is the mean of
P@1, P@3 and P@5 on the held-out rows. No test data is used.

The regularisations to try differ by factors of about three. The search begins at 1, the order of
magnitude that suits documents of unit length. It tries stronger regularisations until the score
drops. It tries weaker regularisations only if no stronger regularisation is better than 1. Unless
the rank is given, the search then tries half the rank with the best regularisation, and chooses
half the rank unless the score is lower. Unless the number of iterations is given, a trial ends when
another iteration improves the score by too little.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from divgrpc.errors import invalid
from divgrpc.labels.leml import Alternation, Tick, start
from divgrpc.labels.model import best_products
from divgrpc.labels.products import Products
from divgrpc.metrics import JudgedLabels, precision_at
from divgrpc.parameters import LabelParameters
from divgrpc.types import IntArray
from divgrpc.vectors import Rows, SparseRows

REGULARISATIONS: Final = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
RANK_MAX: Final = 200
ITERATIONS_MAX: Final = 10
_FIRST: Final = REGULARISATIONS.index(1.0)
# The maximum number of trials is one for each regularisation, and one with half the rank.
_TRIALS_MAX: Final = len(REGULARISATIONS) + 1
# The search for stronger regularisations stops when a score is at least 0.002 below the best. With
# at most 2,500 rows, a smaller difference may be due to chance.
_SCORE_DROP_MIN: Final = 0.002
# Training continues only while each iteration raises the score by more than 0.0005.
_ITERATION_GAIN_MIN: Final = 0.0005
# Number of iterations if the number is not given and too few rows exist for trials.
_DEFAULT_ITERATIONS: Final = 2
_DEPTHS: Final = (1, 3, 5)
_HELD_OUT_SHARE: Final = 1 / 5
_HELD_OUT_ROWS_MAX: Final = 2_500
_TRAINED_ROWS_MAX: Final = 20_000
_ROWS_MIN: Final = 10


@dataclass(frozen=True, slots=True)
class Trial:
    """A setting, and its score: the mean of P@1, P@3 and P@5 on the held-out rows, 0 to 1."""

    rank: int
    regularisation: float
    iterations: int
    score: float


def choose(
    documents: Rows, labels: SparseRows, parameters: LabelParameters, tick: Tick
) -> tuple[Trial, tuple[Trial, ...]]:
    """Choose the rank, regularisation and iterations unless `parameters` set them.

    Returns the chosen setting and all trials. If no trial is needed or possible, the score of the
    setting is NaN. `documents` (n, d) include the constant feature. `labels` (n, L) and sparse
    `documents` have no empty column. `tick` gets the finished share of the trials, 0 to 1.
    Raises `InvalidArgumentError` with the field rank if the rank exceeds n, d or L.
    """
    (rows, features), count = documents.shape, labels.shape[1]
    rank_max = min(rows, features, count)
    if parameters.rank is not None and parameters.rank > rank_max:
        sizes = f"{rows} documents, {features} features that they have, the constant one included,"
        sizes += f" and {count} labels that they have"
        raise invalid(
            "rank", f"must be at most {rank_max}, the least of {sizes}, got {parameters.rank}"
        )
    rank = parameters.rank or min(rank_max, RANK_MAX)
    is_open = None in (parameters.rank, parameters.regularisation, parameters.iterations)
    if not is_open or rows < _ROWS_MIN:
        regularisation = parameters.regularisation or REGULARISATIONS[_FIRST]
        iterations = parameters.iterations or _DEFAULT_ITERATIONS
        return Trial(rank, regularisation, iterations, float("nan")), ()
    held_out = _HeldOut(documents, labels, parameters, rank, tick)
    if parameters.regularisation is None:
        best = _climb(held_out.trial, rank)
    else:
        best = held_out.trial(parameters.regularisation, rank)
    if parameters.rank is None and rank > 1:
        half = held_out.trial(best.regularisation, (rank + 1) // 2)
        best = half if half.score >= best.score else best
    return best, tuple(held_out.trials)


def _climb(trial: Callable[[float, int], Trial], rank: int) -> Trial:
    """Try regularisations from 1 upwards, or else downwards; return the best trial."""
    best = trial(REGULARISATIONS[_FIRST], rank)
    for step in (1, -1):
        for regularisation in REGULARISATIONS[_FIRST + step :: step]:
            candidate = trial(regularisation, rank)
            # The search for weaker regularisations continues only while the score rises. The search
            # for stronger ones continues even if the score falls a little.
            if candidate.score <= best.score - (_SCORE_DROP_MIN if step > 0 else 0):
                break
            best = max(best, candidate, key=lambda trial: trial.score)
        if best.regularisation != REGULARISATIONS[_FIRST]:
            break
    return best


class _HeldOut:
    """Training rows and held-out rows; `trials` lists all trials made with them."""

    def __init__(
        self,
        documents: Rows,
        labels: SparseRows,
        parameters: LabelParameters,
        rank: int,
        tick: Tick,
    ) -> None:
        rng = np.random.default_rng((parameters.seed, 1))
        order = rng.permutation(len(documents))
        count = min(_HELD_OUT_ROWS_MAX, max(1, int(len(order) * _HELD_OUT_SHARE)))
        held_out = np.sort(order[:count])
        training = np.sort(order[count:][:_TRAINED_ROWS_MAX])
        if len(training) == _TRAINED_ROWS_MAX:
            labels = _columns_of(labels, training)
            if isinstance(documents, SparseRows):
                documents = _columns_of(documents, training)
        self._products = Products(documents[training], labels[training])
        self._documents, self._truth = documents[held_out], labels[held_out]
        self._parameters, self._tick = parameters, tick
        self._factors = start(
            self._products, min(rank, *self._products.shape), rng, lambda _: tick(0.0)
        )
        self.trials: list[Trial] = []

    def trial(self, regularisation: float, rank: int) -> Trial:
        """Train until an iteration gains too little; return the trial of the best iteration.

        If the number of iterations is given, train for this number instead.
        """
        factors, iterations = self._factors[:, :rank].copy(), self._parameters.iterations
        training = Alternation(
            self._products, factors, regularisation, self._parameters.inner_iterations
        )
        best = Trial(rank, regularisation, 1, -1.0)
        for iteration in range(1, (iterations or ITERATIONS_MAX) + 1):
            training.iterate(lambda _: self._tick(len(self.trials) / _TRIALS_MAX))
            if iterations not in (None, iteration):
                continue
            score = self._score(training)
            if score <= best.score + _ITERATION_GAIN_MIN:
                break
            best = Trial(rank, regularisation, iteration, score)
        self.trials.append(best)
        return best

    def _score(self, training: Alternation) -> float:
        embedded = np.asarray(self._documents @ training.feature_map, np.float32)
        count = min(_DEPTHS[-1], len(training.label_factors))
        labels, _ = best_products(embedded, training.label_factors, count)
        precision = precision_at(JudgedLabels.of(labels, self._truth)).mean(axis=0)
        return float(np.mean([precision[k - 1] for k in _DEPTHS if k <= count]))


def _columns_of(matrix: SparseRows, rows: IntArray) -> SparseRows:
    """Return `matrix` with only the columns in which at least one of `rows` has a value."""
    return SparseRows.of(matrix.matrix[:, np.unique(matrix[rows].indices)])
