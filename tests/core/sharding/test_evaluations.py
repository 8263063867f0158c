"""Evaluations over shards have the figures of one index, but for times."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from threading import Lock
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from divgrpc import Index
from divgrpc.errors import DivgrpcError, LimitExceededError, UnfitIndexError
from divgrpc.evaluation import Grid, evaluate
from divgrpc.evaluation.grid import LabelGrid
from divgrpc.evaluation.label_running import evaluate_labels, study_labels
from divgrpc.evaluation.labels import LabelTask
from divgrpc.evaluation.queries import Relevance, study_queries
from divgrpc.evaluation.study import Task
from divgrpc.labels.model import as_labels
from divgrpc.sharding import gathering_engine, layouts
from divgrpc.sharding.messages import divide, join
from divgrpc.sharding.rounds import Round
from divgrpc.sharding.runner import Replies, ShardRunner
from divgrpc.types import EvaluateLabelRow, EvaluateRow, HashFamily, IntArray, Metric, Points
from divgrpc.types.filters import Range
from support.data.divided_indexes import DividedIndex
from support.data.evaluation_rows import assert_same_rows
from support.data.served_index import random_points

N, DIMS = 300, 12
COUNTS = (1, 2, 3, 7)
QUERIES = random_points(17, dims=DIMS, seed=9)
# Category 2 has a single sub-topic, and some points have no category or no sub-topic.
CATEGORIES = np.arange(N) % 4 - 1
SUBTOPICS = np.where(CATEGORIES == 2, 7, np.arange(N) // 4 % 4 - 1)
QUERY_CATEGORIES = np.arange(17) % 3
AGES = np.arange(N) % 11
GRID = Grid(
    selectors=("nearest", "greedy", "dpp"),
    searches=("scan", "exact", "tables"),
    limits=((60, 30),),
    diversities=(0.2, 0.7),
    ks=(5,),
    seed=3,
)
FEW = Grid(selectors=("greedy",), limits=((None, None),), diversities=(0.4,), ks=(5, 305))


def an_index(
    metric: Metric = "cosine",
    kind: Points = "dense",
    family: HashFamily = "auto",
    *,
    texts: bool = False,
    **options: Any,  # noqa: ANN401  # of `Index.build`
) -> Index:
    points = random_points(N, dims=DIMS)
    points[np.abs(points) < 0.4] = 0
    ids = [f"point {number}" for number in range(N)] if texts else np.arange(N)[::-1] * 3
    annotations: dict[str, Any] = {
        "categories": CATEGORIES,
        "subtopics": SUBTOPICS,
        "attributes": {"age": AGES},
    }
    return Index.build(
        points if kind == "dense" else sparse.csr_array(points),
        ids=ids, metric=metric, hash_family=family, seed=1, **(annotations | options),
    )  # fmt: skip


class Pieces:
    """An index on shards, and the rounds that were asked."""

    def __init__(self, index: Index, shards: int, division: str = "hash") -> None:
        self.divided = DividedIndex(index.engine, shards, division)
        self.rounds: list[Round] = []
        self._lock = Lock()
        self.engine = ShardRunner(self.divided.router, self._ask)

    def _ask(self, step: Round) -> Replies:
        # One thread at a time may use a shard.
        with self._lock:
            self.rounds.append(step)
            messages, shards = step.messages.items(), self.divided.shards
            replies = {shard: shards[shard].ask(step.name, part) for shard, part in messages}
            return Replies(replies, 0.25)

    def evaluate(self, queries: Any, **options: Any) -> list[EvaluateRow]:  # noqa: ANN401
        """Evaluate over the shards."""
        index: Any = SimpleNamespace(engine=self.engine)
        return list(evaluate(index, queries, **options))


def check(
    index: Index,
    pieces: Pieces,
    queries: Any = QUERIES,  # noqa: ANN401
    *,
    is_refused: bool = False,
    **options: Any,  # noqa: ANN401
) -> None:
    """Compare an evaluation, or the error with which it is refused, with that of the index."""
    options = {"per_query": True, "folds": 3, "grid": FEW} | options

    def outcome(call: Callable[..., Iterable[EvaluateRow]]) -> list[EvaluateRow] | str:
        try:
            return list(call(queries, **options))
        except DivgrpcError as error:
            return f"{type(error).__name__}: {error}"

    rows, whole = outcome(pieces.evaluate), outcome(partial(evaluate, index))
    assert isinstance(whole, str) == is_refused, whole
    if isinstance(rows, str) or isinstance(whole, str):
        assert rows == whole
    else:
        assert_same_rows(rows, whole)


@pytest.mark.parametrize("shards", COUNTS)
@pytest.mark.parametrize(
    ("metric", "kind", "family"),
    [
        ("cosine", "dense", "lsh_div"),
        ("euclidean", "dense", "cells"),
        ("inner_product", "sparse", "lsh_div"),
    ],
)
def test_every_search_and_selector(
    shards: int, metric: Metric, kind: Points, family: HashFamily
) -> None:
    index = an_index(metric, kind, family)
    check(index, Pieces(index, shards), grid=GRID, categories=QUERY_CATEGORIES)


@pytest.mark.parametrize("division", ["runs", "direction", "skewed", "on two"])
@pytest.mark.parametrize("texts", [False, True])
def test_any_division_with_any_relevance(division: str, texts: bool) -> None:
    """Most shards of one division are empty."""
    index = an_index(texts=texts)
    pieces = Pieces(index, 7, division)
    check(index, pieces, categories=QUERY_CATEGORIES, filter=Range("age", lt=6))
    rows = [np.flatnonzero(category == CATEGORIES)[:40] for category in QUERY_CATEGORIES.tolist()]
    lists = [[f"point {row}" for row in part] if texts else (N - 1 - part) * 3 for part in rows]
    check(index, pieces, relevant=lists)
    check(
        index, pieces, relevant=lists, filter=Range("age", lt=6), groups=QUERY_CATEGORIES, folds=2
    )
    check(index, pieces, sparse.csr_array(QUERIES), relevant=lists, folds=0)


def test_sparse_queries_of_sparse_points() -> None:
    index = an_index("cosine", "sparse")
    queries = sparse.csr_array(np.where(np.abs(QUERIES) < 0.5, 0, QUERIES))
    check(index, Pieces(index, 3), queries, categories=QUERY_CATEGORIES)


@pytest.mark.parametrize(
    "options",
    [
        {"categories": np.full(17, 9)},
        {"categories": np.full(17, 0), "filter": Range("age", gt=100)},
        {"relevant": [[3]] * 16 + [[4]]},
        {"relevant": [[3]] * 16 + [[-1]]},
        {"relevant": [["three"]] * 17},
        {"relevant": [[3]] * 17, "filter": Range("age", gt=100)},
        {"categories": QUERY_CATEGORIES, "filter": Range("size", gt=100)},
        {"categories": np.full(17, 2), "set_default": True, "grid": replace(FEW, ks=(5,))},
    ],
)
@pytest.mark.parametrize("has_categories", [True, False])
def test_what_one_index_refuses(options: dict[str, Any], has_categories: bool) -> None:
    """The error has the same words."""
    absent: dict[str, Any] = {} if has_categories else {"categories": None, "subtopics": None}
    index = an_index(**absent)
    check(index, Pieces(index, 3), is_refused=True, **options)


def test_more_probes_than_buckets() -> None:
    index, grid = an_index(), replace(FEW, searches=("tables",), n_probes=(10**6,))
    check(index, Pieces(index, 3), categories=QUERY_CATEGORIES, grid=grid)


def test_queries_that_find_nothing() -> None:
    index = an_index()
    # No point is so near.
    grid = Grid(selectors=("nearest",), searches=("tables",), limits=((1, 1),), ks=(1,))
    check(index, Pieces(index, 3), -100 * QUERIES, categories=QUERY_CATEGORIES, grid=grid)


def test_several_threads_and_the_time_of_shards() -> None:
    index = an_index()
    pieces = Pieces(index, 3)
    relevance = Relevance.of(QUERY_CATEGORIES, None, len(QUERIES))
    study = study_queries(pieces.engine, QUERIES, relevance, Task(grid=GRID, rows=len(QUERIES)))
    with ThreadPoolExecutor(3) as threads:
        for work in [threads.submit(list, study.work()) for _ in range(3)]:
            work.result()
    rows = study.rows()
    assert_same_rows(rows, list(evaluate(index, QUERIES, categories=QUERY_CATEGORIES, grid=GRID)))
    # Each round took .25 seconds, and each block at least one round.
    assert min(row.microseconds.p50 for row in rows) >= 0.25e6 / len(QUERIES)


def test_a_block_asks_about_all_of_its_queries_at_once() -> None:
    pieces = Pieces(an_index(), 3)
    pieces.evaluate(
        QUERIES, categories=QUERY_CATEGORIES, grid=Grid(selectors=("nearest",)), folds=0
    )
    names = [step.name for step in pieces.rounds]
    assert names[0] == "topics"
    # Two blocks of 16 and one queries: points, their categories, their vectors.
    assert names.count("topics") == 1
    assert [names.count(name) for name in ("find", "categories", "get")] == [2, 2, 2]


def test_blocks_are_as_small_as_shards_need(monkeypatch: pytest.MonkeyPatch) -> None:
    """The points that shards send at once fit into memory, and so do the messages to them."""
    index = an_index()
    pieces, grid = Pieces(index, 3), Grid(selectors=("greedy",), limits=((0, 30),))
    for module, name, size in (
        ("divgrpc.sharding.finding", "VECTOR_BYTES_MAX", 4 * DIMS * 30 * 3),
        (gathering_engine.__name__, "_MESSAGE_BYTES_MAX", 3_000),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(f"{module}.{name}", size)
            relevance = Relevance.of(QUERY_CATEGORIES, None, len(QUERIES))
            task = Task(grid=grid, rows=len(QUERIES))
            study = study_queries(pieces.engine, QUERIES, relevance, task)
            assert max(study.resolution.block_rows) <= 3
            for _ in study.work():
                pass


def test_a_query_of_too_many_candidates_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("divgrpc.sharding.finding.VECTOR_BYTES_MAX", 4 * DIMS * 30)
    pieces = Pieces(an_index(), 3)
    grid = Grid(selectors=("greedy",), searches=("exact",), limits=((0, 31),))
    with pytest.raises(LimitExceededError, match="candidates_limit must be at most 30"):
        pieces.evaluate(QUERIES, categories=QUERY_CATEGORIES, grid=grid)


# Labels.

SETS = sparse.csr_array(np.random.default_rng(2).random((N, 30)) < 0.1)
TRUTH = sparse.csr_array(np.random.default_rng(4).random((len(QUERIES), 30)) < 0.2)
EDGES = [(30, 31), (30, 32), (30, 33), *((31 + label % 3, label) for label in range(30))]
LABEL_GRID = LabelGrid(
    modes=("embedding", "neighbour_vote"),
    selectors=("nearest", "greedy", "hierarchy"),
    searches=("scan", "exact"),
    limits=((20, 15),),
    thresholds=(None, 0.3),
    diversities=(0.3,),
    top_ks=(4,),
    neighbours=6,
    seed=2,
)


def label_rows(index: Any, truth: Any = TRUTH) -> list[EvaluateLabelRow]:  # noqa: ANN401
    task = LabelTask(grid=LABEL_GRID, rows=len(QUERIES), folds=3, per_row=True)
    return list(study_labels(index, QUERIES, as_labels(truth, len(QUERIES)), task).run(None))


def without_scored(row: EvaluateLabelRow) -> EvaluateLabelRow:
    """Return the row without the number of points that were scored, which differs on shards."""
    values = {name: values for name, values in row.values.items() if name != "scored"}
    return replace(row, scored=0, values=values)


@pytest.mark.parametrize("shards", COUNTS)
@pytest.mark.parametrize("texts", [False, True])
def test_labels(shards: int, texts: bool) -> None:
    index = an_index(texts=texts, labels=SETS, label_model="leml", hierarchy=EDGES)
    whole = label_rows(index.engine)
    rows = label_rows(Pieces(index, shards, "on two" if shards == 7 else "hash").engine)
    assert_same_rows(*([without_scored(row) for row in part] for part in (rows, whole)))


def test_labels_that_do_not_fit() -> None:
    with pytest.raises(UnfitIndexError, match="has no labels"):
        label_rows(Pieces(an_index(), 2).engine)
    index = an_index(labels=SETS, label_model="leml", hierarchy=EDGES)
    with pytest.raises(DivgrpcError) as whole:
        list(evaluate_labels(index, QUERIES, TRUTH[:, :20], grid=LABEL_GRID))
    with pytest.raises(type(whole.value)) as divided:
        label_rows(Pieces(index, 2).engine, truth=TRUTH[:, :20])
    assert str(divided.value) == str(whole.value)


def label_counts(pieces: Pieces) -> IntArray | None:
    return pieces.engine.run(lambda engine: engine.label_counts)


def test_label_counts() -> None:
    index = an_index(labels=SETS, label_model="leml")
    counts = label_counts(Pieces(index, 3))
    assert counts is not None
    assert counts.tolist() == SETS.sum(axis=0).tolist()
    assert label_counts(Pieces(an_index(), 3)) is None


def test_a_shard_counts_the_labels_of_points_that_pass() -> None:
    index = an_index(labels=SETS, label_model="leml")
    pieces = Pieces(index, 1)
    text = np.frombuffer(b'[[["range", "age", [null, null, 3, null]]], []]', np.uint8)
    message = join([layouts.LABELS_REQUEST.pack({"filter": text})])
    (reply,) = divide(pieces.divided.shards[0].ask("labels", message))
    columns = layouts.LABELS_REPLY.unpack(reply)
    expected = SETS[AGES < 3].sum(axis=0)
    assert columns["labels"].tolist() == np.flatnonzero(expected).tolist()
    assert columns["counts"].tolist() == expected[expected > 0].tolist()
