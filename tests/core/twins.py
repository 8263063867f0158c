"""An index as the twins see it, and answers compared with theirs."""

import numpy as np

import reference
from divgrpc.index import Index
from divgrpc.types import EffectiveParameters, FloatArray, QueryResult


def points_of(index: Index) -> reference.Points:
    """Return what the twins need of an index."""
    arrays, parameters = index._arrays, index._manifest.parameters
    return reference.Points(
        vectors=arrays["vectors"],
        ids=arrays.get("ids", np.arange(index.rows)),
        hyperplanes=arrays["hyperplanes"],
        thresholds=arrays["thresholds"],
        bits=reference.unpack(arrays["codes"]),
        n_tables=parameters.n_tables or 0,
        n_bits=parameters.n_bits or 0,
        n_probes=index.info.n_probes,
    )


def check_row(
    points: reference.Points,
    query: FloatArray,
    result: QueryResult,
    row: int,
    *,
    parameters: EffectiveParameters | None = None,
    at_least: int = 0,
) -> None:
    """Compare one row of a result with the twin's answer to it."""
    parameters = parameters or result.parameters
    unit = reference.unit(query).astype(np.float32)
    truth = reference.answer(points, unit, parameters, at_least=at_least)
    count, k = int(result.counts[row]), result.parameters.k
    assert count == len(truth.ids)
    assert result.ids[row].tolist() == truth.ids + [-1] * (k - count)
    assert np.abs(result.scores[row, :count] - truth.scores).max(initial=0) < 1e-6
    off = np.abs(result.selection_scores[row, :count] - truth.selection_scores)
    assert off.max(initial=0) < 1e-6 * (1 + count)
    assert np.isnan(result.scores[row, count:]).all()
    assert np.isnan(result.selection_scores[row, count:]).all()
    assert result.stats.points_hashed[row] == len(truth.hashed)
    assert result.stats.candidates[row] == len(truth.candidates)
    if parameters.search == "exact":
        assert result.stats.points_scored[row] == len(points.vectors)
    elif parameters.sampling == "uniform":
        assert result.stats.points_scored[row] == len(truth.hashed)
    probed = 0
    if parameters.search == "tables":
        probed = reference.hashed_by_tables(points, unit, parameters, at_least=at_least)[1]
    assert result.stats.buckets_probed[row] == probed


def same_bytes(a: QueryResult, b: QueryResult) -> bool:
    """Tell whether two results are the same to the last bit, statistics included."""
    columns = ("ids", "scores", "selection_scores", "counts")
    stats = ("points_hashed", "buckets_probed", "points_scored", "candidates")
    return all(getattr(a, c).tobytes() == getattr(b, c).tobytes() for c in columns) and all(
        getattr(a.stats, s).tobytes() == getattr(b.stats, s).tobytes() for s in stats
    )
