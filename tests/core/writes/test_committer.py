"""Writes of several threads and processes, repeated writes, and writes that fail."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from divgrpc import Collection, Index
from divgrpc.errors import (
    ConditionFailedError,
    IndexChangedError,
    InvalidArgumentError,
    LimitExceededError,
    StorageInUseError,
)
from divgrpc.parameters.limits import LIMITS
from divgrpc.storage.layouts import LayoutInfo
from divgrpc.storage.published import bytes_in
from divgrpc.types import Durability, Points, Progress, QueryDefault, QueryResult
from divgrpc.types.filters import Field
from divgrpc.writes import backlog, layout
from divgrpc.writes import log as log_module
from support.data.written_points import (
    DIMS,
    Model,
    a_collection,
    check_exact,
    check_points,
    columns_of,
    drawn_points,
    fresh,
    passing,
    same_answers,
    upsert,
)
from support.processes.running_server import eventually

POINTS = drawn_points(600, 3)
OLD: Model = dict(enumerate(POINTS[:40]))
QUERIES = np.random.default_rng(4).normal(size=(2, DIMS)).astype(np.float32)
EXACT: Any = {"search": "exact", "keep_duplicates": True, "k": 6}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "points"


@pytest.fixture
def collection(path: Path) -> Iterator[Collection]:
    with closing(a_collection(path, OLD)) as opened:
        yield opened


class _History:
    """The points of a collection after each write; threads write through it."""

    def __init__(self, collection: Collection, model: Model) -> None:
        self.collection = collection
        self.writes: dict[int, Model | list[int]] = {}
        self._first = dict(model)
        self._lock = threading.Lock()

    def upsert(self, points: Model) -> int:
        return self._record(upsert(self.collection, points), points)

    def delete(self, ids: list[int]) -> int:
        return self._record(self.collection.delete(ids).sequence, ids)

    def _record(self, sequence: int, write: Model | list[int]) -> int:
        with self._lock:
            # Two writes never have the same number.
            assert self.writes.setdefault(sequence, write) is write
        return sequence

    def at(self, sequence: int) -> Model:
        """Return the points at a sequence number."""
        model = dict(self._first)
        for number in range(1, sequence + 1):
            write = self.writes[number]
            if isinstance(write, dict):
                model |= write
            else:
                model = {name: point for name, point in model.items() if name not in write}
        return model


class _Readers:
    """Threads that query while others write."""

    def __init__(self, collection: Collection) -> None:
        self.results: list[tuple[bool, QueryResult]] = []
        self.done = threading.Event()
        self._collection = collection

    def query(self, *, is_filtered: bool) -> QueryResult:
        condition = SMALL if is_filtered else None
        result = self._collection.query(QUERIES, filter=condition, **EXACT)
        self.results.append((is_filtered, result))
        return result

    def query_until_done(self) -> None:
        last = 0
        while not self.done.is_set():
            for is_filtered in (False, True):
                result = self.query(is_filtered=is_filtered)
                assert result.sequence >= last
                last = result.sequence


def write_randomly(history: _History, readers: _Readers, thread: int) -> None:
    rng = np.random.default_rng(thread)
    for _ in range(WRITES):
        names = rng.choice(60, 1 + rng.integers(4), replace=False).tolist()
        points = {name: POINTS[rng.integers(len(POINTS))] for name in names}
        sequence = history.upsert(points)
        # A thread sees its own writes.
        assert readers.query(is_filtered=False).sequence >= sequence
        # No other thread writes this id, so each deletion is a write.
        name = 1_000 + thread
        history.upsert({name: points[names[0]]})
        history.delete([name])


SMALL = Field("size") < 6
WRITES, WRITERS = 25, 3


@pytest.mark.parametrize("durability", ["sync", "interval", "process"])
@pytest.mark.parametrize("merges", [False, True])
def test_each_result_shows_the_points_at_its_sequence(
    path: Path, monkeypatch: pytest.MonkeyPatch, durability: Durability, *, merges: bool
) -> None:
    """Threads write and query, while other writes are merged."""
    if merges:
        monkeypatch.setattr(backlog, "_MERGED_ROWS_MIN", 10)
        monkeypatch.setattr(layout, "_LATER_ROWS_MIN", 25)
        monkeypatch.setattr(layout, "_LATER_ROWS_MAX", 25)
    a_collection(path, OLD).close()
    collection = Collection.open(path, durability=durability)
    history, readers = _History(collection, OLD), _Readers(collection)
    with ThreadPoolExecutor(WRITERS + 2) as threads:
        reading = [threads.submit(readers.query_until_done) for _ in range(2)]
        writing = [
            threads.submit(write_randomly, history, readers, number) for number in range(WRITERS)
        ]
        wait(writing)
        readers.done.set()
    for action in (*reading, *writing):
        action.result()
    collection.close()
    assert sorted(history.writes) == [*range(1, 3 * WRITES * WRITERS + 1)]
    check_history(history, readers.results)
    with Collection.open(path) as again:
        assert again.sequence == len(history.writes)
        check_exact(again, history.at(again.sequence), "cosine", QUERIES)


def check_history(history: _History, results: list[tuple[bool, QueryResult]]) -> None:
    """Check results of each kind with an index of the points at their sequence numbers."""
    for is_filtered in (False, True):
        row = {r.sequence: r for filtered, r in results if filtered == is_filtered}
        assert len(row) > 1
        for sequence in list(row)[:: max(1, len(row) // 12)]:
            model = history.at(sequence)
            if is_filtered:
                model = passing(model, lambda point: point.size is not None and point.size < 6)
            truth = fresh(model, "cosine").query(QUERIES, **EXACT)
            assert same_answers(row[sequence], truth)


# Conditions and repeated writes.


def check_names_are_taken(collection: Collection) -> None:
    """Other writes with the names of the writes of the test below are refused."""
    columns = columns_of(POINTS[50:52])
    other_writes: list[Callable[[], object]] = [
        lambda: collection.upsert([3, 501], write_id="a", **columns),
        lambda: collection.upsert([3, 500], write_id="a", **columns_of(POINTS[51:53])),
        lambda: collection.upsert([3, 500], write_id="a", mode="update_only", **columns),
        lambda: collection.upsert([3, 500], write_id="a", **columns | {"payloads": [b"", b"z"]}),
        lambda: collection.upsert([3, 500], write_id="a"),
        lambda: collection.delete([3, 500], write_id="a"),
        lambda: collection.delete([3, 5], write_id="c"),
        lambda: collection.delete([3, 5, 900], filter=SMALL, write_id="c"),
    ]
    for write in other_writes:
        with pytest.raises(ConditionFailedError, match="and other contents; give") as fault:
            write()
        assert fault.value.field == "write_id"


def test_a_named_write_is_made_once(path: Path) -> None:
    with a_collection(path, OLD) as collection:
        first = collection.upsert([3, 500], write_id="a", **columns_of(POINTS[50:52]))
        no_rows = collection.delete([700], write_id="b")
        deleted = collection.delete([3, 5, 900], write_id="c")
        assert (first.rows, no_rows.rows, deleted.rows) == (2, 0, 2)
        model = {n: p for n, p in (OLD | {500: POINTS[51]}).items() if n not in {3, 5}}
        upsert(collection, {700: POINTS[60]})
        model[700] = POINTS[60]
        for number in range(3):
            assert collection.upsert([3, 500], write_id="a", **columns_of(POINTS[50:52])) == first
            assert collection.delete([700], write_id="b") == no_rows
            assert collection.delete([3, 5, 900], write_id="c", if_sequence=77) == deleted
            check_names_are_taken(collection)
            check_points(collection, model)
            if number == 0:
                collection.compact()
                collection.close()
                collection = Collection.open(path)  # noqa: PLW2901  # goes on
            elif number == 1:
                upsert(collection, {1: POINTS[80]})
                model[1] = POINTS[80]
                collection.close()
                collection = Collection.open(path)  # noqa: PLW2901
        collection.close()


def test_only_the_last_names_are_remembered(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("divgrpc.writes.state.REQUESTS_MAX", 3)
    sequences = [
        collection.upsert([100 + n], write_id=f"r{n}", **columns_of(POINTS[n : n + 1])).sequence
        for n in range(5)
    ]
    for n in (4, 3, 2):
        columns = columns_of(POINTS[n : n + 1])
        again = collection.upsert([100 + n], write_id=f"r{n}", **columns)
        assert (again.sequence, again.rows) == (sequences[n], 1)
    assert collection.count() == len(OLD) + 5
    assert collection.delete([1], write_id="r1").sequence == sequences[-1] + 1


def test_a_write_on_condition_of_a_sequence(collection: Collection) -> None:
    assert upsert(collection, {1: POINTS[90]}, if_sequence=0) == 1
    for wrong in (0, 2, -1):
        with pytest.raises(ConditionFailedError, match="the last write is 1") as fault:
            upsert(collection, {2: POINTS[90]}, if_sequence=wrong)
        assert fault.value.field == "if_sequence"
        with pytest.raises(ConditionFailedError, match="the last write is 1"):
            collection.delete([2], if_sequence=wrong)
    assert collection.delete([2], if_sequence=1).sequence == 2
    check_points(collection, {n: p for n, p in (OLD | {1: POINTS[90]}).items() if n != 2})


def test_of_several_writes_on_one_condition_one_is_made(collection: Collection) -> None:
    def write(number: int) -> int:
        try:
            return upsert(collection, {100 + number: POINTS[number]}, if_sequence=0)
        except ConditionFailedError:
            return 0

    with ThreadPoolExecutor(6) as threads:
        assert sorted(threads.map(write, range(6))) == [0, 0, 0, 0, 0, 1]
    assert collection.count() == len(OLD) + 1


# Several openers.


def test_one_opener_may_write(path: Path) -> None:
    with a_collection(path, OLD) as collection:
        for _ in range(2):
            with pytest.raises(StorageInUseError, match="another process writes"):
                Collection.open(path)
        upsert(collection, {1: POINTS[50]})
        beside = Index.open(path)
        upsert(collection, {1: POINTS[51]})
        check_points(beside, OLD | {1: POINTS[50]})
    with Collection.open(path) as again:
        check_points(again, OLD | {1: POINTS[51]})


def test_a_closed_collection_is_not_written_to(path: Path) -> None:
    collection = a_collection(path, OLD)
    upsert(collection, {1: POINTS[50]})
    for _ in range(2):
        collection.close()
    with Collection.open(path) as again:
        for write in (collection.compact, lambda: collection.delete([1])):
            with pytest.raises(StorageInUseError, match="is closed"):
                write()
        check_points(collection, OLD | {1: POINTS[50]})
        check_points(again, OLD | {1: POINTS[50]})


def test_close_waits_for_a_merge(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collection = a_collection(path, OLD)
    upsert(collection, {1: POINTS[50]})
    began, may_end = threading.Event(), threading.Event()
    write_layout = layout.WritesFolder.merge

    def slow(*arguments: Any) -> LayoutInfo:  # noqa: ANN401  # those of `merge`
        began.set()
        may_end.wait()
        return write_layout(*arguments)

    monkeypatch.setattr(layout.WritesFolder, "merge", slow)
    with ThreadPoolExecutor(2) as threads:
        merging = threads.submit(collection.compact)
        began.wait()
        # Writes and queries go on.
        upsert(collection, {2: POINTS[51]})
        closing_it = threads.submit(collection.close)
        wait([closing_it], timeout=0.2)
        is_closed_early = closing_it.done()
        may_end.set()
        assert merging.result()
        closing_it.result()
    assert not is_closed_early
    with Collection.open(path) as again:
        check_points(again, OLD | {1: POINTS[50], 2: POINTS[51]})


def test_a_replaced_index_is_not_written_to(path: Path) -> None:
    collection = a_collection(path, OLD)
    upsert(collection, {1: POINTS[50]})
    model = {7: POINTS[7], 8: POINTS[8]}
    Index.build(path=path, replace=True, ids=list(model), **columns_of(list(model.values())))
    for write in (
        collection.compact,
        lambda: collection.delete([1]),
        lambda: upsert(collection, {1: POINTS[51]}),
    ):
        with pytest.raises(IndexChangedError, match="was replaced; open it again"):
            write()
    assert sorted(entry.name for entry in path.iterdir() if entry.is_dir()) == ["2"]
    # What was read stays readable.
    check_points(collection, OLD | {1: POINTS[50]})
    collection.close()
    with Collection.open(path) as again:
        assert (again.generation, again.sequence, again.count()) == (2, 0, 2)
        assert again.delete([7]).sequence == 1


@pytest.mark.parametrize(
    ("limit", "least"), [("_MERGED_RECORDS", 5), ("_MERGED_BYTES_SHARE", 1_000 / 2**28)]
)
def test_records_without_rows_are_merged_too(
    path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, least: float
) -> None:
    monkeypatch.setattr(backlog, limit, least)
    monkeypatch.setattr(log_module, "FILE_BYTES", 2_000)
    with a_collection(path, OLD) as collection:
        for number in range(200):
            collection.delete([900], write_id=f"a deletion of nothing, {number}")

        def is_short() -> bool:
            """Write once more, so that a merge begins if it is due, and look at the log."""
            collection.delete([900], write_id=f"another one, {collection.sequence}")
            return bytes_in(path / "1" / "writes" / "log") < 200 * 100

        eventually(is_short)
        sequence = collection.sequence
    with Collection.open(path) as again:
        assert again.sequence == sequence > 200


def test_a_default_may_be_set_between_writes(collection: Collection) -> None:
    upsert(collection, {1: POINTS[50]})
    collection.set_default(QueryDefault(1.0, "greedy", "corrected", "exact"))
    assert collection.query(QUERIES, k=3).parameters.diversity == 1
    upsert(collection, {1: POINTS[51]})
    assert collection.query(QUERIES, k=3).parameters.diversity == 1


# Requests that are refused.

VECTOR = [list(POINTS[0].vector)]
DEFAULTS: dict[str, Any] = {"ids": [1], "vectors": VECTOR}
BAD_UPSERTS: list[tuple[dict[str, Any], str]] = [
    ({"ids": []}, "ids"),
    ({"ids": [1, 1], "vectors": VECTOR * 2}, "ids"),
    ({"ids": ["a"]}, "ids"),
    ({"ids": [-1]}, "ids"),
    ({"ids": [2**63]}, "ids"),
    ({"ids": [1.5]}, "ids"),
    ({"ids": b"abc"}, "ids"),
    ({"ids": {1: 2}}, "ids"),
    ({"vectors": VECTOR * 2}, "vectors"),
    ({"vectors": [[1.0] * (DIMS + 1)]}, "vectors"),
    ({"vectors": [[0.0] * DIMS]}, "vectors"),
    ({"vectors": [[np.nan] * DIMS]}, "vectors"),
    ({"vectors": [["x"] * DIMS]}, "vectors"),
    ({"vectors": None, "ids": [12_345]}, "vectors"),
    ({"attributes": {"weight": [1]}}, "attributes"),
    ({"attributes": {"size": ["x"]}}, "attributes.size"),
    ({"attributes": {"size": [1.5]}}, "attributes.size"),
    ({"attributes": {"size": [[1, 2]]}}, "attributes.size"),
    ({"attributes": {"size": [1, 2]}}, "attributes.size"),
    ({"attributes": {"colour": [3]}}, "attributes.colour"),
    ({"attributes": {"tags": [["x", 4]]}}, "attributes.tags"),
    ({"attributes": [1]}, "attributes"),
    ({"payloads": [b"a", b"b"]}, "payloads"),
    ({"payloads": [3]}, "payloads"),
    ({"payloads": [b"x" * 65_537]}, "payloads"),
    ({"mode": "replace"}, "mode"),
    ({"write_id": "x" * 129}, "write_id"),
    ({"write_id": 5}, "write_id"),
]
BAD_DELETIONS: list[tuple[dict[str, Any], str]] = [
    ({}, "ids"),
    ({"ids": ["a"]}, "ids"),
    ({"ids": 1.5}, "ids"),
    ({"ids": np.arange(100_001)}, "ids"),
    ({"filter": {}}, "filter"),
    ({"filter": Field("weight") == 3}, "filter"),
    ({"filter": Field("size") == "x"}, "filter"),
    ({"ids": [1], "write_id": "x" * 129}, "write_id"),
]


@pytest.mark.parametrize(("arguments", "field"), BAD_UPSERTS)
def test_a_bad_upsert_changes_nothing(
    arguments: dict[str, Any], field: str, refusing: Collection
) -> None:
    with pytest.raises(InvalidArgumentError) as fault:
        refusing.upsert(**DEFAULTS | arguments)
    assert fault.value.field == field
    assert refusing.sequence == 1


@pytest.mark.parametrize(("arguments", "field"), BAD_DELETIONS)
def test_a_bad_deletion_changes_nothing(
    arguments: dict[str, Any], field: str, refusing: Collection
) -> None:
    with pytest.raises(InvalidArgumentError) as fault:
        refusing.delete(**arguments)
    assert fault.value.field == field
    assert refusing.sequence == 1


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collection]:
    """Return a collection that must still have all points in the end."""
    with a_collection(tmp_path_factory.mktemp("refusing") / "points", OLD) as opened:
        upsert(opened, {1: POINTS[99]})
        yield opened
        check_points(opened, OLD | {1: POINTS[99]})


def test_too_many_rows_are_refused(collection: Collection) -> None:
    count = 10_001
    with pytest.raises(LimitExceededError, match="10001 rows; one write may have at most 10000"):
        collection.upsert(np.arange(count), np.ones((count, DIMS)))
    check_points(collection, OLD)


def test_more_rows_than_a_layout_has_room_for_are_refused(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vectors may be so long that a merge makes room for few of them."""
    monkeypatch.setattr(layout, "_LATER_ROWS_MAX", 50)
    upsert(collection, {1: POINTS[50]})
    room = 100
    points = dict(enumerate(POINTS[:room], 1_000))
    with pytest.raises(LimitExceededError, match="ids has 100 rows; one write of vectors"):
        upsert(collection, points)
    few = dict(list(points.items())[:40])
    upsert(collection, few)
    check_points(collection, OLD | {1: POINTS[50]} | few)


def test_a_write_fits_each_later_layout(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layouts have room for whole tiles, so some have more than others."""
    monkeypatch.setattr(layout, "_LATER_ROWS_MAX", 50)
    upsert(collection, {1: POINTS[50]})
    collection.compact()
    state = collection.committer.state
    assert state is not None
    assert state.room > 50
    points = dict(enumerate(POINTS[:51], 1_000))
    with pytest.raises(LimitExceededError, match=r"ids has 51 rows; .* may have at most 50"):
        upsert(collection, points)
    points.popitem()
    upsert(collection, points)
    check_points(collection, OLD | {1: POINTS[50]} | points)


def test_records_are_written_in_blocks(collection: Collection) -> None:
    records: list[dict[str, Any]] = [
        {"id": 100 + i, "vector": POINTS[i % 50].vector, "size": i % 10} for i in range(2_300)
    ]
    records[5] |= {"tags": ["x"], "payload": "text"}
    result = collection.upsert_records(iter(records))
    assert (result.rows, result.sequence) == (2_300, 3)
    assert collection.count() == len(OLD) + 2_300
    assert collection.count(Field("size") == 3) >= 230
    record = collection.get(105)[0]
    assert record.attributes == {"colour": None, "size": 5, "tags": ("x",)}
    assert record.payload == b"text"
    assert collection.upsert_records([]).rows == 0
    for name, field, words in (
        ("id", "id", "id must be in each record"),
        ("vector", "vectors", r"row 0 has no vector: .*upsert\(ids, attributes=...\) keeps"),
    ):
        with pytest.raises(InvalidArgumentError, match=words) as fault:
            collection.upsert_records([{k: v for k, v in records[0].items() if k != name}])
        assert fault.value.field == field
    assert collection.sequence == 3


def test_too_many_values_are_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A merge makes room for the values of any write that is not refused."""
    with a_collection(path, OLD, points="sparse") as collection:
        monkeypatch.setitem(LIMITS, "write_values_max", 30)
        monkeypatch.setattr(layout, "_later_values", lambda *_: 30)
        model = dict(OLD)
        for first in range(0, 60, 4):
            points = dict(enumerate(POINTS[first : first + 4], first))
            upsert(collection, points)
            model |= points
        parts = [*(path / "1" / "writes" / "parts").iterdir()]
        assert len(parts) >= 5
        with pytest.raises(LimitExceededError, match=r"vectors has \d+ values; the sparse rows of"):
            upsert(collection, dict(enumerate(POINTS[:10])))
        check_points(collection, model)
        check_exact(collection, model, "cosine", QUERIES)


def test_vectors_must_be_of_the_kind_of_the_points(tmp_path: Path) -> None:
    kinds: list[Points] = ["dense", "sparse"]
    for kind, other in zip(kinds, kinds[::-1], strict=True):
        with a_collection(tmp_path / kind, OLD, points=kind) as collection:
            vectors = columns_of(POINTS[:1], other)["vectors"].copy()
            vectors.resize((1, collection.dims))
            with pytest.raises(InvalidArgumentError, match=f"must be {kind}, as the points"):
                collection.upsert([1], vectors)


def test_a_collection_needs_a_folder_and_a_durability(tmp_path: Path) -> None:
    points = np.eye(8, dtype=np.float32)
    with pytest.raises(InvalidArgumentError, match="must be given"):
        Collection.build(points)
    Index.build(points, path=tmp_path / "plain")
    with pytest.raises(InvalidArgumentError, match="durability must be one of"):
        Collection.open(tmp_path / "plain", durability="never")  # type: ignore[arg-type]


def test_a_progress_callback_of_a_merge_may_write_merge_and_close(collection: Collection) -> None:
    model = OLD | {1: POINTS[50]}
    upsert(collection, {1: POINTS[50]})

    def write_and_merge(_progress: Progress) -> None:
        model[2] = POINTS[51]
        upsert(collection, {2: POINTS[51]})
        collection.compact()

    collection.compact(write_and_merge)
    check_points(collection, model)
    upsert(collection, {2: POINTS[51]})
    with pytest.raises(StorageInUseError, match="closed"):
        collection.compact(lambda _progress: collection.close())
