"""An evaluation in this process: pieces one after the other."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from divgrpc.evaluation.folds import FOLDS
from divgrpc.evaluation.grid import Grid
from divgrpc.evaluation.measuring import Asked, Evaluable, Indexed, Piece, Queries
from divgrpc.evaluation.planning import Plan, Task, plan
from divgrpc.evaluation.tallying import Tally
from divgrpc.types import EvaluateRow, Progress

STAGE: Final = "evaluating"
PIECE_QUERIES: Final = 64


def evaluate(
    index: Indexed,
    queries: Queries,
    categories: npt.ArrayLike | None = None,
    *,
    relevant: Sequence[npt.ArrayLike] | None = None,
    grid: Grid | None = None,
    folds: int = FOLDS,
    set_default: bool = False,
    per_query: bool = False,
    progress: Callable[[Progress], object] | None = None,
) -> Iterator[EvaluateRow]:
    """Try every setting of `grid` on `queries` (nq, d), and yield what each reached.

    Relevant are the points of a query's category, `categories` (nq,), or those whose ids
    `relevant` lists for it. Rows of all settings come in the grid's order, then one for each choice
    by `folds`: for every selector, search and k the dial and limits with the greatest mean h. With
    `set_default` the best choice becomes the index's default for Query. `per_query`: rows have the
    numbers of every query. `progress` is called as it goes on.

    Everything is checked before any work: raises `InvalidArgumentError` with the field, and
    `UnfitIndexError` where the index lacks categories or sub-topics.
    """
    if hasattr(queries, "tocsr"):
        queries = queries.tocsr()
    elif not hasattr(queries, "indptr"):
        queries = np.atleast_2d(np.asarray(queries))
    count = int(queries.shape[0])
    task = Task(
        grid=Grid() if grid is None else grid,
        queries=count,
        folds=folds,
        set_default=set_default,
        per_query=per_query,
    ).bounded()
    asked = Asked.of(categories, relevant, count)
    tell = progress or (lambda _: None)
    engine = index.engine
    return _run(engine, (queries, asked), task, plan(engine, queries, asked, task), tell)


def _run(
    index: Evaluable,
    given: tuple[Queries, Asked],
    task: Task,
    made: Plan,
    tell: Callable[[Progress], object],
) -> Iterator[EvaluateRow]:
    queries, asked = given
    settings = task.grid.settings()
    tally = Tally(task, made, asked.numbers())
    clock = Clock(len(settings) * task.queries)
    for number, setting in enumerate(settings):
        for start in range(0, task.queries, PIECE_QUERIES):
            tell(clock.progress(number * task.queries + start))
            own = slice(start, min(start + PIECE_QUERIES, task.queries))
            piece = Piece(index, queries[own], asked[own], setting)
            piece.answer(piece.rows)
            tally.add(number, start, piece.measured())
    tell(clock.progress(len(settings) * task.queries))
    rows, default = tally.rows()
    if default is not None:
        index.set_default(default)
    yield from rows


class Clock:
    """How long an evaluation of so many queries, each once for a setting, will still take."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._begun = time.monotonic()

    def progress(self, done: int) -> Progress:
        """Say how far it has come."""
        spent = time.monotonic() - self._begun
        left = spent * (self._total - done) / done if done else None
        return Progress(STAGE, done, self._total, left)
