"""An index as the twins see it, answers compared with theirs, and points as kernels take them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

import reference
import reference_kernels
from divgrpc.index import Index
from divgrpc.types import EffectiveParameters, FloatArray, QueryResult
from divgrpc.vectors import SparseRows


def dense(rows: object) -> FloatArray:
    """Return rows of any kind as a matrix (n, d)."""
    if isinstance(rows, SparseRows):
        rows = rows.matrix
    matrix: FloatArray = rows.toarray() if hasattr(rows, "toarray") else np.atleast_2d(rows)  # type: ignore[call-overload]
    return matrix.astype(np.float32)


def points_of(index: Index) -> reference.Points:
    """Return what the twins need of an index."""
    arrays, parameters = index._arrays, index._manifest.parameters
    codes, terms = arrays["codes"], arrays.get("scan_terms")
    cells = None
    if "cell_rows" in arrays:
        places = arrays["cell_rows"]
        # Codes and terms lie cell by cell; the twin's go by row.
        at = np.argsort(places)
        codes, terms = codes[:, at], None if terms is None else terms[:, at]
        cells = reference.Cells(
            coarse=arrays["coarse_centres"],
            centres=arrays["cell_centres"],
            tops=ranges(arrays["coarse_starts"]),
            members=[
                places[cell.start : cell.stop].tolist() for cell in ranges(arrays["cell_starts"])
            ],
        )
    return reference.Points(
        vectors=dense(index._searcher.points),
        ids=arrays.get("ids", np.arange(index.rows)),
        hyperplanes=_unsketched(arrays),
        thresholds=arrays["thresholds"],
        bits=reference_kernels.unpack(codes),
        n_tables=parameters.n_tables or 0,
        n_bits=parameters.n_bits or 0,
        n_probes=index.info.n_probes,
        metric=parameters.metric,
        terms=terms,
        cells=cells,
    )


def _unsketched(arrays: Mapping[str, npt.NDArray[Any]]) -> FloatArray:
    """Return the hyperplanes (d, B) over all dimensions: that of a sum, or less it, for each."""
    planes: FloatArray = arrays["hyperplanes"]
    if "sketch" not in arrays:
        return planes
    return np.array([planes[s] if s >= 0 else -planes[~s] for s in arrays["sketch"]])


def ranges(starts: npt.NDArray[np.integer[Any]]) -> list[range]:
    """Return from where to where each part goes."""
    return [range(a, b) for a, b in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)]


def check_row(
    points: reference.Points,
    query: npt.ArrayLike,
    result: QueryResult,
    row: int,
    *,
    parameters: EffectiveParameters | None = None,
    at_least: int = 0,
) -> None:
    """Compare one row of a result with the twin's answer to it."""
    parameters = parameters or result.parameters
    asked = np.asarray(query, np.float32)
    if points.metric == "cosine":
        asked = reference.unit(asked).astype(np.float32)
    truth = reference.answer(points, asked, parameters, at_least=at_least)
    count, k = int(result.counts[row]), result.parameters.k
    assert count == len(truth.ids)
    assert result.ids[row].tolist() == truth.ids + [-1] * (k - count)
    room = 1e-6 * scale(points, asked)
    assert np.abs(result.scores[row, :count] - truth.scores).max(initial=0) < room
    off = np.abs(result.selection_scores[row, :count] - truth.selection_scores)
    assert off.max(initial=0) < room * (1 + count)
    assert np.isnan(result.scores[row, count:]).all()
    assert np.isnan(result.selection_scores[row, count:]).all()
    assert result.stats.points_hashed[row] == len(truth.hashed)
    assert result.stats.candidates[row] == len(truth.candidates)
    if parameters.search == "exact":
        assert result.stats.points_scored[row] == len(points.vectors)
    elif parameters.sampling == "uniform":
        assert result.stats.points_scored[row] == len(truth.hashed)
    assert result.stats.buckets_probed[row] == truth.probed


def scale(points: reference.Points, query: FloatArray) -> float:
    """Return how large distances can be, which is what float32 leaves a millionth of."""
    if points.metric == "cosine":
        return 1.0
    longest = max(reference.dot(v, v) for v in points.vectors) ** 0.5
    return float(max(1.0, (longest + reference.dot(query, query) ** 0.5) ** 2))


def same_bytes(a: QueryResult, b: QueryResult) -> bool:
    """Tell whether two results are the same to the last bit, statistics included."""
    columns = ("ids", "scores", "selection_scores", "counts")
    stats = ("points_hashed", "buckets_probed", "points_scored", "candidates")
    return all(getattr(a, c).tobytes() == getattr(b, c).tobytes() for c in columns) and all(
        getattr(a.stats, s).tobytes() == getattr(b.stats, s).tobytes() for s in stats
    )


def kernel_points(vectors: FloatArray, *, stored_sparse: bool = False) -> tuple[Any, ...]:
    """Return points as kernels take them, read-only as those of an index.

    A kernel is compiled once for arrays that can be written and once more for those that cannot.
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
    for array in arrays:
        array.setflags(write=False)
    return arrays


def links_of(dims: int, room: int) -> tuple[Any, ...]:
    """Return empty lists by column with room for this many values, as kernels take them."""
    return (
        np.full(dims, -1, np.int32),
        np.empty(room, np.int32),
        np.empty(room, np.int32),
        np.empty(room, np.float32),
    )
