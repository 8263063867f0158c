"""The columns of results that kernels write, and room for them."""

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from divgrpc.types import CountArray, EffectiveParameters, FloatArray, IntArray

_NO_GAPS: Final = np.empty(0, np.float32)
_NO_DIALS: Final = np.empty(0)
_NO_REASONS: Final = np.empty(0, np.uint8)


class Answers(NamedTuple):
    """The columns of a `QueryResult` for nq queries.

    The first five and the last two are the fields of `kernels.records.Results`.

    gaps: (nq,) float32 duality gaps, 0 if nothing was relaxed; empty for other selectors.
    copies: for each place of each row (nq * k) the ids of the near-copies that the result there
        stands for; empty unless they are listed.
    dials, reasons: (nq,) empty if the caller gave the dial; reasons are numbers.
    """

    ids: IntArray
    scores: FloatArray
    selection_scores: FloatArray
    counts: CountArray
    stats: CountArray
    gaps: FloatArray
    copies: list[IntArray]
    dials: npt.NDArray[np.float64]
    reasons: npt.NDArray[np.uint8]

    @property
    def results(self) -> tuple[Any, ...]:
        """The fields of `kernels.records.Results` as a plain tuple."""
        columns = (self.ids, self.scores, self.selection_scores, self.counts, self.stats)
        return (*columns, self.dials, self.reasons)

    def put(self, row: int, single: "Answers") -> None:
        """Write the answer to one query as a row."""
        for name in ("ids", "scores", "selection_scores", "counts"):
            getattr(self, name)[row] = getattr(single, name)[0]
        self.stats[:, row] = single.stats[:, 0]
        self.gaps[row : row + 1] = single.gaps
        if single.copies:
            k = self.ids.shape[1]
            self.copies[row * k : (row + 1) * k] = single.copies
        self.dials[row : row + 1], self.reasons[row : row + 1] = single.dials, single.reasons


def empty_answers_for(queries: int, parameters: EffectiveParameters) -> Answers:
    """Return room for the answers to a number of queries with these parameters."""
    gaps, dials = parameters.selector == "qp_relax", not parameters.has_fixed_dial
    return empty_answers(queries, parameters.k, gaps=gaps, dials=dials)


def empty_answers(queries: int, k: int, *, gaps: bool = False, dials: bool = False) -> Answers:
    """Return room for k results of each query, with `gaps` and with `dials` on request."""
    return Answers(
        np.empty((queries, k), np.int64),
        np.empty((queries, k), np.float32),
        np.empty((queries, k), np.float32),
        np.empty(queries, np.uint32),
        np.empty((6, queries), np.uint32),
        np.zeros(queries, np.float32) if gaps else _NO_GAPS,
        [],
        np.zeros(queries) if dials else _NO_DIALS,
        np.zeros(queries, np.uint8) if dials else _NO_REASONS,
    )
