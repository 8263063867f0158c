"""Writes over the wire give the states that they give in process, and survive deaths."""

import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from divgrpc import Collection, Field, Index
from divgrpc.errors import (
    BuildUnderWayError,
    ConditionFailedError,
    IndexDamagedError,
    IndexNotFoundError,
    InvalidArgumentError,
)
from divgrpc.storage.arrays import HEADER_BYTES
from divgrpc.types import Progress, QueryResult, WriteResult
from divgrpc_client import Client, Delete
from divgrpc_protos.arrays import encode_dense
from divgrpc_protos.v1 import points_pb2, writes_pb2
from divgrpc_protos.v1.diverse_index_pb2_grpc import DiverseIndexStub
from reference.index import same_bytes
from support.checks.refusals import cases_of, failing
from support.checks.status_details import failure
from support.data.evaluation_rows import assert_same_rows
from support.data.served_index import place, random_points, twin
from support.processes.both_clients import Stack
from support.processes.running_server import RunningServer, eventually, index_folders

ROWS, DIMS = 600, 12
POINTS = random_points(ROWS + 200, dims=DIMS, seed=3)
PRICES = np.arange(ROWS) / 8
ABORTED = grpc.StatusCode.ABORTED
FAILED = grpc.StatusCode.FAILED_PRECONDITION
NOT_FOUND = grpc.StatusCode.NOT_FOUND
UNIMPLEMENTED = grpc.StatusCode.UNIMPLEMENTED
_NUMBERS = itertools.count()
INVALID = grpc.StatusCode.INVALID_ARGUMENT


@pytest.fixture(params=["sync", "aio"])
def ask(request: pytest.FixtureRequest, server: RunningServer) -> Stack:
    """Return each of the two clients, connected to the session's server."""
    return Stack(server.target, is_async=request.param == "aio")


@pytest.fixture
def name(server: RunningServer) -> str:
    """Build an index into the server's folder."""
    columns: dict[str, Any] = {
        "attributes": {"price": PRICES, "tags": [["x"][: row % 2] for row in range(ROWS)]},
        "payloads": [f"p{row}" for row in range(ROWS)],
    }
    name = f"written-{next(_NUMBERS)}"
    place(server, name, POINTS[:ROWS], hash_family="cells", **columns)
    return name


def assert_same_state(client: Client, name: str, collection: Collection) -> None:
    """Compare answers, records and counts with those in process."""
    condition = Field("price") < 20
    for options in ({"k": 7}, {"k": 5, "filter": condition}, {"k": 4, "search": "exact"}):
        arguments: Any = options
        wire: QueryResult = client.query(name, POINTS[:20], **arguments)
        core = collection.query(POINTS[:20], **arguments)
        assert same_bytes(wire, core)
        assert (wire.generation, wire.sequence) == (core.generation, core.sequence)
    pages = list(client.scroll(name, with_vectors=True, page_size=100))
    core_pages = list(collection.scroll(with_vectors=True, page_size=100))
    assert len(pages) == len(core_pages)
    for page, core_page in zip(pages, core_pages, strict=True):
        assert page.ids.tolist() == core_page.ids.tolist()
        assert page.attributes == core_page.attributes
        assert page.payloads == core_page.payloads
        assert np.array_equal(np.asarray(page.vectors), np.asarray(core_page.vectors))
    assert client.count(name, condition) == collection.count(condition)
    info = client.get_index(name)
    assert (info.rows, info.writes) == (len(collection), collection.info.writes)


def test_writes_equal_those_in_process(
    ask: Stack, client: Client, server: RunningServer, name: str, tmp_path: Path
) -> None:
    with twin(server, name, tmp_path) as collection:
        new: dict[str, Any] = {
            "attributes": {"price": [1, None, 2.5], "tags": ["x", None, ["x", "y"]]},
            "payloads": [b"a", None, "c"],
        }
        ids = [5, 10**12, ROWS]
        assert ask("upsert", name, ids, POINTS[ROWS : ROWS + 3], **new) == WriteResult(1, 1, 3)
        collection.upsert(ids, POINTS[ROWS : ROWS + 3], **new)
        assert_same_state(client, name, collection)
        records = [{"id": 7 + row, "vector": POINTS[row], "price": row} for row in range(40)]
        assert ask("upsert_records", name, records) == collection.upsert_records(records)
        changes: dict[str, Any] = {"attributes": {"price": [3.5]}, "mode": "update_only"}
        assert ask("upsert", name, [5], **changes) == collection.upsert([5], **changes)
        assert ask("delete", name, [3, 4, 4_000]).rows == collection.delete([3, 4, 4_000]).rows == 2
        condition = Field("price") > 50
        assert ask("delete", name, filter=condition) == collection.delete(filter=condition)
        both = ask("delete", name, [0, 1, 2], filter=Field("price") < 0.2)
        assert both == collection.delete([0, 1, 2], filter=Field("price") < 0.2)
        assert_same_state(client, name, collection)
        assert (ask("compact", name), ask("compact", name)) == (True, False)
        assert (collection.compact(), collection.compact()) == (True, False)
        assert_same_state(client, name, collection)
        assert ask("compact", name, vacuum=True)
        assert collection.compact(vacuum=True)
        assert_same_state(client, name, collection)
        assert client.get_index(name).generation == 2
        assert ask("upsert", name, [5], **changes) == collection.upsert([5], **changes)
        assert ask("compact", name, vacuum=True)
        assert collection.compact(vacuum=True)
        assert_same_state(client, name, collection)


def test_a_retraining_equals_one_in_process(
    ask: Stack, client: Client, server: RunningServer, name: str, tmp_path: Path
) -> None:
    with twin(server, name, tmp_path) as collection:
        records = [{"id": 900 + row, "vector": POINTS[row] - 2} for row in range(40)]
        assert ask("upsert_records", name, records) == collection.upsert_records(records)
        assert ask("retrain", name)
        assert collection.retrain()
        assert client.get_index(name).generation == 2
        assert_same_state(client, name, collection)
        assert ask("delete", name, [5]) == collection.delete([5])
        assert_same_state(client, name, collection)


@pytest.mark.parametrize("method", ["retrain", "vacuum"])
def test_writes_and_queries_go_on_while_an_index_is_renewed(
    client: Client, name: str, method: str
) -> None:
    vectors = np.resize(POINTS, (10_000, DIMS)) + np.float32(0.5)
    client.upsert(name, np.arange(10**6, 10**6 + 10_000), vectors)
    client.delete(name, [0])
    with ThreadPoolExecutor(1) as thread:
        call: Callable[[], bool] = partial(client.compact, name, vacuum=True, timeout=60)
        renewal = thread.submit(partial(client.retrain, name) if method == "retrain" else call)
        before, rows, generation = client.get_index(name).generation, 0, 1
        while not renewal.done() or generation == before:
            result = client.upsert(name, [2 * 10**6 + rows], POINTS[rows % ROWS, None])
            answer = client.query(name, POINTS[rows % ROWS], k=1, keep_duplicates=True)
            assert answer.sequence == result.sequence
            generation, rows = result.generation, rows + 1
        assert renewal.result()
    assert (before, generation) == (1, 2)
    assert rows > 3
    names = np.arange(2 * 10**6, 2 * 10**6 + rows)
    assert [point.id for point in client.get(name, names)] == names.tolist()
    assert client.count(name) == ROWS + 10_000 - 1 + rows


@pytest.mark.parametrize("method", ["retrain", "vacuum", "merge"])
def test_a_renewal_reports_its_progress(ask: Stack, name: str, method: str) -> None:
    ask("upsert", name, [10**6], POINTS[:1])
    ask("delete", name, [0])
    events: list[Progress] = []
    if method == "retrain":
        assert ask("retrain", name, progress=events.append)
    else:
        assert ask("compact", name, vacuum=method == "vacuum", progress=events.append)
    stages = list(dict.fromkeys(event.stage for event in events))
    ends = ("merging", "merging") if method == "merge" else ("copying", "writing")
    assert (stages[0], stages[-1]) == ends
    # A merge keeps the row of the deleted point.
    assert events[-1].rows_done == events[-1].rows_total == ROWS + (method == "merge")


@pytest.mark.parametrize("method", ["retrain", "vacuum"])
def test_a_renewal_whose_caller_leaves_stops(
    client: Client, server: RunningServer, name: str, method: str
) -> None:
    class LeavingError(Exception):
        """The caller leaves."""

    def leave(_: Progress) -> None:
        raise LeavingError

    vectors = np.resize(POINTS, (40_000, DIMS)) + np.float32(0.5)
    client.upsert(name, np.arange(10**6, 10**6 + 40_000), vectors)
    client.delete(name, [0])
    renew = client.retrain if method == "retrain" else partial(client.compact, vacuum=True)
    with pytest.raises(LeavingError):
        renew(name, progress=leave)
    eventually(lambda: [path.name for path in index_folders(server, name)] == [name])
    client.delete(name, [1])
    generation = client.get_index(name).generation
    # A vacuum may have ended before the caller left.
    assert generation == 1 or (method, generation) == ("vacuum", 2)
    assert client.count(name) == ROWS + 40_000 - 2
    assert client.retrain(name)


def test_writes_are_refused_while_a_build_replaces_the_index(
    ask: Stack, client: Client, name: str
) -> None:
    outcomes: list[int] = []

    def write(_: Progress) -> None:
        try:
            client.upsert(name, [5], POINTS[:1])
            result = next(client.write_stream(name, [Delete([5])]))
        except BuildUnderWayError:
            outcomes.append(0)
        else:
            outcomes.append(result.generation)

    # The first write starts the writer, which may take longer than the build.
    client.upsert(name, [5], POINTS[:1])
    vectors = np.random.default_rng(5).standard_normal((40_000, DIMS), dtype=np.float32)
    ask("build", name, vectors, replace=True, progress=write)
    # The first events come during the upload. The last one may come after the build.
    assert outcomes.count(0) > 1
    refusals = range(outcomes.index(0), outcomes.index(0) + outcomes.count(0))
    assert all(outcomes[place] == 0 for place in refusals)
    assert set(outcomes[: refusals.start]) <= {1}
    assert set(outcomes[refusals.stop :]) <= {2}
    assert client.upsert(name, [5], POINTS[:1]).generation == 2


def test_a_second_retraining_is_refused_and_other_indexes_do_not_wait(client: Client) -> None:
    vectors = np.random.default_rng(5).standard_normal((20_000, DIMS), dtype=np.float32)
    client.build("retrained-twice", vectors, replace=True)
    client.build("merged-meanwhile", POINTS, replace=True)
    for index in ("retrained-twice", "merged-meanwhile"):
        client.upsert(index, [10**6], POINTS[:1])
    with ThreadPoolExecutor(2) as threads:
        calls = [threads.submit(client.retrain, "retrained-twice") for _ in range(2)]
        first = next(as_completed(calls))
        with failing(ABORTED, BuildUnderWayError):
            first.result()
        assert client.compact("merged-meanwhile")
        second = next(call for call in calls if call is not first)
        assert not second.done()
        assert second.result()
    assert client.get_index("retrained-twice").generation == 2
    for index in ("retrained-twice", "merged-meanwhile"):
        client.delete_index(index)


def test_an_index_that_was_never_written_needs_no_renewal(ask: Stack, client: Client) -> None:
    client.build("unwritten", POINTS[:50], replace=True)
    for call in (
        partial(ask, "retrain"),
        partial(ask, "compact"),
        partial(ask, "compact", vacuum=True),
    ):
        assert not call("unwritten")
        with failing(NOT_FOUND, IndexNotFoundError):
            call("no-such-index")


def test_an_evaluation_sees_what_was_written(client: Client, name: str) -> None:
    client.upsert(name, [ROWS], POINTS[ROWS : ROWS + 1])
    client.delete(name, [1])
    rows = [*client.evaluate(name, POINTS[ROWS : ROWS + 2], relevant=[[ROWS], [2]], folds=0)]
    assert rows[0].generation == 1
    with failing(INVALID, InvalidArgumentError, field="relevant"):
        list(client.evaluate(name, POINTS[:1], relevant=[[1]], folds=0))
    rest = [row for row in range(ROWS + 1) if row != 1]
    anew = client.build("anew", POINTS[rest], ids=rest, hash_family="cells", replace=True)
    expected = [
        *client.evaluate(anew.name, POINTS[ROWS : ROWS + 2], relevant=[[ROWS], [2]], folds=0)
    ]
    exact = [row for row in rows if row.parameters.search == "exact"]
    same = [row for row in expected if row.parameters.search == "exact"]
    assert len(exact) == len(same)
    assert_same_rows(exact[:1], same[:1])


def test_a_write_is_named_once(ask: Stack, name: str) -> None:
    first = ask("upsert", name, [ROWS], POINTS[:1], mode="insert_only", write_id="once")
    again = ask("upsert", name, [ROWS], POINTS[:1], mode="insert_only", write_id="once")
    assert first == again == WriteResult(1, 1, 1)
    with failing(FAILED, ConditionFailedError, field="write_id"):
        ask("upsert", name, [ROWS], POINTS[1:2], mode="insert_only", write_id="once")
    with failing(FAILED, ConditionFailedError, reason="CONDITION_FAILED", field="ids"):
        ask("upsert", name, [ROWS], POINTS[:1], mode="insert_only")
    with failing(FAILED, ConditionFailedError, field="if_sequence"):
        ask("delete", name, [1], if_sequence=0)
    assert ask("delete", name, [1], if_sequence=1).sequence == 2
    with failing(FAILED, ConditionFailedError, field="min_sequence"):
        ask("query", name, POINTS[:1], min_sequence=3)
    assert ask("query", name, POINTS[:1], min_sequence=2).sequence == 2


def test_many_rows_are_sent_in_several_messages(ask: Stack, name: str) -> None:
    """10,000 rows of 4 KiB exceed the limit of a message."""
    vectors = np.resize(POINTS, (12_000, DIMS))
    payloads = [b"x" * 1_000] * 12_000
    ids = np.arange(10**6, 10**6 + 12_000)
    result = ask("upsert", name, ids, vectors, payloads=payloads)
    assert (result.rows, result.sequence > 2) == (12_000, True)
    assert ask("count", name) == ROWS + 12_000
    with failing_here("if_sequence"):
        ask("upsert", name, ids, vectors, payloads=payloads, if_sequence=1)


def failing_here(field: str) -> Any:  # noqa: ANN401  # a context manager
    """Expect an error that the client raises itself."""
    return pytest.raises(InvalidArgumentError, match=f"^{field}")


WRONG = cases_of(
    ids=[["x"], [-1], [], 1.5],
    vectors=[POINTS[:1, :5], POINTS[:2], [[np.nan] * DIMS], [[0] * DIMS], "x"],
    attributes=[{"colour": ["red"]}, [1]],
    payloads=[[b"", b""], [b"x" * 65_537]],
    mode=["replace"],
    write_id=["x" * 129, 5],
)
WRONG.append(({"ids": [1, 1], "vectors": POINTS[:2]}, "ids"))


@pytest.mark.parametrize(("change", "field"), WRONG)
def test_a_wrong_write_changes_nothing(
    ask: Stack, client: Client, name: str, change: dict[str, Any], field: str
) -> None:
    arguments: dict[str, Any] = {"ids": [5], "vectors": POINTS[:1]} | change
    with pytest.raises(InvalidArgumentError) as error_info:
        ask("upsert", name, **arguments)
    assert error_info.value.field.removeprefix("string_").split(".")[0] in {field, "row"}
    assert client.query(name, POINTS[:1], k=1).sequence == 0
    writes = client.get_index(name).writes
    assert writes is None or (writes.sequence, writes.rows_dead) == (0, 0)


def test_a_wrong_value_names_its_attribute(ask: Stack, name: str) -> None:
    for attributes, field in (
        ({"price": ["cheap"]}, "attributes.price"),
        ({"tags": [5]}, "attributes.tags"),
        ({"price": [[1, 2]]}, "attributes.price"),
    ):
        with failing(INVALID, InvalidArgumentError, field=field):
            ask("upsert", name, [5], POINTS[:1], attributes=attributes)


def test_bad_messages_are_refused(stub: DiverseIndexStub, name: str) -> None:
    upsert, delete = writes_pb2.UpsertRequest, writes_pb2.DeleteRequest
    vectors = encode_dense(POINTS[:1])
    column = points_pb2.AttributeColumn(name="price", numbers=[1, 2])
    for request, field in (
        (upsert(index=name), "ids"),
        (upsert(index=name, string_ids=["a"], vectors=vectors), "string_ids"),
        (upsert(index=name, ids=[1], vectors=vectors, mode=9), "mode"),  # type: ignore[arg-type]
        (upsert(index=name, ids=[1], vectors=vectors, attributes=[column]), "attributes.price"),
        (upsert(index=name, ids=[1], vectors=vectors, payloads=[b"", b""]), "payloads"),
        (upsert(index=name, ids=[10**9]), "vectors"),
    ):
        status = failure(stub.Upsert, request, timeout=30)
        assert (status.code, status.fields) == (INVALID, (field,))
    with pytest.raises(grpc.RpcError) as error_info:
        stub.Delete(delete(index=name), timeout=30)
    assert error_info.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_an_index_that_does_not_exist_cannot_be_written_to(ask: Stack) -> None:
    with pytest.raises(IndexNotFoundError):
        ask("delete", "absent", [1])


def test_a_build_replaces_what_was_written(client: Client, name: str) -> None:
    client.upsert(name, [ROWS], POINTS[:1])
    client.build(name, POINTS[:50], replace=True)
    assert (client.count(name), client.get_index(name).writes) == (50, None)
    assert client.upsert(name, [50], POINTS[:1]) == WriteResult(2, 1, 1)
    assert client.count(name) == 51
    client.delete_index(name)
    with pytest.raises(IndexNotFoundError):
        client.upsert(name, [50], POINTS[:1])


def test_an_index_is_deleted_and_built_again(client: Client) -> None:
    """Its first generation has the number of the one before, and is another."""
    for number in range(2):
        client.build("rebuilt", POINTS[:50])
        assert client.upsert("rebuilt", [60 + number], POINTS[:1]) == WriteResult(1, 1, 1)
        assert [point.id for point in client.get("rebuilt", [60, 61])] == [60 + number]
        client.delete_index("rebuilt")


def test_the_writer_closes_the_files_of_indexes_that_are_gone(
    server: RunningServer, client: Client
) -> None:
    for number in range(3):
        client.build("gone", POINTS[:50], replace=True)
        client.upsert("gone", [60], POINTS[number : number + 1])
    (writer,) = server.pids("writer")
    files = Path(f"/proc/{writer}/fd")

    def names() -> set[str]:
        return {os.readlink(file) for file in files.iterdir() if file.is_symlink()}

    assert any("/gone/" in name for name in names())
    client.delete_index("gone")
    eventually(lambda: not any("/gone/" in name or "gone.staging" in name for name in names()))


def test_workers_release_the_files_of_an_old_generation_without_a_query(
    server: RunningServer, client: Client, name: str
) -> None:
    client.upsert(name, [10**6], POINTS[:1])
    for _ in range(8):
        client.query(name, POINTS[:1], k=1)
    files = [Path(f"/proc/{worker}/maps") for worker in server.pids("worker")]

    def mapped() -> str:
        return "".join(file.read_text() for file in files)

    assert f"/{name}/1/" in mapped()
    assert client.retrain(name)
    eventually(lambda: f"/{name}/1/" not in mapped())


def test_a_server_goes_on_after_deaths(tmp_path: Path) -> None:
    """No write that was acknowledged is lost when the writer, a worker or the server is killed."""
    data = tmp_path / "data"
    Index.build(POINTS[:ROWS], path=data / "points", hash_family="cells")
    arguments = ("--data-dir", str(data), "--workers", "1")
    with (
        RunningServer(tmp_path, *arguments) as server,
        Client(server.target, timeout=60) as client,
    ):
        for number in range(30):
            client.upsert("points", [ROWS + number], POINTS[number : number + 1], timeout=60)
            if number % 10 == 5:
                server.kill("writer" if number != 15 else "worker")
        assert client.count("points") == ROWS + 30
        client.delete("points", [0])
        for role in ("writer", "worker", "front"):
            server.kill(role)
    with RunningServer(tmp_path, *arguments) as server, Client(server.target, timeout=60) as client:
        assert client.count("points", timeout=60) == ROWS + 29
        near = client.query("points", POINTS[:30], k=1, diversity=0, exclude_ids=list(range(ROWS)))
        assert near.ids[:, 0].tolist() == list(range(ROWS, ROWS + 30))
        assert client.upsert("points", [0], POINTS[:1]).sequence == near.sequence + 1


@pytest.mark.parametrize("numbers", [b"", bytes(48)])
def test_a_server_goes_on_after_a_loss_of_power(tmp_path: Path, numbers: bytes) -> None:
    """The log of a write was synced; the vectors and the number of the write were not."""
    data = tmp_path / "data"
    with Collection.build(POINTS[:ROWS], path=data / "points") as collection:
        collection.upsert([ROWS], POINTS[ROWS : ROWS + 1])
    (data / "points" / "1" / "writes" / "PUBLISHED").write_bytes(numbers)
    with (data / "points" / "1" / "vectors.npy").open("r+b") as file:
        file.seek(HEADER_BYTES + 4 * DIMS * ROWS)
        file.write(bytes(4 * DIMS))
    arguments = ("--data-dir", str(data), "--workers", "1")
    with RunningServer(tmp_path, *arguments) as server, Client(server.target, timeout=60) as client:
        assert client.get_index("points").rows == client.count("points") == ROWS + 1
        near = client.query("points", POINTS[ROWS], k=1, search="exact")
        assert (near.ids.tolist(), near.sequence) == ([[ROWS]], 1)


def test_a_server_refuses_to_lose_a_write(tmp_path: Path) -> None:
    """The last record of the log is damaged, and the system did not start again meanwhile."""
    data = tmp_path / "data"
    with Collection.build(POINTS[:ROWS], path=data / "points") as collection:
        collection.upsert([ROWS], POINTS[ROWS : ROWS + 1])
    (log,) = (data / "points" / "1" / "writes" / "log").iterdir()
    damaged = log.read_bytes().rstrip(b"\0")[:-1].ljust(log.stat().st_size, b"\0")
    log.write_bytes(damaged)
    arguments = ("--data-dir", str(data), "--workers", "1")
    with RunningServer(tmp_path, *arguments) as server, Client(server.target, timeout=60) as client:
        with pytest.raises(IndexDamagedError, match=r"lacks record 1, .* `divgrpc doctor`"):
            client.query("points", POINTS[:1])
        with pytest.raises(IndexDamagedError, match=r"lacks record 1, .* `divgrpc doctor`"):
            client.upsert("points", [7], POINTS[:1])
    assert log.read_bytes() == damaged


def test_many_callers_write_at_once(client: Client, name: str) -> None:
    def write(number: int) -> WriteResult:
        return client.upsert(name, [ROWS + number], POINTS[number : number + 1])

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(write, range(200)))
    assert sorted(result.sequence for result in results) == list(range(1, 201))
    assert client.count(name) == ROWS + 200


def test_a_server_without_a_data_directory_takes_writes(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as server, Client(server.target, timeout=60) as client:
        client.build("points", POINTS[:100])
        client.upsert("points", [100], POINTS[:1], timeout=60)
        eventually(lambda: client.count("points") == 101)
