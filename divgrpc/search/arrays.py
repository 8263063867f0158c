"""Converts the arrays of generations, queries and answers to the form that kernels take."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from divgrpc.arrays import Array, read_only
from divgrpc.hashing.codes import tiles_of
from divgrpc.hashing.lists import create_lists
from divgrpc.kernels.records import NO_CHOICE, Passing
from divgrpc.kernels.registers import record_of
from divgrpc.types import CountArray, EffectiveParameters, FloatArray, IntArray
from divgrpc.types.explanations import Explanation
from divgrpc.vectors import Rows, SparseRows

# What kernels read if a query has no filter.
NO_FILTER: Final = record_of(Passing, None, {})

# If queries are dense, these arrays are the fields `indptr`, `indices` and `values` of `Queries`.
_NOT_SPARSE: Final = (np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.float32))

# Empty columns of `Answers`, which most parameters do not need.
_NO_GAPS: Final = np.empty(0, np.float32)
_NO_DIALS: Final = np.empty(0)
_NO_REPORTS: Final = np.empty((8, 0))
_NO_IDS: Final = np.empty((0, 0), np.int64)
_NO_REASONS: Final = np.empty(0, np.uint8)


def with_points(codes: dict[str, Array], points: Rows) -> dict[str, Array]:
    """Return the arrays of `codes` and of the points, read-only.

    If the array `ids` is missing, the row number of a point is its id.
    """
    arrays = dict(codes)
    if isinstance(points, SparseRows):
        arrays |= {"indptr": points.indptr, "indices": points.indices, "values": points.values}
    else:
        arrays["vectors"] = points
    return {name: read_only(array) for name, array in arrays.items()}


def points_of(arrays: Mapping[str, Array], dims: int) -> Rows:
    """Return the points in the arrays of an index as rows, dense or sparse."""
    if "indptr" in arrays:
        return SparseRows(arrays["indptr"], arrays["indices"], arrays["values"], dims)
    return arrays["vectors"]


def with_tiles(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return `arrays` with all codes in tiles.

    Codes of a format before 7 are copied into memory. Codes of the current format stay mapped.
    """
    result = dict(arrays)
    for name in ("codes", "cell_codes"):
        if name in result and result[name].dtype == np.uint64:
            result[name] = read_only(tiles_of(result[name], arrays["hyperplanes"].shape[1]))
    return result


def with_lists(arrays: Mapping[str, Array], dims: int) -> dict[str, Array]:
    """Return `arrays` with inverted lists of bytes in place of the lists of earlier versions."""
    result = dict(arrays)
    if {"posting_rows", "list_rows"} & arrays.keys() and "full_lengths" not in arrays:
        points = SparseRows(arrays["indptr"], arrays["indices"], arrays["values"], dims)

        def create(name: str, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> Array:
            result[name] = np.zeros(shape, dtype)
            return result[name]

        create_lists(lambda: ((0, points),), len(points), dims, create)
        result = {name: read_only(array) for name, array in result.items()}
    return result


def pack_queries(queries: Rows) -> tuple[Any, ...]:
    """Return dense or sparse rows as a plain tuple of the fields of `Queries`."""
    if isinstance(queries, SparseRows):
        empty = np.empty((0, queries.dims), np.float32)
        return (empty, queries.indptr, queries.indices, queries.values)
    return (queries, *_NOT_SPARSE)


class Answers(NamedTuple):
    """The columns of a `QueryResult` for nq queries.

    The first five fields and the last four are the fields of `kernels.records.Results`.

    gaps: (nq,) float32 duality gaps of `qp_relax`, 0 for a query with nothing to solve. Empty for
        other selectors.
    copies: nq * k arrays: for each result of each query, the ids of the near-copies of this result.
        Empty unless the query lists near-copies.
    explanations: an explanation for each query. Empty unless the query asks for explanations.
    dials, reasons: (nq,) as in `Results`, empty if the caller gave the dial (the `diversity`).
    reports, plain_ids: (8, nq) the numbers of a `Report` in the order of its fields, and (nq, k)
        the ids of the plain results, -1 after the last. Empty unless the query asks for a report.
    """

    ids: IntArray
    scores: FloatArray
    selection_scores: FloatArray
    counts: CountArray
    stats: CountArray
    gaps: FloatArray
    copies: list[IntArray]
    explanations: list[Explanation]
    dials: npt.NDArray[np.float64]
    reasons: npt.NDArray[np.uint8]
    reports: npt.NDArray[np.float64]
    plain_ids: IntArray

    @property
    def results(self) -> tuple[Any, ...]:
        """The fields of `kernels.records.Results` as a plain tuple."""
        return self[:5] + self[-4:]

    def put(self, row: int, single: "Answers") -> None:
        """Copy `single`, the answer to one query, into row `row`."""
        for name in ("ids", "scores", "selection_scores", "counts"):
            getattr(self, name)[row] = getattr(single, name)[0]
        self.stats[:, row] = single.stats[:, 0]
        self.gaps[row : row + 1] = single.gaps
        if single.copies:
            k = self.ids.shape[1]
            self.copies[row * k : (row + 1) * k] = single.copies
        self.explanations[row : row + 1] = single.explanations
        self.reports[:, row : row + 1] = single.reports
        self.plain_ids[row : row + 1] = single.plain_ids
        self.dials[row : row + 1], self.reasons[row : row + 1] = single.dials, single.reasons


def empty_answers(queries: int, k: int, parameters: EffectiveParameters | None = None) -> Answers:
    """Allocate `k` results per query for `queries` queries, with the columns `parameters` need."""
    gaps, dials, reasons = _NO_GAPS, _NO_DIALS, _NO_REASONS
    if parameters and parameters.selector == "qp_relax":
        gaps = np.zeros(queries, np.float32)
    reports, plain_ids = _NO_REPORTS, _NO_IDS
    if parameters and parameters.with_report:
        reports, plain_ids = np.empty((8, queries)), np.empty((queries, k), np.int64)
    if parameters and not parameters.has_fixed_dial:
        dials, reasons = np.zeros(queries), np.zeros(queries, np.uint8)
    return Answers(
        np.empty((queries, k), np.int64),
        np.empty((queries, k), np.float32),
        np.empty((queries, k), np.float32),
        np.empty(queries, np.uint32),
        np.empty((6, queries), np.uint32),
        gaps,
        [],
        [],
        dials,
        reasons,
        reports,
        plain_ids,
    )


def no_answers(queries: int, parameters: EffectiveParameters) -> Answers:
    """Return the answers to `queries` queries if no point passes their filter."""
    answers = empty_answers(queries, parameters.k, parameters)
    answers.ids[:] = -1
    answers.scores[:] = answers.selection_scores[:] = np.nan
    answers.counts[:] = 0
    answers.stats[:] = 0
    answers.reports[:], answers.plain_ids[:] = np.nan, -1
    answers.dials[:] = 0
    answers.reasons[:] = NO_CHOICE
    copies = [np.empty(0, np.int64)] * (queries * parameters.k)
    explanations = [Explanation.empty()] * queries
    return answers._replace(
        copies=copies if parameters.list_collapsed else [],
        explanations=explanations if parameters.explain else [],
    )
