"""From points in a store to everything that finds them, and to what the manifest says of it.

An index is assembled once over its points and, where it has a label model, once more over the label
factors: the same steps in another part of the store.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np

from divgrpc.array_files import Array, read_only
from divgrpc.encoding import Report, encode_points
from divgrpc.manifest import Manifest
from divgrpc.parameters import DEFAULT_DUPLICATE_COSINE, BuildParameters
from divgrpc.reasons import choices, dense_choices
from divgrpc.searching import Searcher
from divgrpc.separators import separators
from divgrpc.stores import Arrays
from divgrpc.tuning import Tuned, tune, tune_dense
from divgrpc.types import IntArray, Metric, WarningInfo
from divgrpc.vectors import Rows, SparseRows, take

# Rows that say how far points lie apart.
_SPREAD_ROWS: Final = 500


def assemble(
    store: Arrays,
    asked: BuildParameters,
    points: Rows,
    ids: IntArray | None,
    *,
    report: Report,
    queries: Rows | None = None,
    categories: IntArray | None = None,
) -> Manifest:
    """Encode `points` (n, d), tune, and return what came of it: no number and no arrays yet.

    `queries` are a sample of what will be asked, where the points are label factors; `categories`
    (n,) are those of the points. `report` gets stage, rows done and rows in all.
    """
    encoded = encode_points(store, asked, points, report)
    parameters = encoded.parameters
    report("tuning", 0, len(points))
    searcher = Searcher(_readable(encoded.arrays, points, ids), parameters, points.shape[1])
    tell = partial(report, "tuning")
    tuned = tune(searcher, parameters.target_recall, parameters.seed, tell, queries)
    dense = _tuned_dense(searcher, parameters, tuned.n_probes, categories, tell)
    rows, dims = points.shape
    nonzeros, widest = rows * dims, dims
    if isinstance(points, SparseRows):
        nonzeros, widest = len(points.values), int(np.diff(points.indptr).max())
    return Manifest(
        generation=0,
        rows=rows,
        dims=dims,
        points="sparse" if isinstance(points, SparseRows) else "dense",
        nonzeros=nonzeros,
        widest_row=widest,
        parameters=parameters,
        code_bits=encoded.code_bits,
        n_probes=tuned.n_probes,
        auto_search=tuned.auto_search,
        search_costs=tuned.search_costs,
        auto_search_dense=dense.auto_search if dense else None,
        search_costs_dense=dense.search_costs if dense else (),
        duplicate_threshold=_near_copies(points, parameters.metric, parameters.seed),
        choices=choices(asked, encoded, tuned, rows, dims) + dense_choices(dense, parameters),
        warnings=_warnings(tuned, parameters.target_recall),
        arrays={},
    )


def _tuned_dense(
    searcher: Searcher,
    parameters: BuildParameters,
    n_probes: int,
    categories: IntArray | None,
    tell: Callable[[int, int], None],
) -> Tuned | None:
    """Tune for hyperplanes of the categories, where points are sparse and some can be learned."""
    points = searcher.points
    if categories is None or not isinstance(points, SparseRows):
        return None
    if parameters.metric == "euclidean":
        return None  # a hyperplane asks for the largest products, which no distance says
    learned = separators(points, categories, parameters.seed)
    if not len(learned):
        return None
    target, seed = parameters.target_recall, parameters.seed
    tell(0, len(points))
    return tune_dense(searcher, target, seed, tell, learned, n_probes=n_probes)


def _near_copies(points: Rows, metric: Metric, seed: int) -> float:
    """Return from which likeness on points count as near-copies: see `collapse_threshold`.

    Points are near-copies where their squared distance is at most a twentieth of the mean one
    between two points of the index: a cosine of 0.95 where points lie in all directions, more where
    all lie in much the same. In the mean a squared distance is weighted by itself, so that
    near-copies count little, however many there are. Vectors are unit ones but under `euclidean`.
    """
    rng = np.random.default_rng((seed, 5))
    count = min(len(points), _SPREAD_ROWS)
    rows = take(points, np.sort(rng.choice(len(points), count, replace=False)))
    if isinstance(rows, SparseRows):
        matrix = rows.matrix.astype(np.float64)
        products = (matrix @ matrix.T).toarray()
    else:
        products = rows.astype(np.float64) @ rows.astype(np.float64).T
    squares = products.diagonal().copy()
    if metric != "euclidean":
        inverses = np.divide(1, np.sqrt(squares), out=np.zeros(count), where=squares > 0)
        products *= np.outer(inverses, inverses)
        squares = products.diagonal().copy()
    apart = np.maximum(0, squares[:, np.newaxis] + squares - 2 * products)
    mean = (apart * apart).sum() / apart.sum() if apart.any() else 0.0
    # Few digits: the last ones depend on the order of a sum.
    near = float(f"{(1 - DEFAULT_DUPLICATE_COSINE) * mean / 2:.3g}")
    return 2 * near if metric == "euclidean" else 1 - near


def _readable(encoded: dict[str, Array], points: Rows, ids: IntArray | None) -> dict[str, Array]:
    arrays = dict(encoded)
    if isinstance(points, SparseRows):
        arrays |= {"indptr": points.indptr, "indices": points.indices, "values": points.values}
    else:
        arrays["vectors"] = points
    if ids is not None:
        arrays["ids"] = ids
    return {name: read_only(array) for name, array in arrays.items()}


def _warnings(tuned: Tuned, target: float) -> tuple[WarningInfo, ...]:
    tables = next(cost for cost in tuned.search_costs if cost.search == "tables")
    if tables.recall >= target - 1e-9:
        return ()
    sentence = (
        f"search tables finds {tables.recall:.2f} of the nearest at default limits, less than "
        f"target_recall {target:g}; auto takes another search"
    )
    return (WarningInfo("TARGET_RECALL_MISSED", sentence, "target_recall"),)
