"""Benchmark of filtered queries beside faiss and Qdrant."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from benchmarks.harness import libraries, truth
from benchmarks.harness.datasets import Manifold
from benchmarks.harness.programs import server
from benchmarks.harness.runner import (
    Ask,
    Option,
    Options,
    Output,
    Row,
    Table,
    benchmark,
    take_turns,
)
from divgrpc.index import Index
from divgrpc.types import FloatArray, IntArray
from divgrpc.types.filters import Field
from divgrpc_client import Client

_K: Final = 10
_RECALL: Final = 0.95
_POOL: Final = 4_000
# Efforts in ascending order: candidates_limit (0 is the default), nprobe and efSearch.
_CANDIDATES: Final = (10, 20, 50, 100, 0)
_PROBES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024)
_LINKS: Final = (16, 32, 64, 128, 256, 512, 1_024, 2_048, 4_096)
# The build of more points would take Qdrant Edge more than ten minutes on one core.
_QDRANT_POINTS_MAX: Final = 200_000
_UPSERTED_ROWS: Final = 1_000
# Maximum seconds for the answers of a contestant to the queries of a block.
_PATIENCE_SECONDS: Final = 4.0

Flags = npt.NDArray[np.bool_]


class Subject(NamedTuple):
    """Queries with a filter, and their nearest points among those that pass.

    where: how the points that pass lie: at random, or near to or far from the queries.
    attribute, bound: the filter is `Field(attribute) < bound`.
    flags: (n,) whether a point passes.
    queries, near: (nq, d) and the rows (nq, k) of the nearest points that pass.
    tuning, near_tuning: the same for the choice of efforts.
    """

    where: str
    attribute: str
    bound: float
    flags: Flags
    queries: FloatArray
    near: IntArray
    tuning: FloatArray
    near_tuning: IntArray


class Contestant(NamedTuple):
    """An index with a ladder of efforts; `ask` answers one query at an effort."""

    name: str
    efforts: Sequence[int]
    ask: Callable[[Subject, FloatArray, int], IntArray]


@benchmark(
    "filters",
    long=True,
    points=Option([200_000, 1_000_000], "points of 128 dimensions"),
    passing=Option([0.5, 0.1, 0.01, 0.001], "shares of the points that pass"),
    queries=Option(80, "queries asked"),
)
def filter_times(options: Options) -> Iterator[Output]:
    """Time of the nearest ten that pass a filter, compared with faiss and Qdrant.

    The points that pass lie at random, or in one half-space in which the queries lie ("near") or
    from which the queries are farthest ("far"). Each index has the least effort that reaches a
    recall of .95 with other queries: `candidates_limit` for divgrpc, nprobe and efSearch for faiss,
    and hnsw_ef for Qdrant Edge, the engine of Qdrant in this process. "Default" is divgrpc without
    `candidates_limit`. The filter of a divgrpc query is compiled once and cached, and the bitmap of
    faiss' selectors is made before. Qdrant has payload indexes. All take turns on one thread.
    """
    for count in options.points:
        with TemporaryDirectory(prefix="divgrpc-bench-") as temporary:
            yield from _of_size(count, options.passing, options.queries, Path(temporary))


@benchmark(
    "wire-filters",
    long=True,
    points=Option([200_000], "points of 128 dimensions"),
    passing=Option([0.5, 0.1, 0.01, 0.001], "shares of the points that pass"),
    queries=Option(80, "queries asked"),
)
def wire_filter_times(options: Options) -> Iterator[Output]:
    """Time of the same queries over gRPC, compared with Qdrant in this process.

    The client and the server of divgrpc run on the same machine. No server of Qdrant can be
    installed from PyPI, so its engine answers without a wire.
    """
    for count in options.points:
        data = _Data.of(count)
        with TemporaryDirectory(prefix="divgrpc-bench-") as temporary:
            folder = Path(temporary)
            index = data.build(path=folder / "data" / "filtered")
            title = f"Nearest {_K} of {count:,} points with a filter, over gRPC"
            yield Table(title, data.facts(index))
            contestants = [Contestant("divgrpc in process", _CANDIDATES, partial(_ours, index))]
            if libraries.missing("qdrant_edge"):
                yield "Qdrant Edge is not installed."
            else:
                contestants.append(_qdrant(data.points, data.columns, folder / "qdrant"))
            with server(folder, 1) as program, Client(program.address, timeout=30) as client:
                ask = partial(_over_grpc, client, index.info.name)
                contestants = [Contestant("divgrpc", _CANDIDATES, ask), *contestants]
                yield from _all_rows(data, contestants, options.passing, options.queries)


class _Data(NamedTuple):
    """The data of a run.

    points: (n, d). columns: two attributes of the points, `random` and `place`, each (n,).
    direction: (d,); the attribute `place` is the product of a point with it.
    pool: queries (nq, d). rng: draws what else is random.
    """

    points: FloatArray
    columns: dict[str, npt.NDArray[np.float64]]
    direction: FloatArray
    pool: FloatArray
    rng: np.random.Generator

    @classmethod
    def of(cls, count: int) -> "_Data":
        """Draw the points."""
        manifold = Manifold.of()
        points, pool = manifold.points(count), manifold.queries(_POOL)
        rng = np.random.default_rng(4)
        direction: FloatArray = rng.standard_normal((points.shape[1],)).astype(np.float32)
        columns = {
            "random": rng.random(size=(count,)),
            "place": np.asarray(points @ direction, float),
        }
        return cls(points, columns, direction, pool, rng)

    def build(self, path: Path | None = None) -> Index:
        """Build an index of the points."""
        return Index.build(self.points, attributes=self.columns, target_recall=_RECALL, path=path)

    def facts(self, index: Index) -> dict[str, Any]:
        """Describe the points and their index."""
        count, dims = self.points.shape
        return {
            "data": f"synthetic points, {count:,} x {dims}",
            "index": index.info.summary,
        }


def _of_size(count: int, shares: Sequence[float], n_queries: int, folder: Path) -> Iterator[Output]:
    data = _Data.of(count)
    index = data.build()
    yield Table(f"Nearest {_K} of {count:,} points with a filter", data.facts(index))
    contestants = [Contestant("divgrpc", _CANDIDATES, partial(_ours, index))]
    if not libraries.missing("faiss"):
        contestants += _faiss(data.points)
    if libraries.missing("qdrant_edge"):
        yield "Qdrant Edge is not installed."
    elif count > _QDRANT_POINTS_MAX:
        yield f"Qdrant Edge is left out above {_QDRANT_POINTS_MAX:,} points, for its build time."
    else:
        contestants.append(_qdrant(data.points, data.columns, folder / "qdrant"))
    yield from _all_rows(data, contestants, shares, n_queries)


def _all_rows(
    data: _Data, contestants: Sequence[Contestant], shares: Sequence[float], n_queries: int
) -> Iterator[Row]:
    points, pool, rng = data.points, data.pool, data.rng
    order = np.argsort(pool @ data.direction)
    places = {"random": np.arange(2 * n_queries), "near": order, "far": order[::-1]}
    for where, rows in places.items():
        attribute = "random" if where == "random" else "place"
        values = data.columns[attribute]
        for share in shares:
            bound = float(np.quantile(values, share))
            flags = values < bound
            targets = pool[rows[: 2 * n_queries]][rng.permutation(2 * n_queries)]
            parts = targets[:n_queries], targets[n_queries:]
            members = np.flatnonzero(flags)
            near = [members[truth.nearest(points[members], part, _K)[0]] for part in parts]
            subject = Subject(where, attribute, bound, flags, parts[0], near[0], parts[1], near[1])
            yield from _rows(subject, contestants, share)


def _rows(subject: Subject, contestants: Sequence[Contestant], share: float) -> Iterator[Row]:
    with threadpool_limits(1):
        asks: dict[str, Ask] = {}
        efforts: dict[str, str] = {}
        for contestant in contestants:
            effort, reached = _effort(subject, contestant)
            asks[contestant.name] = partial(_asked, subject, contestant, effort)
            efforts[contestant.name] = f"{effort or 'default'}" + ("" if reached else ", too few")
        default = contestants[0]._replace(name="divgrpc, default")
        asks[default.name], efforts[default.name] = partial(_asked, subject, default, 0), "default"
        times = take_turns(asks, len(subject.queries), _K, _PATIENCE_SECONDS)
    for name, timed in times.items():
        row: dict[str, Any] = {"where": subject.where, "passing": f"{share:.1%}", "index": name}
        row |= {"effort": efforts[name], "us": timed.microseconds}
        row["recall"] = truth.recall(timed.rows, subject.near)
        if not name.startswith("divgrpc"):
            row["times as fast"], row["95 %"] = timed.ratio(times["divgrpc"])
        yield row


def _asked(subject: Subject, contestant: Contestant, effort: int, query: int) -> IntArray:
    return contestant.ask(subject, subject.queries[query], effort)


def _effort(subject: Subject, contestant: Contestant) -> tuple[int, bool]:
    """Return the least effort that reaches the recall, and whether one does."""
    effort = contestant.efforts[-1]
    for effort in contestant.efforts:
        answers = [contestant.ask(subject, query, effort) for query in subject.tuning]
        if truth.recall(answers, subject.near_tuning) >= _RECALL:
            return effort, True
    return effort, False


def _ours(index: Index, subject: Subject, query: FloatArray, effort: int) -> IntArray:
    ids: IntArray = index.query(query, **_options(subject, effort)).ids[0]
    return ids


def _over_grpc(
    client: Client, name: str, subject: Subject, query: FloatArray, effort: int
) -> IntArray:
    ids: IntArray = client.query(name, query, **_options(subject, effort)).ids[0]
    return ids


def _options(subject: Subject, effort: int) -> dict[str, Any]:
    limit = {"candidates_limit": effort} if effort else {}
    condition = Field(subject.attribute) < subject.bound
    return {"k": _K, "selector": "nearest", "filter": condition, **limit}


def _faiss(points: FloatArray) -> list[Contestant]:
    faiss: Any = import_module("faiss")
    dims = points.shape[1]
    partition = faiss.index_factory(dims, "IVF1024,Flat")
    partition.train(points[:200_000])
    partition.add(points)
    graph = faiss.index_factory(dims, "HNSW16,Flat")
    graph.hnsw.efConstruction = 100
    graph.add(points)
    faiss.omp_set_num_threads(1)
    bitmaps: dict[int, tuple[Any, Any]] = {}

    def selector(subject: Subject) -> Any:  # noqa: ANN401  # faiss has no types
        key = id(subject.flags)
        if key not in bitmaps:
            bitmaps.clear()
            bits = np.packbits(subject.flags, bitorder="little")
            bitmaps[key] = (faiss.IDSelectorBitmap(bits), bits)
        return bitmaps[key][0]

    def search(index: Any, params: Any, query: FloatArray) -> IntArray:  # noqa: ANN401  # as above
        rows: IntArray = index.search(query[np.newaxis], _K, params=params)[1][0]
        return rows

    def ask_partition(subject: Subject, query: FloatArray, effort: int) -> IntArray:
        params = faiss.SearchParametersIVF(sel=selector(subject), nprobe=effort)
        return search(partition, params, query)

    def ask_graph(subject: Subject, query: FloatArray, effort: int) -> IntArray:
        params = faiss.SearchParametersHNSW(sel=selector(subject), efSearch=effort)
        return search(graph, params, query)

    return [
        Contestant("faiss IVF1024,Flat", _PROBES, ask_partition),
        Contestant("faiss HNSW16", _LINKS, ask_graph),
    ]


def _qdrant(
    points: FloatArray, columns: Mapping[str, npt.NDArray[np.float64]], folder: Path
) -> Contestant:
    qdrant: Any = import_module("qdrant_edge")
    graph = qdrant.HnswIndexConfig(m=16, ef_construct=100, full_scan_threshold=10_000)
    vectors = qdrant.EdgeVectorParams(
        size=points.shape[1], distance=qdrant.Distance.Dot, hnsw_config=graph
    )
    optimizers = qdrant.EdgeOptimizersConfig(default_segment_number=1, indexing_threshold=1_000)
    config = qdrant.EdgeConfig(vectors=vectors, optimizers=optimizers, wal_enabled=False)
    folder.mkdir()
    shard = qdrant.EdgeShard.create(str(folder), config)
    for start in range(0, len(points), _UPSERTED_ROWS):
        rows = range(start, min(len(points), start + _UPSERTED_ROWS))
        batch = [
            qdrant.Point(
                row, points[row].tolist(), {n: float(values[row]) for n, values in columns.items()}
            )
            for row in rows
        ]
        shard.update(qdrant.UpdateOperation.upsert_points(batch))
    for name in columns:
        kind = qdrant.PayloadSchemaType.Float
        shard.update(qdrant.UpdateOperation.create_field_index(name, kind))
    shard.optimize()

    def ask(subject: Subject, query: FloatArray, effort: int) -> IntArray:
        condition = qdrant.FieldCondition(
            subject.attribute, range=qdrant.RangeFloat(lt=subject.bound)
        )
        request = qdrant.QueryRequest(
            limit=_K,
            query=qdrant.Query.Nearest(query.tolist()),
            filter=qdrant.Filter(must=[condition]),
            params=qdrant.SearchParams(hnsw_ef=effort),
        )
        rows = [point.id for point in shard.query(request)]
        return np.array([*rows, *[-1] * (_K - len(rows))])

    return Contestant("Qdrant Edge", _LINKS, ask)
