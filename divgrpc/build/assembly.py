"""From points in a store to everything that finds them, and to what the manifest says of it.

An index is assembled once over its points and, where it has a label model, once more over the label
factors: the same steps in another part of the store.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from divgrpc.build.class_hyperplanes import dense_queries
from divgrpc.build.encoder import Report, encode_points
from divgrpc.build.explanations import choices, dense_choice
from divgrpc.build.families import choose_family
from divgrpc.build.near_copies import near_copy_threshold
from divgrpc.build.tuning import Tuned, tune
from divgrpc.parameters import BuildParameters
from divgrpc.search.arrays import readable
from divgrpc.search.costs import Shape
from divgrpc.search.searcher import Searcher
from divgrpc.storage.manifest import Manifest
from divgrpc.storage.writers import Arrays
from divgrpc.types import Choice, IntArray
from divgrpc.vectors import Rows, SparseRows


def assemble(
    store: Arrays,
    settings: BuildParameters,
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
    family = choose_family(settings, points, queries)
    encoded = encode_points(store, replace(settings, hash_family=family.family), points, report)
    parameters = encoded.parameters
    report("tuning", 0, len(points))
    rows, dims = points.shape
    stored = len(points.values) if isinstance(points, SparseRows) else None
    searcher = Searcher(readable(encoded.arrays, points), parameters, dims)
    shape = Shape.of(parameters, rows, dims, stored)
    tell = partial(report, "tuning")
    tuned = tune(searcher, shape, parameters.target_recall, parameters.seed, tell, queries=queries)
    dense, chosen_dense = _tuned_dense(searcher, shape, parameters, categories, tell)
    chosen = choices(settings, family, encoded, tuned, points.shape) + chosen_dense
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
        duplicate_threshold=near_copy_threshold(points, parameters, lambda *_: tell(rows, 0)),
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
) -> tuple[Tuned | None, tuple[Choice, ...]]:
    """Tune for dense queries, where points are sparse and some can be made; return also why."""
    points = searcher.points
    # A hyperplane asks for the largest products, which no distance says.
    if not isinstance(points, SparseRows) or parameters.metric == "euclidean":
        return None, ()
    target, seed = parameters.target_recall, parameters.seed
    queries, origin = dense_queries(points, categories, seed)
    if not len(queries):
        return None, ()
    tell(0, len(points))
    tuned = tune(searcher, shape, target, seed, tell, queries=queries)
    return tuned, (dense_choice(tuned, target, origin),)
