"""What an evaluation will do, checked whole before any of it is done."""

from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from divgrpc.errors import InvalidArgumentError, UnfitIndexError
from divgrpc.evaluation.folds import FOLDS
from divgrpc.evaluation.grid import Grid
from divgrpc.evaluation.measuring import Asked, Evaluable, Queries
from divgrpc.parameters import LIMITS
from divgrpc.types import EffectiveParameters

# Fewer queries with an h leave some fold without any to choose by.
LEAST_WITH_H: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is asked of an evaluation, but the queries: a grid, folds, and what to do at the end.

    `folds` of 0: nothing is chosen. `set_default`: what is chosen becomes the index's default for
    Query, so there must be folds, and one k to choose at. `per_query`: rows have `values`. Raises
    `InvalidArgumentError` with the field.
    """

    grid: Grid
    queries: int
    folds: int = FOLDS
    set_default: bool = False
    per_query: bool = False

    def __post_init__(self) -> None:
        check_folds("queries", self.queries, self.folds)
        if self.set_default and not self.folds:
            raise InvalidArgumentError("set_default", "set_default needs folds to choose by")
        if self.set_default and len({each.k for each in self.grid.settings()}) > 1:
            raise InvalidArgumentError(
                "set_default", "set_default needs one k: h at several cannot be compared"
            )

    def bounded(self) -> Self:
        """Return the task; raises `InvalidArgumentError` where it is too much for one call."""
        check_size("queries", self.queries, len(self.grid.settings()))
        return self


def rows_max(settings: int) -> int:
    """Return how many queries or documents one call may ask at so many settings."""
    return min(LIMITS["query_rows_max"], LIMITS["evaluate_queries_max"] // settings)


def check_folds(field: str, rows: int, folds: int) -> None:
    """Raise where there are no rows of queries or of documents, `field`, or wrong folds."""
    if not rows:
        raise InvalidArgumentError(field, f"{field} must have a row at least")
    whole = isinstance(folds, int | np.integer) and not isinstance(folds, bool)
    if not whole or (folds != 0 and not 2 <= folds <= rows):
        raise InvalidArgumentError(
            "folds",
            f"folds must be 0 or between 2 and the number of {field} {rows}, got {folds}",
        )


def check_size(field: str, rows: int, settings: int) -> None:
    """Raise where there are more than `rows_max` rows of queries or of documents, `field`."""
    most = LIMITS["query_rows_max"]
    if rows > most:
        raise InvalidArgumentError(field, f"{field} must have 1 to {most} rows, got {rows}")
    most = LIMITS["evaluate_queries_max"]
    if settings * rows > most:
        raise InvalidArgumentError(
            "grid",
            f"settings times {field} must be at most {most}, got {settings} times {rows}",
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """What an index makes of a task: its generation, the settings resolved, in the grid's order.

    `chooses`: there is an h to choose by.
    """

    generation: int
    resolved: tuple[EffectiveParameters, ...]
    chooses: bool


def plan(index: Evaluable, queries: Queries, asked: Asked, task: Task) -> Plan:
    """Check a task against an index.

    Raises `InvalidArgumentError` with the field, and `UnfitIndexError` where the index lacks
    categories or sub-topics that the task needs.
    """
    if asked.categories is not None and not len(index.topics.names):
        raise UnfitIndexError(
            "categories", "the index has no categories; give relevant ids, or build it with them"
        )
    index.check_queries(queries)
    topics, names = asked.topics(index)
    with_h = int((topics.depths(topics.numbers(names), 1)[:, 0] > 1).sum())
    chooses = bool(task.folds) and with_h >= LEAST_WITH_H
    if task.set_default and not chooses:
        raise UnfitIndexError(
            "set_default",
            "set_default needs queries for what has two sub-topics or more, to choose by h",
        )
    settings = task.grid.settings()
    most = LIMITS["k_candidates_dims_max"]
    # What it takes to compare every result with every other.
    if max(each.k for each in settings) ** 2 * index.widest_row > most:
        raise InvalidArgumentError(
            "ks", f"ks squared times the numbers of a point must be at most {most}"
        )
    resolved = tuple(index.resolve(each, queries) for each in settings)
    return Plan(index.generation, resolved, chooses)
