"""Rank, regularisation and iterations, chosen by how well held-out rows are predicted.

A fifth of the rows, drawn with the seed, is held out; where rows are many, a sample is trained on
and a sample held out, with the features and labels that the former has. What counts is the mean of
P@1, P@3 and P@5 on the rows held out. Nothing else is looked at: no row of a test.

Regularisations lie a factor of three apart and are climbed from 1, the right order of magnitude for
rows of unit length; at the best one half the rank is tried, and taken where it is no worse. A
training ends, and has its iterations, where the next iteration hardly makes it better.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from divgrpc.errors import InvalidArgumentError
from divgrpc.labels.leml import Alternation, Tick, start
from divgrpc.labels.matrices import Products
from divgrpc.labels.model import best_labels
from divgrpc.metrics import JudgedLabels, precision_at
from divgrpc.parameters import LabelParameters
from divgrpc.types import IntArray
from divgrpc.vectors import Rows, SparseRows

REGULARISATIONS: Final = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
RANK_MOST: Final = 200
ITERATIONS_MOST: Final = 10
_FIRST: Final = REGULARISATIONS.index(1.0)
# All of them, and one of half the rank.
_TRIALS_MOST: Final = len(REGULARISATIONS) + 1
# Of a score: less is chance, on so few rows.
_CLEARLY: Final = 0.002
# Less is not worth another iteration.
_HARDLY: Final = 0.0005
# Where there is nothing to choose by.
_ITERATIONS_BLIND: Final = 2
_PLACES: Final = (1, 3, 5)
_HELD_OUT: Final = 1 / 5
_HELD_OUT_MOST: Final = 2_500
_TRAINED_MOST: Final = 20_000
_LEAST_ROWS: Final = 10
_BLOCK_SCORES: Final = 2**24


@dataclass(frozen=True, slots=True)
class Trial:
    """What a setting came to on the rows held out: the mean of P@1, P@3 and P@5."""

    rank: int
    regularisation: float
    iterations: int
    score: float


@dataclass(frozen=True, slots=True)
class Chosen:
    """Parameters of which none is open, and the trials that they were chosen by."""

    rank: int
    regularisation: float
    iterations: int
    trials: tuple[Trial, ...]


def choose(documents: Rows, labels: SparseRows, given: LabelParameters, tick: Tick) -> Chosen:
    """Return what was given, and what is best for what was left open.

    X (n, d) has the constant feature, and neither it nor Y (n, L) an empty column where sparse.
    Raises `InvalidArgumentError` for a rank above what the data allow, the least of n, d and L.
    """
    (rows, features), count = documents.shape, labels.shape[1]
    most = min(rows, features, count)
    if given.rank is not None and given.rank > most:
        raise InvalidArgumentError(
            "rank",
            f"rank must be at most {most}, the least of {rows} documents, {features} features "
            "that they have, the constant one included, and "
            f"{count} labels that they have, got {given.rank}",
        )
    largest = given.rank or min(most, RANK_MOST)
    blind = Chosen(
        largest,
        given.regularisation or REGULARISATIONS[_FIRST],
        given.iterations or _ITERATIONS_BLIND,
        (),
    )
    all_given = None not in (given.rank, given.regularisation, given.iterations)
    if all_given or len(documents) < _LEAST_ROWS:
        return blind
    held_out = _HeldOut(documents, labels, given, largest, tick)
    best = _climbed(held_out.trial, given.regularisation, largest)
    if given.rank is None and largest > 1:
        half = held_out.trial(best.regularisation, (largest + 1) // 2)
        best = half if half.score >= best.score else best
    return Chosen(best.rank, best.regularisation, best.iterations, tuple(held_out.trials))


def _climbed(trial: Callable[[float, int], Trial], fixed: float | None, rank: int) -> Trial:
    """Return the trial of the best regularisation: from 1 on, up or down for as long as it pays."""
    if fixed is not None:
        return trial(fixed, rank)
    best = trial(REGULARISATIONS[_FIRST], rank)
    for step in (1, -1):
        for regularisation in REGULARISATIONS[_FIRST + step :: step]:
            found = trial(regularisation, rank)
            # More regularisation is tried across a plain, less only for as long as it pays.
            if found.score <= best.score - (_CLEARLY if step > 0 else 0):
                break
            best = max(best, found, key=lambda each: each.score)
        if best.regularisation != REGULARISATIONS[_FIRST]:
            break
    return best


class _HeldOut:
    """Rows to train on and rows to predict; settings are tried one after the other."""

    def __init__(
        self, documents: Rows, labels: SparseRows, given: LabelParameters, rank: int, tick: Tick
    ) -> None:
        rng = np.random.default_rng((given.seed, 1))
        dealt = rng.permutation(len(documents))
        count = min(_HELD_OUT_MOST, max(1, int(len(dealt) * _HELD_OUT)))
        asked = np.sort(dealt[:count])
        trained = np.sort(dealt[count:][:_TRAINED_MOST])
        if len(trained) == _TRAINED_MOST:
            labels = _own_columns(labels, trained)
            if isinstance(documents, SparseRows):
                documents = _own_columns(documents, trained)
        self._products = Products(documents[trained], labels[trained])
        self._asked, self._truth = documents[asked], labels[asked]
        self._given, self._tick = given, tick
        self._factors = start(
            self._products, min(rank, *self._products.shape), rng, lambda _: tick(0.0)
        )
        self.trials: list[Trial] = []

    def trial(self, regularisation: float, rank: int) -> Trial:
        """Train at a setting until an iteration hardly makes it better, and return its best."""
        factors = self._factors[:, :rank].copy()
        training = Alternation(
            self._products, factors, regularisation, self._given.inner_iterations
        )
        best = Trial(rank, regularisation, 1, -1.0)
        for iteration in range(1, (self._given.iterations or ITERATIONS_MOST) + 1):
            training.iterate(lambda _: self._tick(len(self.trials) / _TRIALS_MOST))
            if self._given.iterations not in (None, iteration):
                continue
            score = self._score(training)
            if score <= best.score + _HARDLY:
                break
            best = Trial(rank, regularisation, iteration, score)
        self.trials.append(best)
        return best

    def _score(self, training: Alternation) -> float:
        embedded = self._asked @ training.feature_map
        back = training.label_factors.T
        count = min(_PLACES[-1], back.shape[1])
        rows = max(1, _BLOCK_SCORES // back.shape[1])
        found = [
            best_labels(np.asarray(embedded[at : at + rows] @ back, np.float32), count)[0]
            for at in range(0, len(embedded), rows)
        ]
        judged = JudgedLabels.of(np.concatenate(found), self._truth)
        precision = precision_at(judged).mean(axis=0)
        return float(np.mean([precision[k - 1] for k in _PLACES if k <= count]))


def _own_columns(matrix: SparseRows, rows: IntArray) -> SparseRows:
    """Return a matrix without the columns that some rows have nothing in."""
    return SparseRows.of(matrix.matrix[:, np.unique(matrix[rows].indices)])
