"""What kernels write: the columns of a result, and room for them."""

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from divgrpc.types import CountArray, EffectiveParameters, FloatArray, IntArray

_NO_GAPS: Final = np.empty(0, np.float32)
_NO_DIALS: Final = np.empty(0)
_NO_REASONS: Final = np.empty(0, np.uint8)


class Answers(NamedTuple):
    """What the kernel writes: `QueryResult`'s columns; `stats` (6, nq) in `QueryStats`'s order.

    `gaps` (nq,) float32 or empty, 0 where nothing was relaxed. `copies` has, for each place of each
    row (nq * k), the ids of the near-copies that the result there stands for, or is empty. `dials`
    and `reasons`, numbers, are empty where the query named a dial.
    """

    ids: IntArray
    scores: FloatArray
    values: FloatArray
    counts: CountArray
    stats: CountArray
    gaps: FloatArray
    copies: list[IntArray]
    dials: npt.NDArray[np.float64]
    reasons: npt.NDArray[np.uint8]

    @property
    def columns(self) -> tuple[Any, ...]:
        """What kernels write, in the order of `answering._answer`."""
        columns = (self.ids, self.scores, self.values, self.counts, self.stats)
        return (*columns, self.dials, self.reasons)

    def put(self, row: int, alone: "Answers") -> None:
        """Write the answer to one query as a row."""
        for name in ("ids", "scores", "values", "counts"):
            getattr(self, name)[row] = getattr(alone, name)[0]
        self.stats[:, row] = alone.stats[:, 0]
        self.gaps[row : row + 1] = alone.gaps
        if alone.copies:
            k = self.ids.shape[1]
            self.copies[row * k : (row + 1) * k] = alone.copies
        self.dials[row : row + 1], self.reasons[row : row + 1] = alone.dials, alone.reasons


def empty_answers_for(queries: int, wanted: EffectiveParameters) -> Answers:
    """Return room for what a query with these parameters writes."""
    gaps, chosen = wanted.selector == "qp_relax", not wanted.has_fixed_dial
    return empty_answers(queries, wanted.k, gaps=gaps, chosen=chosen)


def empty_answers(queries: int, k: int, *, gaps: bool = False, chosen: bool = False) -> Answers:
    """Return room for k results of each query; with `gaps`, and with dials that are `chosen`."""
    return Answers(
        np.empty((queries, k), np.int64),
        np.empty((queries, k), np.float32),
        np.empty((queries, k), np.float32),
        np.empty(queries, np.uint32),
        np.empty((6, queries), np.uint32),
        np.zeros(queries, np.float32) if gaps else _NO_GAPS,
        [],
        np.zeros(queries) if chosen else _NO_DIALS,
        np.zeros(queries, np.uint8) if chosen else _NO_REASONS,
    )
