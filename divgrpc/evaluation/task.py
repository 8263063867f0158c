"""The options of an evaluation, and the plan that an index resolves them to."""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from divgrpc.errors import InvalidArgumentError
from divgrpc.evaluation.folds import FOLDS
from divgrpc.evaluation.grid import Grid, LabelGrid
from divgrpc.parameters import LIMITS


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The options of an evaluation of `rows` queries or documents.

    `folds` of 0: nothing is chosen. `set_default`: the best choice becomes the index's default,
    which needs folds and one k. `per_row`: result rows have `values`. Raises
    `InvalidArgumentError` with the field.
    """

    grid: Grid | LabelGrid
    rows: int
    folds: int = FOLDS
    set_default: bool = False
    per_row: bool = False

    # Names of the rows, and of the parameter for the number of results, in requests and errors.
    rows_field: ClassVar[str] = "queries"
    width_field: ClassVar[str] = "k"

    def __post_init__(self) -> None:
        field, rows, folds = self.rows_field, self.rows, self.folds
        if not rows:
            raise InvalidArgumentError(field, f"{field} must have at least one row")
        is_whole = isinstance(folds, int | np.integer) and not isinstance(folds, bool)
        if not is_whole or (folds != 0 and not 2 <= folds <= rows):
            raise InvalidArgumentError(
                "folds",
                f"folds must be 0 or between 2 and the number of {field} {rows}, got {folds}",
            )
        if self.set_default and not folds:
            raise InvalidArgumentError("set_default", "set_default needs folds to choose by")
        if self.set_default and len(set(self.widths())) > 1:
            raise InvalidArgumentError(
                "set_default",
                f"set_default needs one {self.width_field}: several cannot be compared",
            )

    def widths(self) -> list[int]:
        """Return how many results a row has at each setting."""
        return [int(getattr(setting, self.width_field)) for setting in self.grid.settings()]

    def bounded(self) -> Self:
        """Return the task; raises `InvalidArgumentError` where it is too large for one call."""
        field, rows, settings = self.rows_field, self.rows, len(self.grid.settings())
        most = LIMITS["query_rows_max"]
        if rows > most:
            raise InvalidArgumentError(field, f"{field} must have 1 to {most} rows, got {rows}")
        most = LIMITS["evaluate_queries_max"]
        if settings * rows > most:
            raise InvalidArgumentError(
                "grid",
                f"settings times {field} must be at most {most}, got {settings} times {rows}",
            )
        return self


def rows_max(settings: int) -> int:
    """Return the most queries or documents that one call with `settings` settings may have."""
    return min(LIMITS["query_rows_max"], LIMITS["evaluate_queries_max"] // settings)


@dataclass(frozen=True, slots=True)
class Plan:
    """A task checked against an index: its generation, and the resolved settings in grid order.

    `goal` is the metric that choices maximise. `chooses`: enough rows have a goal to choose by.
    """

    generation: int
    resolved: tuple[Any, ...]
    goal: str = "h_score"
    chooses: bool = True
