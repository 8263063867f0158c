"""From points in a store to everything that finds them, and to what the manifest says of it.

An index is assembled once over its points and, where it has a label model, once more over the label
factors: the same steps in another part of the store.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from divgrpc.encoding import Report, encode_points
from divgrpc.families import choose_family
from divgrpc.kernel_arrays import readable
from divgrpc.manifest import Manifest
from divgrpc.parameters import DEFAULT_DUPLICATE_COSINE, BuildParameters
from divgrpc.pricing import Shape
from divgrpc.reasons import choices, dense_choices
from divgrpc.searching import Searcher
from divgrpc.separators import separators
from divgrpc.stores import Arrays
from divgrpc.tuning import Tuned, tune
from divgrpc.types import IntArray, Metric
from divgrpc.vectors import Rows, SparseRows, take

# Rows that say how far points lie apart.
_SPREAD_ROWS: Final = 500


def assemble(
    store: Arrays,
    asked: BuildParameters,
    points: Rows,
    *,
    report: Report,
    queries: Rows | None = None,
    categories: IntArray | None = None,
) -> Manifest:
    """Encode `points` (n, d), tune, and return what came of it: no number and no arrays yet.

    `queries` are a sample of what will be asked, where the points are label factors; `categories`
    (n,) are those of the points. `report` gets stage, rows done and rows in all.
    """
    family = choose_family(asked, points, queries)
    encoded = encode_points(store, replace(asked, hash_family=family.family), points, report)
    parameters = encoded.parameters
    report("tuning", 0, len(points))
    rows, dims = points.shape
    stored = len(points.values) if isinstance(points, SparseRows) else None
    searcher = Searcher(readable(encoded.arrays, points), parameters, dims)
    shape = Shape.of(parameters, rows, dims, stored)
    tell = partial(report, "tuning")
    tuned = tune(searcher, shape, parameters.target_recall, parameters.seed, tell, queries=queries)
    dense = _tuned_dense(searcher, shape, parameters, categories, tell)
    chosen = choices(asked, family, encoded, tuned, points.shape) + dense_choices(dense, parameters)
    return Manifest(
        generation=0,
        rows=rows,
        dims=dims,
        points="sparse" if isinstance(points, SparseRows) else "dense",
        nonzeros=rows * dims if stored is None else stored,
        widest_row=_widest(points),
        parameters=parameters,
        code_bits=encoded.code_bits,
        n_probes=tuned.n_probes,
        auto_search=tuned.auto_search,
        search_costs=tuned.search_costs,
        auto_search_dense=dense.auto_search if dense else None,
        search_costs_dense=dense.search_costs if dense else (),
        duplicate_threshold=_near_copies(points, parameters.metric, parameters.seed),
        choices=chosen,
        warnings=(),
        arrays={},
    )


def _widest(points: Rows) -> int:
    """Return the most numbers that a row stores."""
    return int(np.diff(points.indptr).max()) if isinstance(points, SparseRows) else points.shape[1]


def _tuned_dense(
    searcher: Searcher,
    shape: Shape,
    parameters: BuildParameters,
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
    return tune(searcher, shape, target, seed, tell, queries=learned)


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
