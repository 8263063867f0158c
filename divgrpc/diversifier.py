"""`diversify` picks diverse results from candidates that the caller has, without an index.

A candidate has a vector, by which it is compared with other candidates, and a score. The scores are
converted to costs, which are what selectors weigh against distances. Costs are on the scale of
distances, so that a value of `diversity` means the same for all scores:

- Under `cosine` and `inner_product`, the distance of two candidates is 1 - cosine. Costs are scaled
  linearly: the best score costs 0 and the worst costs 1. An index with the metric `inner_product`
  does the same.
- Under `euclidean`, the distance is the squared Euclidean distance, which has no natural scale. The
  worst score costs as much as the mean distance of two candidates.
- With a query instead of scores, costs are what an index with the same metric computes. All picks
  and values are then those of a query on an index that finds these candidates.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, Unpack, cast

import numpy as np
import numpy.typing as npt

from divgrpc import compilation
from divgrpc.arrays import read_only
from divgrpc.columns.quotas import as_quotas, check_attributes, columns_within, k_of_groups
from divgrpc.columns.values import Column, check_column, row_values
from divgrpc.errors import invalid
from divgrpc.kernels import exact, normalise, pairwise, qp, records, sparse, top_k
from divgrpc.kernels.candidates import LEAST_WIDTH, SCORE_MAX, below_best, inverse_lengths
from divgrpc.kernels.records import Points, Query, SelectionScratch
from divgrpc.parameters import LIMITS, MetricWord
from divgrpc.parameters.diversify import (
    DiversifyOptions,
    DiversifyParameters,
    diversify_parameters,
)
from divgrpc.parameters.signatures import spell_out_options
from divgrpc.quotas.bounds import QuotaColumn
from divgrpc.search.at_once import one_query, pick_at_once
from divgrpc.search.dials import reason_words
from divgrpc.search.plan import copy_limit_of
from divgrpc.search.quota_candidates import QuotaValues
from divgrpc.search.relaxation import CandidateSet
from divgrpc.search.selectors import (
    Picks,
    fall_off_dial,
    relevance,
    returns_nearest,
    select_different,
)
from divgrpc.search.stepwise import StepwiseSelection
from divgrpc.types import (
    DialReason,
    Diversification,
    EffectiveParameters,
    FloatArray,
    IntArray,
    Metric,
    OnInfeasible,
    Pick,
)
from divgrpc.types.quotas import GroupBy, Quotas, QuotasLike
from divgrpc.types.records import Attribute, AttributesLike
from divgrpc.vectors import (
    LENGTH_MAX,
    Rows,
    RowsLike,
    SparseRows,
    as_rows,
    lengths,
    prepare,
)

_LENGTH_MAX: Final = np.float32(LENGTH_MAX)
_NO_PLACES: Final = np.empty(0, np.int64)
_NO_INDPTR: Final = read_only(np.empty(0, np.int64))
_NO_INDICES: Final = read_only(np.empty(0, np.int32))
_NO_VALUES: Final = read_only(np.empty(0, np.float32))
_NO_SQUARES: Final = read_only(np.empty(0))
_NO_MARKS: Final = np.empty(0, np.uint64)
_NOT_SPREAD: Final = np.empty((1, 0), np.float32)

Scores = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """n candidates, prepared for selectors.

    candidates: the candidates in the order of their costs, lowest first. The row of a candidate is
        its place in the caller's order.
    metric: the metric that gives selectors the costs of `divgrpc.diversifier`.
    scores: (n,) float64 in the caller's order, as in `Diversification.scores`.
    has_offset: whether the distances of the candidates are differences from the best score, and
        not minus the scores.
    width: maximum number of values that a candidate stores.
    """

    candidates: CandidateSet
    metric: Metric
    scores: Scores
    width: int
    has_offset: bool = False


def diversify(
    vectors: RowsLike,
    scores: npt.ArrayLike | None = None,
    *,
    query: RowsLike | None = None,
    attributes: AttributesLike = None,
    quotas: QuotasLike = None,
    group_by: GroupBy | None = None,
    on_infeasible: OnInfeasible = "fail",
    **options: Unpack[DiversifyOptions],
) -> Diversification:
    """Pick candidates that are relevant and differ from one another; no index is needed.

    vectors: (n, d) numbers, the vectors of the candidates: an array, nested lists, or a sparse
        matrix of scipy. A float32 array is read where it is, and not copied.
    scores: (n,) numbers, higher for more relevant candidates, on any scale, such as those of a
        reranker. They are scaled linearly, so that only their proportions matter. Default: all
        candidates are equally relevant, and equal ones are picked in their order.
    query: (d,) numbers, from which relevance is computed as an index does. Instead of `scores`.
    attributes: one value per candidate, by name, as in `Index.build`, for quotas and groups.
    quotas: bounds on the number of picks that have each value of an attribute, such as
        `[Quota("brand", max_each=2)]`. Not with the selector `qp_relax`.
    group_by: picks in groups with the same value of an attribute, such as
        `GroupBy("brand", groups=5, per_group=2)`. `k` is then groups times per_group, or the number
        of candidates if there are fewer. Not with `quotas`.
    on_infeasible: what to do if no `k` picks meet the quotas. "fail" raises an error. "relax"
        returns picks that miss them by as little as possible, with `quota_shortfalls`.

    Under `cosine` and `inner_product`, two candidates differ by 1 - cosine, the best score costs 0
    and the worst 1. Under `euclidean`, they differ by the squared distance, and the worst score
    costs the mean distance of two candidates.

    The same candidates give the same result on every processor. Raises `InvalidArgumentError` with
    the name of the argument as its `field`, and `ConditionFailedError` if no picks meet the quotas.
    """
    limits = None
    if quotas is not None or group_by is not None or on_infeasible != "fail":
        limits = as_quotas(quotas, group_by, on_infeasible)
        options = k_of_groups(limits, options)
    parameters = _cached_parameters(options)
    if limits is None:
        if attributes is not None and quotas is None:
            raise invalid("attributes", "go with quotas or group_by: set one of them too")
        return pick_candidates(vectors, scores, parameters, query=query)
    prepared = prepare_candidates(vectors, scores, parameters, query=query)
    count = len(prepared.scores)
    columns = columns_within(limits, attributes, count)
    return pick_from(prepared, parameters, values_within(limits, columns, parameters, count))


def pick_candidates(
    vectors: RowsLike,
    scores: npt.ArrayLike | None,
    parameters: DiversifyParameters,
    *,
    query: RowsLike | None = None,
) -> Diversification:
    """Pick without quotas, as `diversify` does."""
    compilation.ensure()
    rows, picks = _as_vectors(vectors), None
    if query is None:
        scores = _as_scores(scores, len(rows))
    if len(rows) and not isinstance(rows, SparseRows) and (query is None or scores is None):
        picks = pick_at_once(rows, scores, query, parameters)
    if picks is not None:
        return picks
    return pick_from(prepare_candidates(rows, scores, parameters, query=query), parameters)


def values_within(
    quotas: Quotas,
    columns: Mapping[Attribute, Column],
    parameters: DiversifyParameters,
    count: int,
) -> QuotaValues:
    """Return the values of `count` candidates for quotas.

    Raises `InvalidArgumentError` for quotas that do not fit the columns or the parameters.
    """
    for attribute, column in columns.items():
        if (rows := column.rows(multi=attribute.multi)) != count:
            name = f"attributes.{attribute.name}"
            raise invalid(name, f"must have one value for each of {count} candidates, got {rows}")
        check_column(attribute, column, count)
    quotas = check_attributes(quotas, list(columns), parameters.k_or_default)
    values = {
        attribute.name: QuotaColumn.of(row_values(attribute, column))
        for attribute, column in columns.items()
        if attribute.name in quotas.names
    }
    return QuotaValues(quotas, values)


def _cached_parameters(options: DiversifyOptions) -> DiversifyParameters:
    key = (*options, *options.values(), *map(type, options.values()))
    try:
        return _parameters_by_key(key)
    except TypeError:
        # A value cannot be hashed.
        return diversify_parameters(options)


@lru_cache(maxsize=1024)
def _parameters_by_key(key: tuple[Any, ...]) -> DiversifyParameters:
    """Return the parameters of options: their names, their values, and the types of their values.

    The types are part of the key because True equals 1 and is no valid `k`.
    """
    count = len(key) // 3
    values = dict(zip(key[:count], key[count : 2 * count], strict=True))
    return diversify_parameters(cast(DiversifyOptions, values))


def prepare_candidates(
    vectors: RowsLike,
    scores: npt.ArrayLike | None,
    parameters: DiversifyParameters,
    *,
    query: RowsLike | None = None,
) -> Candidates:
    """Check what a caller passes, as `diversify` does, and return the candidates in order."""
    compilation.ensure()
    rows, metric = _as_vectors(vectors), parameters.metric
    if query is not None:
        if scores is not None:
            raise invalid("query", "stands for the scores: give one of the two")
        return _scored_by_query(rows, query, metric)
    numbers = _as_scores(scores, len(rows))
    costs = np.empty(len(rows), np.float32)
    bad = below_best(numbers, SCORE_MAX, LEAST_WIDTH, costs)
    if bad >= 0:
        text = f"must be finite, at most {SCORE_MAX:.0e}: number {bad} is {numbers[bad]:g}"
        raise invalid("scores", text)
    inverses = _inverse_lengths(rows)
    if metric == "euclidean":
        points = _points(rows, _NO_VALUES)
        return _ordered(points, rows, _by_spread(points, numbers), metric, numbers)
    points = _points(rows, inverses)
    return _ordered(points, rows, costs, "inner_product", numbers, has_offset=True)


def _inverse_lengths(rows: Rows) -> FloatArray:
    """Return 1 / length of each row, or 0 for a row of zeros; raises for rows that are too long.

    A vector of zeros has no direction: its distance from all others is 1.
    """
    inverses = np.empty(len(rows), np.float32)
    if isinstance(rows, SparseRows):
        row_lengths = lengths(rows)
        is_valid = bool((row_lengths <= LENGTH_MAX).all())
        inverses[:] = 0
        np.divide(1, row_lengths, out=inverses, where=row_lengths > 0)
    else:
        is_valid = inverse_lengths(read_only(rows), _LENGTH_MAX, inverses) < 0
    if not is_valid:
        prepare("vectors", rows, "inner_product")  # raises
    return inverses


def _as_vectors(vectors: RowsLike) -> Rows:
    """Return the rows as float32; a dense matrix of float32 is not copied."""
    is_ready = type(vectors) is np.ndarray and vectors.ndim == 2 and vectors.dtype == np.float32
    if is_ready and vectors.flags.c_contiguous and vectors.flags.aligned:  # type: ignore[union-attr]
        rows: Rows = vectors  # type: ignore[assignment]
    else:
        # Without candidates, a list is empty.
        is_empty = isinstance(vectors, list) and not vectors
        rows = as_rows("vectors", vectors, None, single=is_empty)
    most = LIMITS["sparse_dims_max" if isinstance(rows, SparseRows) else "dims_max"]
    if rows.shape[1] > most:
        raise invalid("vectors", f"must have at most {most} columns, got {rows.shape[1]}")
    return rows


def _as_scores(scores: npt.ArrayLike | None, count: int) -> Scores:
    """Return the scores as (count,) float64, 0 if there are none."""
    if scores is None:
        return np.zeros(count)
    if isinstance(scores, np.ma.MaskedArray) and np.ma.is_masked(scores):
        raise invalid("scores", "must not have masked entries")
    try:
        numbers = np.asarray(scores)
        if numbers.dtype.kind not in "fiub" and numbers.size:
            raise TypeError(numbers.dtype)  # noqa: TRY301  # handled like a failed conversion
        numbers = numbers.astype(np.float64)
    except (TypeError, ValueError):
        raise invalid("scores", "must be numbers, one for each vector") from None
    if numbers.shape != (count,):
        shape = " x ".join(map(str, numbers.shape)) or "a single number"
        raise invalid("scores", f"must be one number for each of {count} vectors, got {shape}")
    return numbers


def _points(rows: Rows, inverses: FloatArray) -> Points:
    """Return the rows in the form that kernels take."""
    if not isinstance(rows, SparseRows):
        return Points(
            read_only(rows), _NO_INDPTR, _NO_INDICES, _NO_VALUES, _NO_SQUARES, read_only(inverses)
        )
    squares = np.empty(len(rows))
    normalise.squares_sparse(read_only(rows.indptr), read_only(rows.values), squares)
    return Points(
        read_only(np.empty((0, rows.dims), np.float32)),
        read_only(rows.indptr),
        read_only(rows.indices),
        read_only(rows.values),
        read_only(squares),
        read_only(inverses),
    )


def _scored_by_query(rows: Rows, query: RowsLike, metric: Metric) -> Candidates:
    if metric == "cosine":
        # A caller's array is not changed.
        rows = rows if isinstance(rows, SparseRows) else rows.copy()
    zero = prepare("vectors", rows, metric)
    if zero >= 0:
        raise invalid("vectors", f"row {zero} is all zeros, which has no direction")
    if not rows.shape[1]:
        # An empty list has no dimensions, whatever the query has.
        return _ordered(_points(rows, _NO_VALUES), rows, np.empty(0, np.float32), metric, [])
    dense = one_query(query, rows.shape[1], metric)
    inverses = _inverse_lengths(rows) if metric == "inner_product" else _NO_VALUES
    points, distances = _points(rows, inverses), np.empty(len(rows), np.float32)
    square = sparse.dense_square(dense, 0) if isinstance(rows, SparseRows) else 0.0
    order = np.arange(len(rows), dtype=np.int32)
    of_query = Query(dense, 0, square, metric == "inner_product")
    exact.score_rows(points, of_query, order, len(rows), distances)
    return _ordered(points, rows, distances, metric, relevance(distances, metric))


def _by_spread(points: Points, scores: Scores) -> FloatArray:
    """Scale scores to costs from 0 for the best to the mean distance of two points for the worst.

    The mean squared distance of two points is 2 n / (n - 1) times the mean squared distance of a
    point from the mean of all.
    """
    count = len(scores)
    if count < 2 or scores.min() == scores.max():
        return np.zeros(count, np.float32)
    rows, far = np.arange(count, dtype=np.int32), np.empty(count, np.float32)
    mean = qp.mean_of(points, rows, count, np.ones(count), count)
    square = sparse.dense_square(mean, 0) if len(points.indptr) else 0.0
    exact.score_rows(points, Query(mean, 0, square, False), rows, count, far)
    spread = 2 * math.fsum(far.tolist()) / (count - 1)
    shares = (scores.max() - scores) / (scores.max() - scores.min())
    # If all candidates are alike, their distances are 0, and any scale ranks them by their scores.
    costs: FloatArray = (shares * (spread if spread >= LEAST_WIDTH else 1.0)).astype(np.float32)
    return costs


def _ordered(
    points: Points,
    rows: Rows,
    distances: FloatArray,
    metric: Metric,
    scores: npt.ArrayLike,
    *,
    has_offset: bool = False,
) -> Candidates:
    """Return the candidates by ascending distance; equal ones keep their order."""
    order, width, dense = np.empty(len(distances), np.int32), rows.shape[1], _NOT_SPREAD
    top_k.order_of(distances, order)
    if isinstance(rows, SparseRows):
        dense = np.zeros((1, width), np.float32)
        width = int(np.diff(rows.indptr).max(initial=0))
    far, apart = np.empty(len(order), np.float32), np.empty(len(order), np.float32)
    scratch = SelectionScratch(far, apart, dense, _NO_MARKS)
    candidates = CandidateSet(points, order, distances[order], scratch)
    return Candidates(candidates, metric, np.asarray(scores, np.float64), width, has_offset)


def pick_from(
    prepared: Candidates, parameters: DiversifyParameters, within: QuotaValues | None = None
) -> Diversification:
    """Pick from prepared candidates, as `diversify` does.

    within: quotas, and the values of the candidates.
    """
    candidates, metric, count = prepared.candidates, prepared.metric, len(prepared.scores)
    if within is not None:
        parameters = within.limited(parameters, count)
    if not count:
        result = _nothing(parameters)
        return result if within is None else replace(result, **within.shortfalls_of_nothing())
    effective = parameters.resolve(count, prepared.width)
    limit = copy_limit_of(effective.duplicate_threshold, metric)
    reason = 0
    if effective.diversity_auto:
        dial, reason = fall_off_dial(candidates, count, limit, effective, metric)
        effective = replace(effective, diversity=dial)
    picks, duplicates, further = _select(prepared, effective, limit, within)
    # Within quotas, near-copies may be anywhere, and keep the values of the selection.
    fillers = duplicates if within is None else 0
    dial = effective.diversity
    if effective.lose_at_most is not None:
        dial, reason = picks.dial, picks.reason
    places = candidates.rows[picks.places].astype(np.int64)
    collapsed = (_NO_PLACES, _NO_PLACES)
    if limit >= 0:
        collapsed = _collapsed(candidates, picks.places, limit)
    return Diversification(
        places,
        prepared.scores[places],
        _values_of(prepared, picks, effective, fillers, places),
        dial,
        _word(reason),
        duplicates,
        picks.gap if effective.selector == "qp_relax" else None,
        *collapsed,
        **further,
    )


def _select(
    prepared: Candidates, parameters: EffectiveParameters, limit: float, within: QuotaValues | None
) -> tuple[Picks, int, dict[str, Any]]:
    """Return the picks, the number of near-copies among them, and further fields of the result."""
    candidates, metric = prepared.candidates, prepared.metric
    if within is not None:
        picks_within, further = within.pick(candidates, parameters, metric, limit)
        return picks_within, picks_within.fillers, further
    count = len(candidates)
    picks, *_, duplicates = select_different(candidates, count, limit, parameters, metric)
    return picks, duplicates, {}


def _values_of(
    prepared: Candidates,
    picks: Picks,
    parameters: EffectiveParameters,
    duplicates: int,
    places: IntArray,
) -> FloatArray:
    """Return the selection scores of the picks (m,).

    Picks that are made by relevance alone have their scores, as in the answer to a query.
    Near-copies of `qp_relax` have no share.
    """
    if not prepared.has_offset:
        return picks.values
    by_rule = len(places) - duplicates
    by_relevance = returns_nearest(parameters)
    has_shares = parameters.selector == "qp_relax" and not by_relevance
    if not parameters.has_fixed_dial:
        dial = parameters.diversity if parameters.lose_at_most is None else picks.dial
        fixed = replace(parameters, diversity_auto=False, lose_at_most=None, diversity=dial)
        by_relevance = returns_nearest(fixed)
    start = 0 if by_relevance else by_rule
    stop = by_rule if has_shares else len(places)
    if start >= stop:
        return picks.values
    values = picks.values.copy()
    values[start:stop] = prepared.scores[places[start:stop]]
    return values


def iterate_picks(prepared: Candidates, parameters: DiversifyParameters) -> Iterator[Pick]:
    """Return an iterator that makes the picks of `pick_from` one at a time.

    Raises `InvalidArgumentError` for parameters that decide by all picks together.
    """
    if parameters.selector == "qp_relax":
        raise invalid("selector", "qp_relax makes all picks together, so it cannot stream them")
    if parameters.lose_at_most is not None:
        raise invalid("lose_at_most", "tries all picks for each dial, so picks cannot be streamed")
    candidates, metric, count = prepared.candidates, prepared.metric, len(prepared.scores)
    if not count:
        _nothing(parameters)
        return iter(())
    effective = parameters.resolve(count, prepared.width)
    limit = copy_limit_of(effective.duplicate_threshold, metric)
    if effective.diversity_auto:
        dial, _ = fall_off_dial(candidates, count, limit, effective, metric)
        effective = replace(effective, diversity=dial, diversity_auto=False)
    return _stepwise(prepared, effective, limit)


def _stepwise(
    prepared: Candidates, parameters: EffectiveParameters, limit: float
) -> Iterator[Pick]:
    candidates, count = prepared.candidates, len(prepared.scores)
    originals = np.arange(count)
    if limit >= 0:
        n_different = pairwise.keep_different(
            candidates.points, candidates.rows, count, np.float32(limit), candidates.scratch,
            originals,
        )  # fmt: skip
        originals = originals[:n_different]

    def pick_at(place: int, value: float, *, by_score: bool = False) -> Pick:
        row = int(candidates.rows[place])
        score = float(prepared.scores[row])
        value = score if by_score and prepared.has_offset else value
        return Pick(row, score, float(np.float32(value)))

    selection = StepwiseSelection(candidates.take(originals), parameters, prepared.metric)
    places, is_plain = [], returns_nearest(parameters)
    for _ in range(min(parameters.k, len(originals))):
        at, value = selection.best()
        places.append(int(originals[at]))
        yield pick_at(places[-1], value, by_score=is_plain)
        selection.pick(at)
    # Near-copies fill the last places, as in `select_different`.
    for place in np.setdiff1d(np.arange(count), places)[: parameters.k - len(places)].tolist():
        yield pick_at(place, -float(candidates.costs[place]), by_score=True)


def _nothing(parameters: DiversifyParameters) -> Diversification:
    """Return the result for no candidates; raises if the caller wants some."""
    if parameters.k is not None:
        raise invalid("k", f"must be at most the number of candidates, 0, got {parameters.k}")
    numbers, fixed = np.empty(0, np.float32), parameters.fixed_dial
    scores = np.empty(0)
    reason = None if fixed is not None else _word(records.NO_CHOICE)
    gap = 0.0 if parameters.selector == "qp_relax" else None
    return Diversification(_NO_PLACES, scores, numbers, fixed or 0.0, reason, duality_gap=gap)


def _word(reason: int) -> DialReason | None:
    """Return the value of `DialReason` for a number as in `Results.reasons`, None for 0."""
    if not reason:
        return None
    return cast(DialReason, str(reason_words(np.array([reason], np.uint8))[0]))


def _collapsed(
    candidates: CandidateSet, picks: IntArray, limit: float
) -> tuple[IntArray, IntArray]:
    """Return `collapsed_places` and `collapsed_offsets`; `picks` are positions in `candidates`."""
    count = len(candidates)
    owners = np.empty(count, np.int64)
    pairwise.assign_copies(
        candidates.points, candidates.rows, count, picks, len(picks), np.float32(limit), owners
    )
    order = np.argsort(owners, kind="stable")
    order = order[np.searchsorted(owners[order], 0) :]
    counts = np.bincount(owners[order], minlength=len(picks))
    return candidates.rows[order].astype(np.int64), np.concatenate(([0], np.cumsum(counts)))


spell_out_options(
    diversify,
    (DiversifyParameters,),
    {
        RowsLike: "RowsLike",
        MetricWord: "Metric",
        AttributesLike: "AttributesLike",
        QuotasLike: "QuotasLike",
    },
)
