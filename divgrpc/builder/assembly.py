"""Assembly makes stored points searchable.

Assembly chooses a hash family, encodes points, tunes searches, and describes the result in a
manifest.

A build assembles the index of its points. If the build has a label model, it also assembles an
index of the label factors with the same steps.

Trials on a sample of the points decide which family replaces `auto`. If there are at least
`CELLS_ROWS_MIN` points, and the request sets neither tables nor bits, a trial measures the recall
of `cells` when a query probes a quarter of the cells. If `cells` is not tried or its recall is too
low, trials compare the recall of code scans of `lsh_div` and `lsh_sdiv`. With few points, or if
`lsh_sdiv` would keep all dimensions, `lsh_div` is used without this comparison.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np

from divgrpc.build_rows import (
    BuildRows,
    DividedSparseRows,
    SparseBuildRows,
    count_nonzeros,
    mean_width,
    take,
)
from divgrpc.builder.class_hyperplanes import dense_queries
from divgrpc.builder.encoder import EncodePoints, Encoding, encode_points
from divgrpc.builder.measured import MeasuredSearcher
from divgrpc.builder.near_copies import near_copy_threshold
from divgrpc.builder.nearest import FindNearest
from divgrpc.builder.progress import Report
from divgrpc.builder.sample import Sample
from divgrpc.builder.tuning import Tuning, tune
from divgrpc.hashing.count_sketch import SKETCH_DIMS_MIN, SKETCH_SUMS, dims_after
from divgrpc.hashing.hyperplanes import CELLS_ROWS_MIN, COMPONENTS_MAX, fill_defaults
from divgrpc.parameters import BuildParameters, QueryParameters
from divgrpc.search.costs import AUTO, CHEAPER_RATIO_MAX, reaches
from divgrpc.storage.manifest import Manifest
from divgrpc.storage.writers import MemoryStore, Store
from divgrpc.types import Choice, HashFamily, IntArray, Search
from divgrpc.vectors import Rows, SparseRows, draw_numbers

# A trial uses at most 4,096 points that store at most 2**21 values.
_TRIAL_ROWS_MAX: Final = 4_096
_TRIAL_NUMBERS_MAX: Final = 1 << 21
# A default query has 200 candidates. A trial reduces this number in the ratio of sampled points to
# all points, but to no fewer than 10 candidates. Scans of a trial hash at most 4 points per
# candidate.
_DEFAULT_CANDIDATES: Final = 200
_CANDIDATES_MIN: Final = 10
_HASHED_PER_CANDIDATE: Final = 4
# With fewer points no trial is made, because an exact search is then as fast as any other.
_TRIAL_POINTS_MIN: Final = 2_000
# Recalls that differ by at most this much count as equal.
_RECALL_MARGIN: Final = 0.005
# The share of the cells that queries probe in a trial of `cells`.
_CELLS_SHARE: Final = 0.25
# With fewer points than this, `cells` is taken only if its recall in the trial shows clear
# clusters. A default query of 50,000 real points, with a recall of .94, is slower in cells than in
# a scan. A query of 50,000 synthetic points, with .98 to .99, is a little faster.
_CELLS_MANY_ROWS: Final = 100_000
_CELLS_CLEAR_RECALL: Final = 0.96


def assemble(
    store: Store,
    request: BuildParameters,
    points: BuildRows,
    *,
    report: Report,
    prefix: str = "",
    longest_first: bool = False,
    queries: Rows | None = None,
    categories: IntArray | None = None,
    encode: EncodePoints = encode_points,
) -> Manifest:
    """Encode `points` (n, d) into `store`, tune searches, and return the manifest.

    The manifest still lacks the number of the generation, the warnings, the labels and the array
    entries. The names of arrays in the store begin with `prefix`. `longest_first`: whether the
    points are sorted by length, longest first. `queries` (m, d) are a sample of future queries; if
    None, queries are made from points. `categories` (n,) are the categories of the points.
    `encode` encodes the points. `report` is called with the stage, the number of rows done, and the
    total number of rows (0 if unknown). Raises `InvalidArgumentError` for parameters that do not
    fit the points.
    """
    family, family_reason = choose_family(request, points, queries)
    encoding = encode(store, replace(request, hash_family=family), points, report, prefix)
    report("tuning", 0, len(points))
    tick = partial(report, "tuning")
    (rows, dims), parameters = points.shape, encoding.parameters
    with encoding.searching(points, longest_first=longest_first) as (searcher, find):
        tuning = tune(searcher, parameters, tick, queries=queries, find=find)
        dense, dense_choices = _tune_for_dense(searcher, parameters, categories, tick, find)
        threshold = near_copy_threshold(points, parameters, lambda *_: tick(rows, 0), find)
    return Manifest(
        generation=0,
        rows=rows,
        dims=dims,
        points="sparse" if isinstance(points, SparseBuildRows) else "dense",
        nonzeros=count_nonzeros(points) if isinstance(points, SparseBuildRows) else rows * dims,
        widest_row=_widest_row(points),
        parameters=parameters,
        code_bits=encoding.code_bits,
        n_probes=tuning.n_probes,
        auto_search=tuning.auto_search,
        search_costs=tuning.search_costs,
        auto_search_dense=dense.auto_search if dense else None,
        search_costs_dense=dense.search_costs if dense else (),
        duplicate_threshold=threshold,
        choices=_choices(request, family_reason, encoding, tuning, points.shape) + dense_choices,
        warnings=(),
        arrays={},
    )


def _widest_row(points: BuildRows) -> int:
    """Return the maximum number of stored values of a point."""
    if isinstance(points, SparseRows):
        return int(np.diff(points.indptr).max())
    return points.widest_row if isinstance(points, DividedSparseRows) else int(points.shape[1])


def requested_parameters(manifest: Manifest) -> BuildParameters:
    """Return the parameters of a manifest without the values that Build chose."""
    parameters, chosen_names = manifest.parameters, {c.parameter for c in manifest.choices}
    names = {"n_tables", "n_bits", "n_components"} & chosen_names
    if parameters.hash_family == "lsh_div":
        # It does not use components, and `choices` does not name them.
        default = fill_defaults(
            replace(parameters, n_components=None), manifest.rows, manifest.dims
        )
        names |= {"n_components"} if parameters.n_components == default.n_components else set()
    changes: dict[str, Any] = dict.fromkeys(names)
    if "hash_family" in chosen_names:
        changes["hash_family"] = "auto"
    return replace(parameters, **changes)


def _tune_for_dense(
    searcher: MeasuredSearcher,
    parameters: BuildParameters,
    categories: IntArray | None,
    tick: Callable[[int, int], None],
    find: FindNearest,
) -> tuple[Tuning | None, tuple[Choice, ...]]:
    """Tune searches of sparse points for dense queries.

    Returns the results, and a tuple of the `Choice` that records which search `auto` uses. If
    points are dense, if the metric is euclidean, or if no dense queries can be made from the
    points, returns None and an empty tuple.
    """
    points = searcher.points
    # A dense query on sparse points is assumed to be the normal of a hyperplane. Such a query asks
    # for the points with the largest inner products. The metric euclidean does not rank points by
    # inner products, so searches under this metric are not tuned for such queries.
    if not isinstance(points, SparseBuildRows) or parameters.metric == "euclidean":
        return None, ()
    queries, origin = dense_queries(points, categories, parameters.seed)
    if not len(queries):
        return None, ()
    tick(0, len(points))
    tuning = tune(searcher, parameters, tick, queries=queries, find=find)
    choice = _search_choice(tuning, parameters.target_recall)
    reason = f"by {tuning.n_queries} {origin}: {choice.reason}"
    return tuning, (replace(choice, parameter="search_dense", reason=reason),)


def _choices(
    request: BuildParameters,
    family_reason: str,
    encoding: Encoding,
    tuning: Tuning,
    shape: tuple[int, int],
) -> tuple[Choice, ...]:
    """Return what Build chose for the parameters that `request` left open, with reasons.

    `shape` is (n, d).
    """
    (rows, dims), parameters = shape, encoding.parameters
    cells = parameters.hash_family == "cells"
    values: list[tuple[str, object, str]] = []
    if request.hash_family == "auto":
        values.append(("hash_family", parameters.hash_family, family_reason))
    if "sketch" in encoding.arrays:
        reason = (
            f"sums that {dims:,} columns are hashed by, as all above {SKETCH_DIMS_MIN - 1:,} are"
        )
        values.append(("sketch", SKETCH_SUMS, reason))
    if request.n_components is None and parameters.hash_family != "lsh_div":
        uses_all = parameters.n_components == dims
        reason = "all dimensions" if uses_all else f"the strongest of {dims:,}"
        values.append(("n_components", parameters.n_components, reason))
    if cells:
        reason = f"about four times the square root of {rows:,} points, fewer if cells were small"
        values.append(("cells", len(encoding.arrays["cell_centres"]), reason))
    elif request.n_bits is None:
        reason = f"buckets of two to four points on average, of {rows:,}; 8 to 24 bits"
        values.append(("n_bits", parameters.n_bits, reason))
    if request.n_tables is None and not cells:
        values.append(("n_tables", parameters.n_tables, "the default, room allowing"))
    choices = [Choice(name, str(value), reason) for name, value, reason in values]
    target = parameters.target_recall
    return (*choices, _probes_choice(tuning, target, cells=cells), _search_choice(tuning, target))


def _probes_choice(tuning: Tuning, target: float, *, cells: bool) -> Choice:
    lists = "cells" if cells else "buckets"
    pools = next(cost.pools for cost in tuning.search_costs if cost.search == "tables")
    pool = next(pool for pool in pools if pool.n_probes == tuning.n_probes)
    reason = f"the {lists} that find most of the nearest {pool.candidates}, {pool.recall:.3f}"
    if reaches(pool.recall, target):
        reason = f"{lists} enough to find {target:g} of the nearest {pool.candidates}"
    counts = ", ".join(f"{pool.n_probes} for {pool.candidates:,}" for pool in pools)
    return Choice("n_probes", str(tuning.n_probes), f"{reason}; by candidates: {counts}")


def _search_choice(tuning: Tuning, target: float) -> Choice:
    by_search = {cost.search: cost for cost in tuning.search_costs}
    costs = ", ".join(
        f"{search} finds {by_search[search].recall:.3f} at {by_search[search].microseconds:.0f} us"
        for search in AUTO
    )
    reason = (
        f"auto starts with {AUTO[0]}, and moves on to {', then to '.join(AUTO[1:])}, where that "
        f"finds {target:g} of the candidates of a default query at less than {CHEAPER_RATIO_MAX:g} "
        f"of the price: {costs} by counted work"
    )
    return Choice("search", tuning.auto_search, reason)


def choose_family(
    parameters: BuildParameters, points: BuildRows, queries: Rows | None
) -> tuple[HashFamily, str]:
    """Return the hash family for `points` (n, d), and the reason as text.

    If the request names a family, that family is returned with an empty reason. Otherwise the
    number of points, their dimensions and trials decide. `queries` (m, d) are a sample of future
    queries; if None, queries are made from points.
    """
    if parameters.hash_family != "auto":
        return parameters.hash_family, ""
    rows, dims = points.shape
    trial = _Trial(parameters, points, queries)
    cells_fit = parameters.n_tables is None and parameters.n_bits is None
    if rows >= CELLS_ROWS_MIN and cells_fit:
        share = trial.recall("cells", "tables")
        least = min(parameters.target_recall, 1 - _RECALL_MARGIN)
        if rows < _CELLS_MANY_ROWS:
            least = max(least, _CELLS_CLEAR_RECALL)
        if share >= least:
            return "cells", (
                f"of {trial.rows:,} points a quarter of the cells holds {share:.3f} of the nearest"
            )
    components = parameters.n_components or COMPONENTS_MAX
    if components >= dims_after(dims) or rows < _TRIAL_POINTS_MIN:
        case = "all dimensions are hashed" if rows >= _TRIAL_POINTS_MIN else f"only {rows:,} points"
        return "lsh_div", f"{case}, where components have nothing to add"
    div, sdiv = (trial.recall(family, "scan") for family in ("lsh_div", "lsh_sdiv"))
    return "lsh_sdiv" if sdiv > div + _RECALL_MARGIN else "lsh_div", (
        f"of {trial.rows:,} points a scan finds {div:.3f} of the nearest with lsh_div, "
        f"{sdiv:.3f} with lsh_sdiv"
    )


class _Trial:
    """Builds a small index of one sample for each family, and searches with the same queries."""

    def __init__(
        self, parameters: BuildParameters, points: BuildRows, queries: Rows | None
    ) -> None:
        count = max(_CANDIDATES_MIN, _TRIAL_NUMBERS_MAX // mean_width(points))
        self.rows = min(len(points), _TRIAL_ROWS_MAX, count)
        rng = np.random.default_rng((parameters.seed, 5))
        self._points = take(points, draw_numbers(len(points), self.rows, rng))
        self._parameters = parameters
        self._queries = queries
        # Keep the ratio of candidates to points that the whole index has.
        share = _DEFAULT_CANDIDATES * self.rows // len(points)
        self._candidates = max(min(_CANDIDATES_MIN, self.rows), share)
        self._sample: Sample | None = None

    def recall(self, family: HashFamily, search: Search) -> float:
        """Build a small index of `family` and return the recall of `search` in it.

        Recall is the share of the true nearest points that are among the hashed points, averaged
        over queries. Hashed points are those that a search finds before it scores points. For
        `cells`, a query probes a quarter of the cells without a hash limit.
        """
        parameters = replace(self._parameters, hash_family=family)
        encoding = encode_points(MemoryStore(), parameters, self._points, lambda *_: None)
        searcher = encoding.searcher(self._points)
        if self._sample is None:
            seed, most = parameters.seed, self._candidates
            self._sample = Sample.draw(searcher, seed, most, lambda *_: None, queries=self._queries)
        limit = 0 if family == "cells" else _HASHED_PER_CANDIDATE * self._candidates
        if limit >= self.rows:
            return 1.0
        query = QueryParameters(
            k=1,
            search=search,
            hash_limit=limit,
            n_probes=max(1, int(_CELLS_SHARE * searcher.max_probes)),
        )
        numbers, effective = np.arange(len(self._sample)), query.resolve(self.rows, "exact")
        results = self._sample.measure(searcher, effective, numbers, (self._candidates,))
        return float(np.mean([shares[0] for shares, _ in results]))
