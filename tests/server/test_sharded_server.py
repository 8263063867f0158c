"""A server whose indexes are divided among shard servers, which it starts itself."""

import itertools
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.message import Message
from scipy import sparse

from divgrpc import Index, Quota
from divgrpc.builder.builder import IndexBuilder
from divgrpc.errors import IndexNotFoundError, UnavailableError, UnsupportedError
from divgrpc.labels.build_inputs import LabelInputs
from divgrpc.parameters import BuildParameters, LabelParameters
from divgrpc.sharding import layouts
from divgrpc.sharding.files import divide_folder
from divgrpc.sharding.messages import Buffer, divide, join
from divgrpc.sharding.placement import shard_of
from divgrpc.storage.generations import ROOT_LOCK, IndexFolder, read_manifest, staging
from divgrpc.types import Mode, Progress, QueryResult, Search, Selector
from divgrpc.types.filters import Field, Match
from divgrpc_client import Client
from divgrpc_protos.v1 import query_pb2, shard_index_pb2
from divgrpc_server.front.shard_servers import SERVICE
from support.checks.documentation import blocks, pages
from support.checks.refusals import failing, refused
from support.checks.status_details import failure
from support.data.divided_indexes import differences
from support.data.served_index import random_points
from support.processes.running_server import RunningServer, children, eventually
from support.processes.scrapes import METRICS, Scrape, fetch, metrics_address

DIMS = 16
POINTS = random_points(1_500, dims=DIMS, seed=9)
QUERIES = POINTS[:5] + 0.2
PRICES = np.arange(len(POINTS)) % 7
LABELS = sparse.csr_array(np.random.default_rng(0).random((100, 12)) < 0.2)
SECRET = "a secret of sixteen or more"  # noqa: S105  # of this test alone
CODES = grpc.StatusCode
_START_SECONDS = 240.0
_SERVES = "a shard server serves"
MODES: list[Mode] = ["embedding", "neighbour_vote"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("sharded")
    options = (
        "--shards",
        "3",
        "--replicas",
        "2",
        "--workers",
        "1",
        "--worker-wait",
        "100",
        *METRICS,
    )
    with RunningServer(folder, "--data-dir", str(folder / "data"), *options) as running:
        with Client(running.target, timeout=60) as client:
            client.build("points", POINTS, attributes={"price": PRICES})
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[Client]:
    with Client(server.target, timeout=60) as one:
        yield one


@pytest.fixture(scope="module")
def index() -> Index:
    return Index.build(POINTS, attributes={"price": PRICES})


def check(answer: QueryResult, whole: QueryResult) -> None:
    """Compare an answer of shards with that of one index, byte for byte."""
    # Without a choice of dials, a client has an array of another kind.
    assert set(differences(answer, whole)) <= {"dial_reasons"}
    assert list(answer.dial_reasons) == list(whole.dial_reasons)


@pytest.mark.parametrize("search", ["exact", "scan", "tables", "auto"])
@pytest.mark.parametrize("selector", ["nearest", "greedy", "mmr", "dpp"])
def test_answers_are_those_of_one_index(
    client: Client, index: Index, search: Search, selector: Selector
) -> None:
    options: dict[str, Any] = {"k": 7, "search": search, "selector": selector}
    check(client.query("points", QUERIES, **options), index.query(QUERIES, **options))
    check(client.query("points", QUERIES[0], **options), index.query(QUERIES[0], **options))


def test_filters_attributes_and_explanations(client: Client, index: Index) -> None:
    options: dict[str, Any] = {"k": 5, "filter": Match("price", (3,)), "with_attributes": True}
    options |= {"explain": True, "exclude_ids": [3, 10]}
    check(client.query("points", QUERIES, **options), index.query(QUERIES, **options))


def test_queries_like_points_within_quotas_and_page_by_page(client: Client, index: Index) -> None:
    options: dict[str, Any] = {"k": 6, "diversity": 0.4}
    like = [5, 9, 1_000]
    check(client.query("points", like=like, **options), index.query(like=like, **options))
    quotas = [Quota("price", max_each=2, rules={1: (2, 3)})]
    answer = client.query("points", QUERIES, quotas=quotas, **options)
    check(answer, index.query(QUERIES, quotas=quotas, **options))
    pages = itertools.islice(client.pages("points", QUERIES[0], **options), 3)
    for page, whole in zip(pages, index.pages(QUERIES[0], **options), strict=False):
        # A token names the index, which has no name here.
        check(replace(page, next_page_token=""), replace(whole, next_page_token=""))


def test_a_stream_is_answered_query_by_query(client: Client, index: Index) -> None:
    queries = [POINTS[:1] + 0.1 * number for number in range(40)]
    answers = list(client.query_stream("points", queries, k=4))
    for query, answer in zip(queries, answers, strict=True):
        check(answer, index.query(query, k=4))


def test_stored_points_are_read_from_their_shards(client: Client, index: Index) -> None:
    ids = [0, 7, 1_499]
    records, whole = client.get("points", ids, with_vectors=True), index.get(ids, with_vectors=True)
    assert np.array_equal(records.ids, ids)
    np.testing.assert_array_equal(records.vectors, whole.vectors)
    assert client.count("points") == len(POINTS)
    assert client.count("points", Match("price", (2,))) == int((PRICES == 2).sum())
    pages = client.scroll("points", page_size=400)
    assert np.concatenate([page.ids for page in pages]).tolist() == list(range(len(POINTS)))


def test_labels_are_those_of_one_index(client: Client) -> None:
    labels = sparse.csr_array(np.random.default_rng(0).random((300, 12)) < 0.2)
    client.build("labelled", POINTS[:300], labels=labels, label_model="leml")
    whole = Index.build(POINTS[:300], labels=labels, label_model="leml")
    for mode in MODES:
        answer, expected = (
            call(QUERIES, mode=mode, top_k=4)
            for call in (partial(client.predict_labels, "labelled"), whole.predict_labels)
        )
        assert np.array_equal(answer.labels, expected.labels)
        assert answer.scores.tobytes() == expected.scores.tobytes()


def test_a_batch_of_too_many_candidates_is_halved(client: Client) -> None:
    """The client does so, as for an answer that does not fit a message."""
    rows = np.repeat(QUERIES, 200, axis=0)
    answer = client.query("points", rows, k=2, candidates_limit=1_500)
    single = client.query("points", QUERIES, k=2, candidates_limit=1_500)
    assert np.array_equal(answer.ids, np.repeat(single.ids, 200, axis=0))


def is_whole(client: Client) -> bool:
    """Return whether all replicas of all shards serve."""
    info = client.get_index("points")
    states = [one.state for shard in info.shards for one in shard.replicas]
    # A server that was slow serves too.
    assert info.degraded == (not set(states) <= {"serving", "avoided"})
    return not info.degraded


def await_replicas(client: Client) -> None:
    """Wait until all replicas of all shards serve; a server starts slowly beside others."""
    eventually(lambda: is_whole(client), _START_SECONDS)


def test_get_index_describes_the_shards(client: Client) -> None:
    info = client.get_index("points")
    assert sum(shard.rows for shard in info.shards) == info.rows == len(POINTS)
    assert all(shard.bytes > shard.rows * DIMS * 4 for shard in info.shards)
    await_replicas(client)
    shards = client.get_index("points").shards
    servers = [[replica.address for replica in shard.replicas] for shard in shards]
    assert [len(set(addresses)) for addresses in servers] == [2, 2, 2]
    assert len(set().union(*servers)) == 6


def test_shard_servers_are_counted(server: RunningServer, client: Client) -> None:
    await_replicas(client)
    address = metrics_address(server)
    before = Scrape(address).counters()
    client.query("points", QUERIES[:1], k=3)
    eventually(lambda: Scrape(address).value("divgrpc_shard_servers", state="serving") == 6)
    more = {key: value - before.get(key, 0) for key, value in Scrape(address).counters().items()}
    assert more["divgrpc_shard_calls_total", frozenset({("outcome", "replied")})] >= 3
    assert more["divgrpc_shard_round_seconds_count", frozenset()] == 1
    # A worker has a query twice: until it asks shards, and with their replies.
    assert more["divgrpc_processing_seconds_count", frozenset({("target", "worker")})] == 2
    assert Scrape(address).value("divgrpc_shard_places_missing") == 0


def test_the_program_of_the_page_runs(server: RunningServer) -> None:
    note, page = Path(__file__).name, "guide/shards.md"
    (block,) = (block for block in blocks(page, pages()[page]) if block.note == note)
    exec(block.text.replace("127.0.0.1:50051", server.target), {})  # noqa: S102  # documentation


def test_what_shards_cannot_do_yet_is_refused(client: Client) -> None:
    """No call that would change single points, or needs all of them in one process, is tried."""
    for call in (
        lambda: client.upsert("points", [1, 2, 3, 4, 5], QUERIES),
        lambda: client.delete("points", [1]),
        lambda: client.diagnose("points"),
        lambda: client.add_attributes("points", {"price": PRICES}),
    ):
        with failing(CODES.UNIMPLEMENTED, UnsupportedError, match="divided among 3 shards"):
            call()
    assert client.count("points") == len(POINTS)


def test_a_bad_query_is_refused_with_its_field(client: Client) -> None:
    with refused("queries"):
        client.query("points", np.ones(DIMS + 1))
    for condition in (Field("nothing") == 3, Field("price") == "high"):
        with refused("filter"):
            client.query("points", QUERIES, filter=condition)
        with refused("filter"):
            client.query("points", QUERIES[0], filter=condition, allow_partial=True)
        with refused("filter"):
            client.count("points", condition)
    assert {*states_of(client)} == {"serving"}
    with failing(CODES.NOT_FOUND, IndexNotFoundError):
        client.query("nothing", QUERIES)


def shard_servers(server: RunningServer) -> list[int]:
    """Return the process ids of the supervisors of shard servers."""
    return [child for engine in server.pids("engine") for child in children(engine)]


def has_more(server: RunningServer, serve_count: int) -> bool:
    """Return whether shard servers have begun to serve more often than so many times."""
    return server.log.count(_SERVES) > serve_count


def test_a_killed_shard_server_loses_no_query(server: RunningServer, index: Index) -> None:
    """The other replica answers, and the server is replaced."""
    is_over, stopped = Event(), set[int]()

    def ask() -> list[QueryResult]:
        answers = []
        with Client(server.target, timeout=60, retries=False) as client:
            while not is_over.is_set():
                answers.append(client.query("points", QUERIES, k=5))
        return answers

    with ThreadPoolExecutor(2) as pool, Client(server.target, timeout=60) as client:
        await_replicas(client)
        callers = [pool.submit(ask) for _ in range(2)]
        for pid in shard_servers(server)[:2]:
            serve_count = server.log.count(_SERVES)
            os.kill(pid, signal.SIGKILL)
            stopped.add(pid)
            # Until the engine notices, all servers seem to serve.
            eventually(partial(has_more, server, serve_count), _START_SECONDS)
            await_replicas(client)
            assert len({*shard_servers(server)} - stopped) == 6
            assert not any(caller.done() for caller in callers), "a query failed"
        is_over.set()
        answers = [answer for caller in callers for answer in caller.result()]
    whole = index.query(QUERIES, k=5)
    assert answers
    for answer in answers:
        check(answer, whole)


def test_a_replica_that_stands_still_delays_no_query(
    server: RunningServer, client: Client, index: Index
) -> None:
    whole = index.query(QUERIES, k=5)
    await_replicas(client)
    front = next(pid for pid in children(shard_servers(server)[0]) if _is_front(pid))
    os.kill(front, signal.SIGSTOP)
    try:
        for _ in range(20):
            check(client.query("points", QUERIES, k=5, timeout=10), whole)
        eventually(lambda: "unreachable" in states_of(client))
    finally:
        os.kill(front, signal.SIGCONT)
    await_replicas(client)


def test_the_engine_is_replaced_with_its_servers(
    server: RunningServer, client: Client, index: Index
) -> None:
    """Until then, queries and builds wait."""
    servers = shard_servers(server)
    server.kill("engine")
    assert client.build("meanwhile", POINTS[:50], timeout=_START_SECONDS).rows == 50
    check(client.query("points", QUERIES, k=5, timeout=_START_SECONDS), index.query(QUERIES, k=5))
    eventually(lambda: not any(map(_runs, servers)))


def states_of(client: Client) -> list[str]:
    """Return the states of all replicas."""
    return [one.state for shard in client.get_index("points").shards for one in shard.replicas]


def _is_front(pid: int) -> bool:
    return b"divgrpc-front" in Path(f"/proc/{pid}/cmdline").read_bytes()


def _runs(pid: int) -> bool:
    """Return whether a process has not ended; one that ended has no command line."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False


def test_a_new_generation_is_answered_whole(server: RunningServer, client: Client) -> None:
    """No answer has points of two generations, and none fails while an index is replaced."""
    generations = [POINTS[:200], POINTS[200:420]]
    wholes = [Index.build(points) for points in generations]
    client.build("changing", generations[0])
    is_over = Event()

    def ask() -> list[QueryResult]:
        answers = []
        with Client(server.target, timeout=60, retries=False) as one:
            while not is_over.is_set():
                answers.append(one.query("changing", QUERIES, k=5, search="exact"))
        return answers

    with ThreadPoolExecutor(1) as pool:
        caller = pool.submit(ask)
        for number in range(1, 5):
            client.build("changing", generations[number % 2], replace=True)
        is_over.set()
    for answer in caller.result():
        whole = wholes[(answer.generation - 1) % 2].query(QUERIES, k=5, search="exact")
        assert set(differences(answer, whole)) <= {"generation", "dial_reasons"}
    assert client.delete_index("changing") == 5
    with failing(CODES.NOT_FOUND, IndexNotFoundError):
        client.query("changing", QUERIES)


def test_a_server_without_shards_says_what_to_start(tmp_path: Path) -> None:
    arguments = ("--data-dir", str(tmp_path / "data"), "--workers", "1")
    with (
        RunningServer(tmp_path, *arguments, "--shards", "2") as server,
        Client(server.target, timeout=60) as client,
    ):
        client.build("points", POINTS[:50])
    with RunningServer(tmp_path, *arguments) as server, Client(server.target, timeout=60) as client:
        with failing(CODES.UNIMPLEMENTED, UnsupportedError, match="--shards"):
            client.query("points", QUERIES)
        for info in (client.get_index("points"), *client.list_indexes()):
            (warning,) = info.warnings
            assert (warning.code, warning.field) == ("NO_SHARD_SERVERS", "")
            assert "divided among 2 shards" in warning.message
            assert len(info.shards) == 2
        (line,) = [line for line in server.log.splitlines() if "divided among shards" in line]
        assert "points" in line


@pytest.fixture
def shard_server(tmp_path: Path) -> Iterator[RunningServer]:
    """Yield a shard server of an index with two shards."""
    data, token = tmp_path / "data", tmp_path / "token"
    token.write_text(SECRET)
    with staging(data / "points", replace=False) as stage:
        stage.divide = lambda folder, manifest: divide_folder(folder, manifest, 2)
        builder = IndexBuilder(stage, BuildParameters())
        builder.append(POINTS[:100], labels=LABELS)
        builder.build()
    (data / ROOT_LOCK).touch()
    options = ("--role", "shard", "--read-only", "--cluster-token", str(token), "--workers", "1")
    with RunningServer(tmp_path, "--data-dir", str(data), *options) as server:
        yield server


def test_servers_that_run_already_are_asked(shard_server: RunningServer, tmp_path: Path) -> None:
    """Also by a read-only server, and at two addresses for a place; nothing is started."""
    options = ("--read-only", "--shards", "2", "--cluster-token", str(tmp_path / "token"))
    places = f"{shard_server.target}|127.0.0.1:1"
    arguments = ("--data-dir", str(tmp_path / "data"), "--workers", "1", *METRICS, *options)
    whole = Index.build(POINTS[:100])
    with RunningServer(tmp_path, *arguments, "--shard-servers", places) as server:
        with Client(server.target, timeout=60) as client:
            check(client.query("points", QUERIES, k=6), whole.query(QUERIES, k=6))
            addresses = [one.address for one in client.get_index("points").shards[1].replicas]
            assert addresses == [shard_server.target, "127.0.0.1:1"]
            eventually(lambda: states_of(client) == ["serving", "unreachable"] * 2)
            (info,) = client.list_indexes()
            assert (info.degraded, info.missing_shards) == (True, ())
            eventually(lambda: readiness(server) == "ok\n")
            shard_server.stop()
            eventually(lambda: "no server of some shards" in readiness(server))
            with failing(CODES.UNAVAILABLE, UnavailableError, match="shards? 0"):
                client.query("points", QUERIES)
            assert client.get_index("points").missing_shards == (0, 1)
        assert server.pids("engine") == []


def test_shard_servers_hash_the_points_of_a_build(
    shard_server: RunningServer, tmp_path: Path
) -> None:
    """The files are those of one machine, also if the shard servers are killed meanwhile."""
    options = ("--shards", "2", "--cluster-token", str(tmp_path / "token"), "--workers", "1")
    places = ("--shard-servers", shard_server.target, *METRICS)
    # Many hyperplanes make many blocks.
    parameters: dict[str, Any] = {"hash_family": "lsh_div", "n_tables": 64, "n_bits": 24}
    points = random_points(3_000, dims=DIMS, seed=2)
    with staging(tmp_path / "here" / "points", replace=False) as stage:
        stage.divide = lambda folder, manifest: divide_folder(folder, manifest, 2)
        builder = IndexBuilder(stage, BuildParameters(**parameters))
        builder.append_all(points)
        expected = builder.build().manifest

    stopped = set[int]()

    def kill(progress: Progress) -> None:
        if not stopped:
            # So it has blocks when it is killed. Before, the build would be refused.
            stopped.update(shard_server.pids("front"))
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
        elif progress.stage == "hashing" and shard_server.process.poll() is None:
            shard_server.kill_all()

    arguments = ("--data-dir", str(tmp_path / "data"), *options, *places)
    with RunningServer(tmp_path, *arguments) as server, Client(server.target, timeout=60) as client:
        client.build("helped", points, **parameters)
        scrape = Scrape(metrics_address(server))
        assert scrape.value("divgrpc_shard_calls_total", outcome="replied") > 1
        client.build("killed", points, progress=kill, **parameters)
    assert "does not hash points of a build" in server.log
    for name in ("helped", "killed"):
        assert read_manifest(tmp_path / "data" / name / "1") == expected


def test_shard_servers_multiply_the_data_of_a_training(
    shard_server: RunningServer, tmp_path: Path
) -> None:
    """The model is the one that one machine trains."""
    options = ("--shards", "2", "--cluster-token", str(tmp_path / "token"), "--workers", "1")
    places = ("--shard-servers", shard_server.target, *METRICS)
    # So many values make four parts.
    points = random_points(8_500, dims=128, seed=2)
    labels = sparse.csr_array(np.random.default_rng(3).random((len(points), 9)) < 0.2)
    training: dict[str, Any] = {"rank": 3, "regularisation": 1.0, "iterations": 2}
    with staging(tmp_path / "here" / "points", replace=False) as stage:
        stage.divide = lambda folder, manifest: divide_folder(folder, manifest, 2)
        inputs = LabelInputs(model="leml", parameters=LabelParameters(**training))
        builder = IndexBuilder(stage, BuildParameters(hash_family="lsh_div"), labels=inputs)
        builder.append_all(points, labels=labels)
        expected = builder.build().manifest

    calls: dict[str, float] = {}

    arguments = ("--data-dir", str(tmp_path / "data"), *options, *places)
    with RunningServer(tmp_path, *arguments) as server, Client(server.target, timeout=60) as client:

        def count(progress: Progress) -> None:
            if progress.stage not in calls:
                scrape = Scrape(metrics_address(server))
                calls[progress.stage] = scrape.value("divgrpc_shard_calls_total", outcome="replied")

        client.build(
            "trained", points, labels=labels, label_model="leml", hash_family="lsh_div",
            progress=count, **training,
        )  # fmt: skip
    assert calls["writing"] >= calls["tuning"] + 4
    assert read_manifest(tmp_path / "data" / "trained" / "1") == expected


# What an answer without shards says, and what a build of fewer points chooses otherwise.
_OF_OTHER_POINTS = {"coverage", "missing_shards", "dial_reasons", "parameters"}


def test_a_query_may_lack_shards(shard_server: RunningServer, tmp_path: Path) -> None:
    """One of two places has no server."""
    options = ("--read-only", "--shards", "2", "--cluster-token", str(tmp_path / "token"))
    places = ("--shard-servers", f"{shard_server.target},127.0.0.1:1", "--worker-wait", "1")
    arguments = ("--data-dir", str(tmp_path / "data"), "--workers", "1", *options, *places)
    there = np.flatnonzero(shard_of(np.arange(100), 2) == 0)
    rest = Index.build(POINTS[there], ids=there, labels=LABELS[there])
    question: dict[str, Any] = {"k": 6, "search": "exact"}
    with RunningServer(tmp_path, *arguments) as server, Client(server.target, timeout=60) as client:
        with failing(
            CODES.UNAVAILABLE,
            match="shard 1 of .* place 1 of 2, counted from 0; 127.0.0.1:1 is unreachable: ",
        ):
            client.query("points", QUERIES, **question)
        whole = rest.query(QUERIES, **question)
        answer = client.query("points", QUERIES, **question, allow_partial=True)
        assert set(differences(answer, whole)) <= _OF_OTHER_POINTS
        assert (answer.coverage, answer.missing_shards) == (len(there) / 100, (1,))
        (streamed,) = client.query_stream("points", [QUERIES], **question, allow_partial=True)
        assert differences(streamed, answer) == []
        vote: dict[str, Any] = {"mode": "neighbour_vote", "search": "exact"}
        votes = client.predict_labels("points", QUERIES, **vote, allow_partial=True)
        assert votes.scores.tobytes() == rest.predict_labels(QUERIES, **vote).scores.tobytes()
        assert (votes.coverage, votes.missing_shards) == (answer.coverage, (1,))
        page = next(iter(client.pages("points", QUERIES[0], k=3, allow_partial=True)))
        assert page.missing_shards == (1,)
        like, ids = {"like": [int(there[0])]}, {"already_shown": [int(there[0])]}
        for named in (like, {"page_token": page.next_page_token}, ids):
            words = f"shard 1 of .*; allow_partial has no effect with {next(iter(named))}, "
            with failing(CODES.UNAVAILABLE, UnavailableError, match=words):
                queries = None if "like" in named else QUERIES[0]
                client.query("points", queries, k=3, allow_partial=True, **named)
        shard_server.stop()
        with failing(
            CODES.UNAVAILABLE, match=r"shards 0 and 1 of .* places 0 and 1 of 2, counted from 0; "
        ):
            client.query("points", QUERIES, **question, allow_partial=True)


def readiness(server: RunningServer) -> str:
    """Return what the probe of readiness answers."""
    response = fetch(metrics_address(server), "/readyz")
    assert response.code == 200
    return response.text


def count_in(reply: Buffer) -> int:
    """Return the number of points in a reply of a shard without attributes."""
    description = layouts.describe_reply((), has_texts=False, has_payloads=False)
    return int(layouts.count_reply(description).unpack(reply)["count"][0])


def asking(channel: grpc.Channel, name: str, request: Message) -> Callable[..., bytes]:
    """Return a function that calls a method of a shard server, with changes of a request."""
    method: Callable[..., bytes] = channel.unary_unary(f"/{SERVICE}/{name}")

    def ask(token: str = SECRET, **changes: Any) -> bytes:  # noqa: ANN401  # fields of a message
        one = type(request)()
        one.CopyFrom(request)
        for field, value in changes.items():
            setattr(one, field, value)
        metadata = (("authorization", f"Bearer {token}"),) if token else ()
        return method(one.SerializeToString(), timeout=30, metadata=metadata)

    return ask


def test_a_shard_server_answers_the_cluster_alone(shard_server: RunningServer) -> None:
    folder = IndexFolder(shard_server.folder / "data" / "points")
    checksum = read_manifest(folder.path / "1").shards[1].crc32
    message = layouts.COUNT_REQUEST.pack({"filter": np.frombuffer(b"[[], [1]]", np.uint8)})
    request = shard_index_pb2.AskRequest(
        index="points", generation=1, shard=1, checksum=checksum, operation="count",
        messages=join([message]),
    )  # fmt: skip
    wrong = {"token": "another secret of the same length"}
    with shard_server.channel() as channel:
        ask = asking(channel, "Ask", request)
        (reply,) = divide(shard_index_pb2.AskResponse.FromString(ask()).replies)
        assert 40 < count_in(reply) < 60
        for code, options in (
            (CODES.UNAUTHENTICATED, {"token": ""}),
            (CODES.UNAUTHENTICATED, wrong),
            (CODES.UNIMPLEMENTED, {"operation": "erase"}),
            (CODES.NOT_FOUND, {"index": "nothing"}),
            (CODES.INVALID_ARGUMENT, {"index": "../points"}),
            (CODES.ABORTED, {"generation": 2}),
            (CODES.ABORTED, {"shard": 2}),
            (CODES.ABORTED, {"checksum": checksum ^ 1}),
            (CODES.INVALID_ARGUMENT, {"messages": b"?"}),
        ):
            assert failure(ask, **options).code is code
        refusal = failure(ask, **wrong)
        assert refusal.reason == "CLUSTER_TOKEN_REFUSED"
        assert "the same file as --cluster-token" in refusal.message
        queries: Callable[..., bytes] = channel.unary_unary("/divgrpc.v1.DiverseIndex/Query")
        details = failure(queries, query_pb2.QueryRequest(index="points").SerializeToString())
        assert (details.code, details.reason) == (CODES.UNIMPLEMENTED, "UNSUPPORTED")
        assert "call the server with --shards" in details.message


def test_a_shard_server_opens_builds_for_the_cluster_alone(shard_server: RunningServer) -> None:
    build = ".points.staging-0"
    request = shard_index_pb2.PrepareRequest(index="points", folder=build)
    with shard_server.channel() as channel:
        ask = asking(channel, "Prepare", request)
        for code, options in (
            (CODES.UNAUTHENTICATED, {"token": ""}),
            (CODES.INVALID_ARGUMENT, {"index": "../points"}),
            (CODES.INVALID_ARGUMENT, {"folder": f"../{build}"}),
            (CODES.INVALID_ARGUMENT, {"folder": ".others.staging-0"}),
        ):
            assert failure(ask, **options).code is code
        assert failure(ask).code is CODES.NOT_FOUND


def test_a_shard_server_says_whom_to_call(shard_server: RunningServer) -> None:
    with Client(shard_server.target) as client:
        for call in (client.list_indexes, lambda: client.build("points", POINTS)):
            with failing(CODES.UNIMPLEMENTED, UnsupportedError, match="is a shard server"):
                call()
