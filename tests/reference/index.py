"""Convert an index for the reference implementations, and compare its answers with theirs."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from divgrpc.index import Index
from divgrpc.kernels.records import Points, SelectionScratch
from divgrpc.types import EffectiveParameters, FloatArray, IntArray, QueryResult, QueryStats
from divgrpc.vectors import SparseRows
from reference import definitions, kernels, near_copies


def dense(rows: object) -> FloatArray:
    """Return rows of any kind, dense or sparse, as a dense matrix (n, d)."""
    if isinstance(rows, SparseRows):
        rows = rows.matrix
    matrix: FloatArray = rows.toarray() if hasattr(rows, "toarray") else np.atleast_2d(rows)  # type: ignore[call-overload]
    return matrix.astype(np.float32)


def points_of(index: Index, columns: IntArray | None = None) -> definitions.Points:
    """Return an index in the form of the reference implementations.

    `columns` restricts the vectors to some columns, if all other columns are empty.
    """
    arrays, parameters = index.engine._searcher._arrays, index.engine.manifest.parameters
    bits, term_words = kernels.bits_in_tiles(arrays["codes"], index.rows), arrays.get("scan_terms")
    terms = None if term_words is None else kernels.unpack_terms(term_words)
    cells = None
    if "cell_rows" in arrays and terms is not None:
        places = arrays["cell_rows"]
        # An index stores codes and terms cell by cell, but the reference implementation orders them
        # by row.
        at = np.argsort(places)
        bits, terms = bits[at], terms[:, at]
        cells = definitions.Cells(
            centres=arrays["cell_centres"],
            squares=arrays["cell_squares"],
            bits=kernels.bits_in_tiles(arrays["cell_codes"], len(arrays["cell_centres"])),
            terms=kernels.unpack_terms(arrays["cell_terms"]),
            members=[
                places[cell.start : cell.stop].tolist() for cell in ranges(arrays["cell_starts"])
            ],
            reaches=arrays.get("cell_reaches", np.empty(0, np.float32)),
        )
    rows = index.engine._searcher.points
    if columns is not None:
        assert isinstance(rows, SparseRows)
        rows = SparseRows.of(sparse.csr_array(rows.matrix[:, columns]))
    return definitions.Points(
        vectors=dense(rows),
        ids=arrays.get("ids", np.arange(index.rows)),
        hyperplanes=_unsketched(arrays, columns),
        thresholds=arrays["thresholds"],
        bits=bits,
        n_tables=parameters.n_tables or 0,
        n_bits=parameters.n_bits or 0,
        metric=parameters.metric,
        terms=terms,
        cells=cells,
        has_lists="list_rows" in arrays,
        bounds=arrays.get("length_bounds") if "longest_first" in arrays and cells is None else None,
    )


def _unsketched(arrays: Mapping[str, npt.NDArray[Any]], columns: IntArray | None) -> FloatArray:
    """Return the hyperplanes (d, B) over all dimensions.

    With a count sketch, each dimension is added to or subtracted from one sum. Its row is the
    hyperplanes' row of that sum, negated if the dimension is subtracted.
    """
    planes: FloatArray = arrays["hyperplanes"]
    if "sketch" not in arrays:
        return planes if columns is None else planes[columns]
    places = arrays["sketch"] if columns is None else arrays["sketch"][columns]
    return np.array([planes[s] if s >= 0 else -planes[~s] for s in places])


def ranges(starts: npt.NDArray[np.integer[Any]]) -> list[range]:
    """Return the range of rows of each part, from the offsets of the parts."""
    return [range(a, b) for a, b in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)]


def check_row(
    points: definitions.Points,
    query: npt.ArrayLike,
    result: QueryResult,
    row: int,
    *,
    parameters: EffectiveParameters | None = None,
    at_least: int = 0,
) -> None:
    """Compare one row of a result with the reference answer to the same query."""
    parameters = parameters or result.parameters
    vector = np.asarray(query, np.float32)
    if points.metric == "cosine":
        vector = definitions.unit(vector).astype(np.float32)
    if parameters.selector == "qp_relax":
        # Here only the candidates of `qp_relax` are compared, because test_relaxation.py checks its
        # picks.
        parameters = replace(parameters, selector="nearest")
    truth = near_copies.answer(points, vector, parameters, at_least=at_least)
    count = int(result.counts[row])
    assert count == len(truth.ids)
    assert (result.ids[row, count:] == -1).all()
    room = 1e-6 * scale(points, vector)
    if result.parameters.selector == "qp_relax":
        check_relaxed(points, vector, result, row, truth.candidates)
    else:
        assert result.ids[row, :count].tolist() == truth.ids
        assert np.abs(result.scores[row, :count] - truth.scores).max(initial=0) < room
        off = np.abs(result.selection_scores[row, :count] - truth.selection_scores)
        # The logarithm of a small determinant is less accurate, so `dpp` gets a larger tolerance.
        unsure = 100 if parameters.selector == "dpp" else 1
        assert off.max(initial=0) < unsure * room * (1 + count)
    assert np.isnan(result.scores[row, count:]).all()
    assert np.isnan(result.selection_scores[row, count:]).all()
    check_stats(points, result, row, truth, parameters)


def check_stats(
    points: definitions.Points,
    result: QueryResult,
    row: int,
    truth: near_copies.Answer,
    parameters: EffectiveParameters,
) -> None:
    """Compare the counts of one row of a result with those of the reference answer."""
    assert result.stats.points_hashed[row] == len(truth.hashed_rows)
    if result.parameters.selector != "qp_relax" or parameters.duplicate_threshold is None:
        pool = len(truth.candidates)
        if picks_nearest(parameters):
            pool = min(pool, parameters.k)
        assert result.stats.candidates[row] == pool
        assert result.stats.collapsed[row] == truth.copies
        assert result.stats.duplicates[row] == truth.duplicates
    n_scored, n = result.stats.points_scored[row], len(points.vectors)
    all_points = not 0 < parameters.hash_limit < n and parameters.search != "tables"
    if points.has_lists and (all_points or parameters.search == "exact"):
        # Inverted lists may show that a point need not be scored.
        assert result.stats.candidates[row] <= n_scored <= n
    elif parameters.search == "exact":
        assert n_scored == n
    elif parameters.sampling == "uniform":
        assert n_scored == len(truth.hashed_rows)
    assert result.stats.buckets_probed[row] == truth.probe_count


def picks_nearest(parameters: EffectiveParameters) -> bool:
    """Return whether the results are the nearest points, so that more candidates are not needed."""
    if parameters.duplicate_threshold is not None:
        return False
    as_printed = parameters.variant == "printed" and parameters.selector in {"greedy", "qp_relax"}
    at_zero = parameters.has_fixed_dial and np.float32(1 - parameters.diversity) == 1
    return parameters.selector == "nearest" or (at_zero and not as_printed)


def check_relaxed(
    points: definitions.Points,
    query: FloatArray,
    result: QueryResult,
    row: int,
    candidates: Sequence[int],
) -> None:
    """Check that picks are distinct candidates, shares are valid and the duality gap is small."""
    count = int(result.counts[row])
    ids = {int(points.ids[r]): r for r in candidates}
    picks = [ids[i] for i in result.ids[row, :count].tolist()]
    assert len(set(picks)) == count
    scores = [definitions.score(points, query, r) for r in picks]
    assert np.allclose(result.scores[row, :count], scores, atol=1e-6 * scale(points, query))
    if result.parameters.diversity > 0 or result.parameters.variant == "printed":
        shares = result.selection_scores[row, :count]
        assert ((shares >= 0) & (shares <= 1)).all()
        assert (np.diff(shares) <= 0).all()
    assert 0 <= result.duality_gaps[row] <= 1e-3


def scale(points: definitions.Points, query: FloatArray) -> float:
    """Return the largest possible distance; float32 errors are about a millionth of it."""
    if points.metric == "cosine":
        return 1.0
    longest = max(definitions.dot(v, v) for v in points.vectors) ** 0.5
    return float(max(1.0, (longest + definitions.dot(query, query) ** 0.5) ** 2))


def same_bytes(a: QueryResult, b: QueryResult) -> bool:
    """Tell whether two results are bitwise equal, including their statistics."""
    columns = ["ids", "scores", "selection_scores", "counts", "duality_gaps"]
    columns += ["collapsed_ids", "collapsed_offsets"]
    stats = tuple(field.name for field in fields(QueryStats))
    return all(getattr(a, c).tobytes() == getattr(b, c).tobytes() for c in columns) and all(
        getattr(a.stats, s).tobytes() == getattr(b.stats, s).tobytes() for s in stats
    )


def row_of(result: QueryResult, row: int) -> QueryResult:
    """Return one row of a batch's result, without the ids of near-copies."""
    names = ("ids", "scores", "selection_scores", "counts", "duality_gaps", "diversities")
    stats = [getattr(result.stats, field.name)[row : row + 1] for field in fields(QueryStats)]
    columns: dict[str, Any] = {name: getattr(result, name)[row : row + 1] for name in names}
    return replace(result, stats=QueryStats(*stats), **columns)


def kernel_points(
    vectors: FloatArray, *, stored_sparse: bool = False, inverses: FloatArray | None = None
) -> Points:
    """Return points in the form that kernels take, read-only like the arrays of an index.

    Numba compiles a kernel separately for writable and for read-only arrays.
    """
    matrix = sparse.csr_array(vectors)
    squares = (matrix.astype(np.float64) ** 2).sum(axis=1)
    arrays: tuple[npt.NDArray[Any], ...] = (
        np.empty((0, vectors.shape[1]), np.float32) if stored_sparse else vectors.copy(),
        matrix.indptr.astype(np.int64),
        matrix.indices.astype(np.int32),
        matrix.data.astype(np.float32),
        np.asarray(squares, np.float64),
    )
    if not stored_sparse:
        arrays = (arrays[0], *(array[:0].copy() for array in arrays[1:]))
    arrays = (*arrays, np.empty(0, np.float32) if inverses is None else inverses)
    for array in arrays:
        array.setflags(write=False)
    return Points(*arrays)


def selection_scratch(count: int, points: Points, *, has_marks: bool = False) -> SelectionScratch:
    """Return memory for a selection from `count` candidates, with or without marks of columns."""
    dims, is_sparse = points.vectors.shape[1], len(points.indptr) > 0
    return SelectionScratch(
        far=np.empty(count, np.float32),
        apart=np.empty(count, np.float32),
        dense=np.zeros((1, dims), np.float32),
        marks=np.zeros(-(-dims // 64) if is_sparse and has_marks else 0, np.uint64),
    )


def clustered(rows: int, width: int, seed: int, duplicates: float = 0.0) -> FloatArray:
    """Draw points around seven centres; `duplicates` is the share replaced by copies of others."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((7, width))
    points = centres[rng.integers(0, 7, rows)] + 0.5 * rng.standard_normal((rows, width))
    again = rng.random(rows) < duplicates
    points[again] = points[rng.integers(0, max(1, rows), again.sum())]
    return points.astype(np.float32)
