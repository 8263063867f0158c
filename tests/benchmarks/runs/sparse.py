"""Benchmark of sparse queries on the points of the paper's size."""

import time
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from scipy import sparse

from benchmarks.harness import libraries
from benchmarks.harness.runner import (
    Ask,
    Option,
    Options,
    Output,
    Table,
    benchmark,
    take_turns,
)
from divgrpc.index import Index
from divgrpc.parameters.query import QueryOptions
from divgrpc.types import IntArray
from divgrpc_lab.data.synthetic import IMAGES, WORDS, visual_words

# Numbers of the query's largest values whose inverted lists seismic reads.
_QUERY_CUTS: Final = (5, 10, 20)
_SETTINGS: Final[dict[str, QueryOptions]] = {
    "divgrpc, nearest, exact": {"search": "exact", "diversity": 0.0},
    "divgrpc, diverse, exact": {"search": "exact"},
    "divgrpc, diverse, default": {},
}


@benchmark(
    "sparse",
    images=Option(IMAGES, "points"),
    words=Option(WORDS, "columns"),
    queries=Option(100, "sparse queries"),
    k=Option([10, 200], "results of a query"),
)
def sparse_times(options: Options) -> Iterator[Output]:
    """Time sparse queries on generated bags of visual words, compared with seismic and scipy.

    All take turns on one thread, each with one query at a time. `recall` is the share of the
    nearest k that an answer contains. Only the searches for the nearest aim at recall: a diverse
    answer leaves near-copies out. seismic (pyseismic-lsr) approximates; its index is built on one
    thread too. scipy multiplies all points by the query, and numpy takes the largest products.
    """
    words = visual_words(options.images, options.queries, options.words)
    points, queries = words.points, words.pool
    begin = time.perf_counter()
    index = Index.build(points)
    seconds = {"divgrpc": time.perf_counter() - begin, "scipy": 0.0}
    finders: dict[str, Any] = {}
    if not libraries.missing("seismic"):
        begin = time.perf_counter()
        finders["seismic"] = _seismic(points)
        seconds["seismic"] = time.perf_counter() - begin
    facts = {"points": words.name, "values of a point": points.nnz / points.shape[0]}
    for k in options.k:
        asks = _asks(index, finders.get("seismic"), points, queries, k)
        times = take_turns(asks, queries.shape[0], k)
        yield Table(f"Sparse queries, k = {k}", facts)
        truth = times["scipy, one product"].rows
        for name, timed in times.items():
            hits = [len(np.intersect1d(*rows)) for rows in zip(timed.rows, truth, strict=True)]
            row: dict[str, Any] = {
                "contestant": name,
                "us": timed.microseconds,
                "recall": sum(hits) / truth.size,
                "build s": seconds[name.split(",")[0]],
            }
            if not name.startswith("divgrpc"):
                exact = times["divgrpc, nearest, exact"]
                row["x divgrpc"], row["95 %"] = timed.ratio(exact)
            yield row


def _asks(
    index: Index,
    rival: Any,  # noqa: ANN401  # seismic has no types
    points: sparse.csr_array,
    queries: sparse.csr_array,
    k: int,
) -> dict[str, Ask]:
    asks: dict[str, Ask] = {}
    for name, settings in _SETTINGS.items():
        asks[name] = _divgrpc_ask(index, queries, k, settings)
    if rival is not None:
        for cut in _QUERY_CUTS:
            asks[f"seismic, query_cut {cut}"] = _seismic_ask(rival, queries, k, cut)

    def multiply(query: int) -> IntArray:
        products = (queries[[query]] @ points.T).toarray()[0]
        nearest = np.argpartition(-products, k)[:k]
        order: IntArray = nearest[np.argsort(-products[nearest], kind="stable")]
        return order

    asks["scipy, one product"] = multiply
    return asks


def _divgrpc_ask(index: Index, queries: sparse.csr_array, k: int, settings: QueryOptions) -> Ask:
    def ask(query: int) -> IntArray:
        parameters: QueryOptions = {**settings, "k": k}
        rows: IntArray = index.query(queries[[query]], **parameters).ids[0]
        return rows

    return ask


def _seismic(points: sparse.csr_array) -> Any:  # noqa: ANN401
    """Return seismic's index of points of unit length, built with its default parameters."""
    import seismic

    points = points.copy()
    points.data /= np.repeat(sparse.linalg.norm(points, axis=1), np.diff(points.indptr))
    data_set = seismic.SeismicDataset(dim=points.shape[1])
    names = [str(row) for row in range(points.shape[0])]
    columns, starts = points.indices.astype(np.int64), points.indptr.astype(np.int64)
    data_set.add_documents_by_id(names, columns, points.data.astype(np.float32), starts)
    return seismic.SeismicIndex.build_from_dataset(data_set, num_threads=1)


def _seismic_ask(
    index: Any,  # noqa: ANN401
    queries: sparse.csr_array,
    k: int,
    query_cut: int,
) -> Ask:
    """Return a search of the lists of the query's `query_cut` largest values; prunes no blocks."""
    import seismic

    kind = seismic.get_seismic_string()
    packed = [
        (np.array([str(column) for column in row.indices], dtype=kind), row.data.astype(np.float32))
        for row in (queries[[query]] for query in range(queries.shape[0]))
    ]

    def ask(query: int) -> IntArray:
        columns, values = packed[query]
        results = index.search("query", columns, values, k=k, query_cut=query_cut, heap_factor=1.0)
        rows = np.full(k, -1)
        rows[: len(results)] = [int(result[2]) for result in results]
        return rows

    return ask
