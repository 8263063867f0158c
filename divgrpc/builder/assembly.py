"""From points in a store to a searchable index: choose a family, encode, tune, describe.

A build assembles the index of its points. If it has a label model, it also assembles an index of
the label factors: the same steps in another part of the store.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from divgrpc.builder.class_hyperplanes import dense_queries
from divgrpc.builder.encoder import Encoding, Report, encode_points, searcher_of
from divgrpc.builder.families import choose_family
from divgrpc.builder.near_copies import near_copy_threshold
from divgrpc.builder.tuning import Tuning, tune
from divgrpc.hashing.count_sketch import FROM_DIMS, SUMS
from divgrpc.parameters import BuildParameters
from divgrpc.search.costs import AUTO, CHEAPER_RATIO_MAX, reaches
from divgrpc.search.searcher import Searcher
from divgrpc.storage.manifest import Manifest
from divgrpc.storage.writers import Store
from divgrpc.types import Choice, IntArray
from divgrpc.vectors import Rows, SparseRows


def assemble(
    store: Store,
    request: BuildParameters,
    points: Rows,
    *,
    report: Report,
    prefix: str = "",
    queries: Rows | None = None,
    categories: IntArray | None = None,
) -> Manifest:
    """Encode `points` (n, d), tune, and return the manifest without its number and its arrays.

    `prefix` begins the names of arrays in the store.
    `queries` (m, d) are a sample of future queries; without them points serve as queries.
    `categories` (n,) belong to the points. `report` is called with the stage, the rows that are
    done, and the rows in all. Raises `InvalidArgumentError` for parameters that do not fit the
    points.
    """
    family, family_reason = choose_family(request, points, queries)
    encoding = encode_points(store, replace(request, hash_family=family), points, report, prefix)
    parameters = encoding.parameters
    report("tuning", 0, len(points))
    tick = partial(report, "tuning")
    rows, dims = points.shape
    nonzeros, widest_row = rows * dims, dims
    if isinstance(points, SparseRows):
        nonzeros, widest_row = len(points.values), int(np.diff(points.indptr).max())
    searcher = searcher_of(encoding, points)
    tuning = tune(searcher, parameters, tick, queries=queries)
    dense, dense_choices = _tune_for_dense(searcher, parameters, categories, tick)
    return Manifest(
        generation=0,
        rows=rows,
        dims=dims,
        points="sparse" if isinstance(points, SparseRows) else "dense",
        nonzeros=nonzeros,
        widest_row=widest_row,
        parameters=parameters,
        code_bits=encoding.code_bits,
        n_probes=tuning.n_probes,
        auto_search=tuning.auto_search,
        search_costs=tuning.search_costs,
        auto_search_dense=dense.auto_search if dense else None,
        search_costs_dense=dense.search_costs if dense else (),
        duplicate_threshold=near_copy_threshold(points, parameters, lambda *_: tick(rows, 0)),
        choices=_choices(request, family_reason, encoding, tuning, points.shape) + dense_choices,
        warnings=(),
        arrays={},
    )


def _tune_for_dense(
    searcher: Searcher,
    parameters: BuildParameters,
    categories: IntArray | None,
    tick: Callable[[int, int], None],
) -> tuple[Tuning | None, tuple[Choice, ...]]:
    """Tune sparse points for dense queries; return the results, and the choice of the search.

    Nothing is tuned for dense points, or if no dense queries can be made from the points.
    """
    points = searcher.points
    # A dense query of sparse points is a hyperplane. It looks for the largest products, which
    # distances do not rank.
    if not isinstance(points, SparseRows) or parameters.metric == "euclidean":
        return None, ()
    queries, origin = dense_queries(points, categories, parameters.seed)
    if not len(queries):
        return None, ()
    tick(0, len(points))
    tuning = tune(searcher, parameters, tick, queries=queries)
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
    """Return the choices of Build for parameters that the `request` left open.

    `shape` is (n, d).
    """
    (rows, dims), parameters = shape, encoding.parameters
    cells = parameters.hash_family == "cells"
    choices = []
    if request.hash_family == "auto":
        choices.append(Choice("hash_family", parameters.hash_family, family_reason))
    if "sketch" in encoding.arrays:
        reason = f"sums that {dims:,} columns are hashed by, as all above {FROM_DIMS - 1:,} are"
        choices.append(Choice("sketch", str(SUMS), reason))
    if request.n_components is None and parameters.hash_family != "lsh_div":
        every = parameters.n_components == dims
        reason = "all dimensions" if every else f"the strongest of {dims:,}"
        choices.append(Choice("n_components", str(parameters.n_components), reason))
    if cells:
        count = len(encoding.arrays["cell_centres"])
        reason = f"about four times the square root of {rows:,} points, one per sixteen at most"
        choices.append(Choice("cells", str(count), reason))
    else:
        if request.n_bits is None:
            reason = f"buckets of two to four points on average, of {rows:,}; 8 to 24 bits"
            choices.append(Choice("n_bits", str(parameters.n_bits), reason))
        if request.n_tables is None:
            choices.append(
                Choice("n_tables", str(parameters.n_tables), "the default, room allowing")
            )
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
