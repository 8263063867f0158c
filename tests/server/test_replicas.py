"""Read-only servers beside one server that writes to the same folder."""

import hashlib
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Event

import grpc
import numpy as np
import pytest

from divgrpc import Collection, Index
from divgrpc.errors import IndexNotFoundError, UnavailableError
from divgrpc_client import Client
from divgrpc_protos.arrays import encode_dense
from divgrpc_protos.v1 import evaluate_labels_pb2, evaluate_pb2, query_pb2
from divgrpc_protos.v1.diverse_index_pb2_grpc import DiverseIndexStub
from divgrpc_server.security.roles import ROLE_OF_METHOD
from support.checks.documentation import blocks, pages
from support.checks.refusals import failing
from support.checks.status_details import details_of_status, failure
from support.data.served_index import random_points
from support.processes.running_server import RunningServer, eventually
from support.processes.scrapes import METRICS, Scrape, metrics_address
from support.requests.named_requests import naming
from support.requests.raw_security import call

PAGE = "guide/replicas.md"
DIMS = 8
POINTS = random_points(400, dims=DIMS, seed=5)
QUERIES = POINTS[:4] + 0.1
WRITES = sorted(method for method, role in ROLE_OF_METHOD.items() if role != "reader")
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
FAILED = grpc.StatusCode.FAILED_PRECONDITION


@pytest.fixture
def data(tmp_path: Path) -> Path:
    Index.build(POINTS[:300], path=tmp_path / "data" / "points")
    return tmp_path / "data"


def replica_of(data: Path, *arguments: str) -> RunningServer:
    """Start a read-only server of a folder."""
    folder = data.parent / f"replica-{len(list(data.parent.iterdir()))}"
    folder.mkdir()
    return RunningServer(
        folder, *("--data-dir", str(data), "--read-only", "--workers", "1"), *arguments
    )


def writer_of(data: Path, *arguments: str) -> RunningServer:
    """Start the server that writes to a folder."""
    return RunningServer(data.parent, "--data-dir", str(data), "--workers", "1", *arguments)


@pytest.fixture
def pair(data: Path) -> Iterator[tuple[Client, Client]]:
    """Yield clients of a server that writes, and of a read-only one beside it."""
    with ExitStack() as stack:
        servers = [stack.enter_context(start(data)) for start in (writer_of, replica_of)]
        first, second = (
            stack.enter_context(Client(server.target, timeout=30, retries=False))
            for server in servers
        )
        yield first, second


def state(client: Client) -> tuple[int, int, int]:
    """Return the generation, the sequence number and the number of points that queries see."""
    answer = client.query("points", QUERIES, k=3)
    count = client.count("points")
    return answer.generation, answer.sequence, count


def test_a_replica_follows_merges_and_generations(pair: tuple[Client, Client]) -> None:
    writer, replica = pair
    assert replica.server_info().read_only
    assert not writer.server_info().read_only
    assert state(replica) == state(writer) == (1, 0, 300)
    writer.upsert("points", np.arange(300, 320), POINTS[300:320])
    writer.delete("points", [0, 1])
    assert state(writer) == (1, 2, 318)
    # Writes are seen once they are merged.
    assert state(replica) == (1, 0, 300)
    assert replica.get_index("points").writes is None
    writer.compact("points")
    assert state(replica) == (1, 2, 318)
    answers = [client.query("points", QUERIES, k=5) for client in pair]
    assert np.array_equal(answers[0].ids, answers[1].ids)
    info, expected = (client.get_index("points") for client in (replica, writer))
    assert (info.rows, info.writes) == (expected.rows, expected.writes)
    writer.upsert("points", [1], POINTS[1:2])
    for generation, change in (
        (2, writer.retrain),
        (3, lambda name: writer.compact(name, vacuum=True)),
    ):
        writer.delete("points", [generation])
        change("points")
        sequence, rows = generation + 2, 319 - generation + 1
        eventually(lambda: state(replica) == (generation, sequence, rows))  # noqa: B023  # at once
    writer.build("points", POINTS[:50], replace=True)
    eventually(lambda: state(replica) == (4, 0, 50))
    writer.delete_index("points")
    with pytest.raises(IndexNotFoundError):
        replica.query("points", QUERIES)
    assert list(replica.list_indexes()) == []
    writer.build("points", POINTS[:60])
    eventually(lambda: state(replica) == (1, 0, 60))


def test_no_call_fails_while_builds_and_merges_replace_files(pair: tuple[Client, Client]) -> None:
    """Ids tell the build that a point is from. The one worker never goes back."""
    writer, replica = pair
    states: list[tuple[int, int]] = []
    stop = Event()

    def ask() -> None:
        while not stop.is_set():
            answer = replica.query("points", QUERIES, k=5)
            assert len(np.unique(answer.ids // 1_000)) == 1
            states.append((answer.generation, answer.sequence))

    with ThreadPoolExecutor(1) as thread:
        asking = thread.submit(ask)
        try:
            for build in range(2, 8):
                ids = build * 1_000 + np.arange(300)
                writer.build("points", POINTS[:300], ids=ids, replace=True)
                for number in range(3):
                    writer.upsert("points", ids[:20] + 300 + number, POINTS[300:320])
                    writer.delete("points", ids[number : number + 1])
                    writer.compact("points", vacuum=number == 1)
        finally:
            stop.set()
        asking.result()
    assert states == sorted(states)
    assert len({generation for generation, _ in states}) > 5


def tree(folder: Path) -> dict[str, tuple[object, ...]]:
    """Return all files and folders with their contents, and what a write would change."""
    entries: dict[str, tuple[object, ...]] = {}
    for path in [folder, *folder.rglob("*")]:
        status = path.stat()
        digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        entries[str(path)] = (
            status.st_ino,
            status.st_mtime_ns,
            status.st_ctime_ns,
            status.st_size,
            digest,
        )
    return entries


def read_all(client: Client) -> None:
    """Make each kind of call that reads."""
    assert client.query("points", QUERIES, k=3).counts.tolist() == [3] * 4
    assert len(list(client.query_stream("points", QUERIES, k=3))) == 4
    assert client.get("points", [7]).ids.tolist() == [7]
    assert client.count("points") == 299
    assert sum(len(page.ids) for page in client.scroll("points")) == 299
    assert len(client.diversify(POINTS[:20], query=POINTS[0], k=3)) == 3
    votes = client.predict_labels("points", QUERIES, mode="neighbour_vote", top_k=2)
    assert votes.labels.shape == (4, 2)
    assert client.diagnose("points").rows == 299
    assert list(client.evaluate("points", QUERIES, np.arange(4) % 2, diversities=[0.5], folds=0))
    assert [info.name for info in client.list_indexes()] == ["points"]
    writes = client.get_index("points").writes
    assert writes is not None
    assert writes.sequence == 1


def test_a_replica_writes_nothing(tmp_path: Path) -> None:
    """It starts, answers, refuses and stops without a server that writes."""
    data = tmp_path / "data"
    labels = np.eye(3)[np.arange(300) % 3]
    categories = np.arange(300) % 2
    Index.build(POINTS[:300], labels=labels, categories=categories, path=data / "points")
    with Collection.open(data / "points") as collection:
        collection.delete([0])
        collection.compact()
        collection.delete([1])
    before = tree(data)
    with replica_of(data) as server, Client(server.target, timeout=60) as client:
        read_all(client)
        for method in WRITES:
            with server.channel() as channel:
                assert call(channel, method, naming(method, "points")).reason == "READ_ONLY"
        assert not server.pids("writer")
        assert not server.pids("builder")
    assert tree(data) == before


@pytest.mark.parametrize("method", [*WRITES, "Evaluate", "EvaluateLabels"])
def test_calls_that_change_an_index_are_refused(replica: RunningServer, method: str) -> None:
    # Only evaluations that set defaults change an index.
    kinds = {
        "Evaluate": evaluate_pb2.EvaluateRequest,
        "EvaluateLabels": evaluate_labels_pb2.EvaluateLabelsRequest,
    }
    request = naming(method, "points")
    if method in kinds:
        request = kinds[method](index="points", set_default=True).SerializeToString()
    with replica.channel() as channel:
        answer = call(channel, method, request)
    assert (answer.code, answer.reason) == (FAILED, "READ_ONLY")
    assert "send the call to the server that writes" in answer.detail


@pytest.fixture(scope="module")
def replica(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Run a read-only server without one that writes."""
    data = tmp_path_factory.mktemp("alone") / "data"
    Index.build(POINTS[:300], path=data / "points")
    with replica_of(data) as server:
        yield server


def test_a_query_waits_for_a_merge(pair: tuple[Client, Client]) -> None:
    writer, replica = pair
    # The second one takes several slices, and a large packet.
    batches = (QUERIES, np.repeat(QUERIES, 2_000, axis=0))
    with ThreadPoolExecutor(2) as threads:
        waiting = [
            threads.submit(replica.query, "points", batch, k=3, min_sequence=1) for batch in batches
        ]
        time.sleep(0.3)
        # Other queries go on meanwhile, large ones too.
        assert state(replica) == (1, 0, 300)
        assert len(replica.query("points", batches[1], k=3).ids) == len(batches[1])
        writer.upsert("points", [400], POINTS[300:301])
        assert not any(future.done() for future in waiting)
        writer.compact("points")
        for batch, future in zip(batches, waiting, strict=True):
            answer = future.result()
            assert (answer.sequence, len(answer.ids)) == (1, len(batch))


def test_a_query_for_a_write_that_is_not_merged_fails_in_time(replica: RunningServer) -> None:
    """The client learns the number of the last write that the server sees, and does not retry."""
    start = time.monotonic()
    with (
        Client(replica.target, timeout=1) as client,
        failing(UNAVAILABLE, UnavailableError, reason="REPLICA_BEHIND", match="up to 0;"),
    ):
        client.query("points", QUERIES, min_sequence=9)
    assert 0.5 < time.monotonic() - start < 1.5
    request = query_pb2.QueryRequest(
        index="points", queries=encode_dense(QUERIES), k=3, min_sequence=9
    )
    with replica.channel() as channel:
        details = failure(DiverseIndexStub(channel).Query, request, timeout=0.5)
        stub, item = DiverseIndexStub(channel), query_pb2.QueryStreamRequest(query=request)
        item.time_limit_ms = 300
        (answer,) = stub.QueryStream(iter([item]), timeout=30)
    assert details.metadata["sequence"] == "0"
    assert details.retry_after is not None
    assert details_of_status(UNAVAILABLE, answer.error).metadata["sequence"] == "0"


def test_any_number_of_replicas_run_beside_a_writer(data: Path) -> None:
    with replica_of(data) as first, replica_of(data) as second, writer_of(data) as writer:
        for server in (first, second, writer):
            with Client(server.target, timeout=30) as client:
                assert client.count("points") == 300


def test_a_damaged_index_harms_no_other(data: Path) -> None:
    """All replicas have the same files, so damage must not keep all of them from serving."""
    Index.build(POINTS[:50], path=data / "doomed")
    (data / "doomed" / "1" / "codes.npy").unlink()
    with replica_of(data) as server, Client(server.target, timeout=30) as client:
        assert client.count("points") == 300
        with failing(grpc.StatusCode.DATA_LOSS):
            client.count("doomed")


def test_replaced_files_stay_readable_on_other_machines(data: Path) -> None:
    """NFS keeps a file that was renamed, and none that was removed."""
    retired = data / ".retired"
    with writer_of(data, "--retain", "1") as server, Client(server.target, timeout=30) as client:
        first = (data / "points" / "1" / "vectors.npy").stat().st_ino
        client.build("points", POINTS[:50], replace=True)
        inodes = {path.stat().st_ino for path in retired.rglob("*.npy")}
        assert first in inodes
        eventually(lambda: not list(retired.iterdir()))
        assert client.count("points") == 50
    with writer_of(data):
        assert not retired.exists()


@pytest.mark.parametrize("content", [None, "a file", "empty"])
def test_a_replica_needs_a_folder_of_indexes(tmp_path: Path, content: str | None) -> None:
    folder = tmp_path / "data"
    if content == "a file":
        folder.write_text("")
    elif content == "empty":
        (folder / "other").mkdir(parents=True)
    command = [sys.executable, "-m", "divgrpc_server", "--listen", "127.0.0.1:0"]
    outcome = subprocess.run(
        [*command, "--data-dir", str(folder), "--read-only", "--log-format", "json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert outcome.returncode == 1
    (line,) = outcome.stderr.splitlines()
    assert "the data directory" in line
    assert sorted(path.name for path in tmp_path.rglob("*")) in ([], ["data"], ["data", "other"])


def test_metrics_of_a_replica_are_about_what_it_shows(data: Path) -> None:
    with Collection.open(data / "points") as collection:
        collection.delete([0])
        collection.compact()
        collection.delete([1, 2])
        with replica_of(data, *METRICS) as server:
            scrape = Scrape(metrics_address(server))
    assert scrape.value("divgrpc_index_sequence", index="points") == 1
    assert scrape.value("divgrpc_index_points", index="points", state="live") == 299


def run_page(targets: list[str]) -> str:
    """Run the program of the page about replicas with these servers; return what it prints."""
    (block,) = (block for block in blocks(PAGE, pages()[PAGE]) if block.note == Path(__file__).name)
    text = block.text
    for port, target in zip((50052, 50053, 50054), targets, strict=True):
        assert f"127.0.0.1:{port}" in text
        text = text.replace(f"127.0.0.1:{port}", target)
    command = [sys.executable, "-W", "error", "-c", text]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert outcome.returncode == 0, outcome.stderr
    return outcome.stdout


def test_the_death_of_one_of_three_replicas_fails_no_call(data: Path) -> None:
    """`make bench ARGS=replicas` makes 10,000 calls."""
    with ExitStack() as stack:
        servers = [stack.enter_context(replica_of(data)) for _ in range(3)]
        target = "ipv4:" + ",".join(server.target for server in servers)
        client = stack.enter_context(Client(target, timeout=30))
        expected = client.query("points", QUERIES, k=3).ids
        assert run_page([server.target for server in servers]) == "0\n"

        is_killed = Event()

        def ask(_: int) -> int:
            count_after = 0
            while count_after < 200:
                count_after += is_killed.is_set()
                assert np.array_equal(client.query("points", QUERIES, k=3).ids, expected)
            return count_after

        with ThreadPoolExecutor(8) as threads:
            asking = [threads.submit(ask, number) for number in range(8)]
            # Lines of calls are written a quarter of a second later.
            try:
                eventually(lambda: all("Query" in server.log for server in servers))
                servers[1].kill_all()
            finally:
                is_killed.set()
            assert sum(future.result() for future in asking) == 1_600
