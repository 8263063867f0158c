"""Benchmark of sparse queries, by default on points of the paper's size."""

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
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
    Timed,
    benchmark,
    take_turns,
)
from divgrpc.index import Index
from divgrpc.parameters.query import QueryOptions
from divgrpc.types import IntArray
from divgrpc_lab.data.synthetic import IMAGES, WORDS, visual_words
from divgrpc_lab.data.topics import Topics, load

# Numbers of the query's largest values whose inverted lists seismic reads.
_QUERY_CUTS: Final = (1, 2, 3, 5, 10, 20, 50)
# seismic skips a block of points if its estimated best product times this factor is too small.
_HEAP_FACTORS: Final = (0.7, 0.9, 1.0)
# The fastest setting of seismic is reported for each of these shares of the nearest.
_RECALLS: Final = (0.9, 0.95, 0.99)
_SETTINGS: Final[dict[str, QueryOptions]] = {
    "divgrpc, nearest, exact": {"search": "exact", "diversity": 0.0},
    "divgrpc, nearest, hashed": {"search": "scan", "diversity": 0.0},
    "divgrpc, diverse, exact": {"search": "exact"},
    "divgrpc, diverse, hashed": {"search": "scan"},
    "divgrpc, diverse, default": {},
}
_GENERATED: Final = "visual words"
_SETS: Final = (_GENERATED, "newsgroups20", "cifar100_7x5_bovw")


@benchmark(
    "sparse",
    points=Option([_GENERATED], "generated points, or data sets in DIVGRPC_DATA", _SETS),
    images=Option(IMAGES, "generated points"),
    words=Option(WORDS, "columns of generated points"),
    queries=Option(100, "sparse queries"),
    k=Option([10, 200], "results of a query"),
)
def sparse_times(options: Options) -> Iterator[Output]:
    """Time sparse queries beside seismic and scipy.

    All take turns on one thread, each with one query at a time. `recall` is the share of the
    nearest k that an answer contains. Only the searches for the nearest aim at recall: a diverse
    answer leaves near-copies out. A hashed search scans codes and scores `hash_limit` points.
    seismic (pyseismic-lsr) approximates; its index is built on one thread too. Of its settings of
    query_cut and heap_factor, the fastest of each recall is shown, or else the best. scipy
    multiplies all points by the query, and numpy takes the largest products.
    """
    for name in options.points:
        if name == _GENERATED:
            words = visual_words(options.images, options.queries, options.words)
        else:
            words = load([name])[0]
        yield from _compared(words, options)


def _compared(words: Topics, options: Options) -> Iterator[Output]:
    points, queries = words.points, words.pool[: options.queries]
    begin = time.perf_counter()
    index = Index.build(points)
    seconds = {"divgrpc": time.perf_counter() - begin, "scipy": 0.0}
    rival = None
    if not libraries.missing("seismic"):
        begin = time.perf_counter()
        rival = _seismic(points)
        seconds["seismic"] = time.perf_counter() - begin
    facts = {"points": words.name, "values of a point": f"{points.nnz / points.shape[0]:.0f}"}
    for k in options.k:
        asks = _asks(index, rival, points, queries, k)
        times = take_turns(asks, queries.shape[0], k)
        yield Table(f"Sparse queries, {words.name}, k = {k}", facts)
        truth = times["scipy, one product"].rows
        recalls = {name: _recall(timed.rows, truth) for name, timed in times.items()}
        for name in _reported(times, recalls):
            row: dict[str, Any] = {
                "contestant": name,
                "us": times[name].microseconds,
                "recall": recalls[name],
                "build s": seconds[name.split(",")[0]],
            }
            if not name.startswith("divgrpc"):
                exact = times["divgrpc, nearest, exact"]
                row["x divgrpc"], row["95 %"] = times[name].ratio(exact)
            yield row


def _recall(rows: IntArray, truth: IntArray) -> float:
    return sum(len(np.intersect1d(*pair)) for pair in zip(rows, truth, strict=True)) / truth.size


def _reported(times: Mapping[str, Timed], recalls: Mapping[str, float]) -> list[str]:
    """Return the names of the contestants to report."""
    names = [name for name in times if not name.startswith("seismic")]
    settings = [name for name in times if name.startswith("seismic")]
    for least in _RECALLS if settings else ():
        enough = [name for name in settings if recalls[name] >= least]
        if enough:
            names.append(min(enough, key=lambda name: times[name].microseconds))
        else:
            names.append(max(settings, key=lambda name: recalls[name]))
    return list(dict.fromkeys(names))


def _asks(
    index: Index,
    rival: Any,  # noqa: ANN401  # seismic has no types
    points: sparse.csr_array,
    queries: sparse.csr_array,
    k: int,
) -> dict[str, Ask]:
    asks: dict[str, Ask] = {}
    rows = [queries[[query]] for query in range(queries.shape[0])]
    for name, settings in _SETTINGS.items():
        asks[name] = _divgrpc_ask(index, rows, k, settings)
    if rival is not None:
        for cut, factor in itertools.product(_QUERY_CUTS, _HEAP_FACTORS):
            name = f"seismic, query_cut {cut}, heap_factor {factor}"
            asks[name] = _seismic_ask(rival, rows, k, cut, factor)

    def multiply(query: int) -> IntArray:
        products = (rows[query] @ points.T).toarray()[0]
        nearest = np.argpartition(-products, k)[:k]
        order: IntArray = nearest[np.argsort(-products[nearest], kind="stable")]
        return order

    asks["scipy, one product"] = multiply
    return asks


def _divgrpc_ask(
    index: Index, queries: Sequence[sparse.csr_array], k: int, settings: QueryOptions
) -> Ask:
    def ask(query: int) -> IntArray:
        parameters: QueryOptions = {**settings, "k": k}
        rows: IntArray = index.query(queries[query], **parameters).ids[0]
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
    queries: Sequence[sparse.csr_array],
    k: int,
    query_cut: int,
    heap_factor: float,
) -> Ask:
    """Return a search of the lists of the query's `query_cut` largest values."""
    import seismic

    kind = seismic.get_seismic_string()
    packed = [
        (np.array([str(column) for column in row.indices], dtype=kind), row.data.astype(np.float32))
        for row in queries
    ]

    def ask(query: int) -> IntArray:
        columns, values = packed[query]
        results = index.search(
            "query", columns, values, k=k, query_cut=query_cut, heap_factor=heap_factor
        )
        rows = np.full(k, -1)
        rows[: len(results)] = [int(result[2]) for result in results]
        return rows

    return ask
