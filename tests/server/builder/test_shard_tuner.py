"""Searches of a build that shard servers measure, as the builder asks for them."""

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from scipy import sparse

from divgrpc import build_rows
from divgrpc.builder import tuning
from divgrpc.builder.builder import IndexBuilder
from divgrpc.errors import InvalidArgumentError
from divgrpc.parameters import BuildParameters
from divgrpc.sharding import staged_finding, staged_shards
from divgrpc.sharding.copies import ShardCopies
from divgrpc.sharding.divided_build import DividedBuild
from divgrpc.sharding.layouts import MEASURE_REPLY, STAGED_SEARCH, STAGED_SEARCH_REPLY
from divgrpc.sharding.messages import Buffer, join
from divgrpc.sharding.staged_build import folder_of
from divgrpc.sharding.staged_finding import BLOCKS_MAX, FIND
from divgrpc.sharding.staged_shards import MEASURE
from divgrpc.storage.generations import Staging, read_manifest, staging
from divgrpc.types import HashFamily, Metric, Progress
from divgrpc.vectors import Rows, SparseRows
from divgrpc_protos.v1 import shard_index_pb2
from divgrpc_server.builder import shard_tuner
from divgrpc_server.builder import shard_work as shard_work_module
from divgrpc_server.builder.shard_tuner import ShardTuner
from divgrpc_server.ipc import rounds
from divgrpc_server.ipc.job_frames import Frame
from support.data.served_index import random_points
from support.data.staged_shards import built_on_shards
from support.processes.builder_front import Answer, Shards, shard_work
from support.processes.running_server import eventually

PLACES, SHARDS = 2, 5
BLOCK_ROWS = 20
POINTS = random_points(1_500, dims=16, seed=3)
SPARSE = SparseRows.of(sparse.random_array((900, 40), density=0.5, format="csr", rng=1))


@pytest.fixture(autouse=True)
def few_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_tuner, "_ROWS_MIN", 1)
    # A batch has few queries, so that places are asked often.
    monkeypatch.setattr(tuning, "_BATCH_QUERIES_MAX", 4)
    # Blocks have few points for the same reason.
    monkeypatch.setattr(build_rows, "_BLOCK_ROWS_MAX", BLOCK_ROWS)


class _Asks:
    """What places are asked.

    messages: the place and the folder of each message that asks what a search hashes. searches: the
    place and the first row of each message that asks for nearest points.
    """

    def __init__(self) -> None:
        self.messages: list[tuple[int, str]] = []
        self.searches: list[tuple[int, int]] = []

    def keep(self, reply: Answer) -> Answer:
        """Return an answer that notes what it is asked."""

        def answer(place: int, request: shard_index_pb2.AskRequest) -> bytes:
            if request.operation == FIND:
                start, _ = STAGED_SEARCH.unpack(request.messages)["rows"].tolist()
                self.searches.append((place, start))
            if request.operation == MEASURE:
                self.messages.append((place, folder_of(MEASURE, request.messages)))
            return reply(place, request)

        return answer


def build(
    folder: Path,
    answer: Callable[[Staging], Answer],
    log: Mock | None = None,
    first: Frame | None = Frame.END,
    *,
    hash_family: HashFamily = "lsh_div",
    metric: Metric = "cosine",
    points: Rows = POINTS,
) -> tuple[list[tuple[int, str]], list[tuple[int, int]]]:
    """Build an index with the help of places.

    Returns `messages` and `searches` of `_Asks`. The index is compared with one that the same
    process builds without places.
    """
    parameters = BuildParameters(hash_family=hash_family, metric=metric)
    asks, steps = _Asks(), list[Progress]()
    with (
        staging(folder / "points", replace=False) as stage,
        shard_work(asks.keep(answer(stage)), PLACES, log or Mock(), first) as (work, _),
    ):
        division = DividedBuild(stage, SHARDS)
        division.tune_in = ShardTuner(work, stage)
        builder = IndexBuilder(stage, parameters, points=division, on_progress=steps.append)
        builder.append(points)
        builder.build()
        assert not [*folder.rglob(staged_shards.OFFER), *folder.rglob(staged_finding.OFFER)]
    expected = built_on_shards(folder / "here", points, parameters, SHARDS)
    assert read_manifest(folder / "points" / "1") == expected
    # A caller sees that the build goes on.
    assert sum(step.stage == "tuning" for step in steps) > 20
    return asks.messages, asks.searches


@pytest.mark.parametrize("hash_family", ["lsh_div", "cells"])
def test_the_place_of_each_shard_measures_it(tmp_path: Path, hash_family: HashFamily) -> None:
    """The caller may end its upload meanwhile."""
    log = Mock()
    messages, searches = build(tmp_path, Shards, log, hash_family=hash_family)
    assert {(place, int(folder.rpartition("/")[2])) for place, folder in messages} == {
        (shard % PLACES, shard) for shard in range(SHARDS)
    }
    assert len(messages) > 60 * SHARDS
    # There are two searches, for tuning and for the threshold of near-copies. Places have the parts
    # that the cores of this machine do not take, and each part once.
    counts = Counter(first for _, first in searches)
    assert {place for place, _ in searches} == {*range(PLACES)}
    assert counts.keys() <= {*range(0, len(POINTS), BLOCKS_MAX * BLOCK_ROWS)}
    assert max(counts.values()) <= 2
    assert len(searches) >= 4
    log.warning.assert_not_called()


def test_few_points_are_measured_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_tuner, "_ROWS_MIN", len(POINTS) + 1)
    assert build(tmp_path, Shards, first=None) == ([], [])


@pytest.mark.parametrize(
    ("operation", "verb", "asks"), [(MEASURE, "measure searches of", 2), (FIND, "find", 1)]
)
def test_a_place_that_does_not_work_costs_no_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str, verb: str, asks: int
) -> None:
    """It is left alone for a while; the log says it once."""
    monkeypatch.setattr(shard_work_module, "_PAUSE_SECONDS", 600.0)
    log = Mock()

    def answer(stage: Staging) -> Answer:
        shards = Shards(stage)

        def refuse(place: int, request: shard_index_pb2.AskRequest) -> bytes:
            if (place, request.operation) == (0, operation):
                return rounds.pack_refusal("no folder")
            return shards(place, request)

        return refuse

    messages, searches = build(tmp_path, answer, log)
    # The first message lets it copy the shards, and the next one finds that it has not.
    assert sum(place == 0 for place, _ in messages) == asks * len(range(0, SHARDS, PLACES))
    assert sum(place == 1 for place, _ in messages) > 100
    assert 1 in {place for place, _ in searches}
    (call,) = log.warning.call_args_list
    text = f"a shard server does not {verb} points of a build, so this process does"
    assert call.args == (text,)
    assert call.kwargs == {"index": "points", "place": 0, "reason": "no folder"}


def test_places_that_copy_at_first_are_asked_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copies go when the build is over."""
    monkeypatch.setattr(shard_work_module, "_PAUSE_SECONDS", 0.01)
    copies = ShardCopies(tmp_path / "cache", tmp_path, Mock())
    folders = set()

    def answer(stage: Staging) -> Answer:
        shards = Shards(stage, open_copy=copies.staged.open)

        def answer_from_copy(place: int, request: shard_index_pb2.AskRequest) -> bytes:
            packed = shards(place, request)
            has_asked = request.operation == MEASURE
            if has_asked and rounds.refusal_of(rounds.unpack_round(packed)) is None:
                folders.add(folder_of(MEASURE, request.messages))
            return packed

        return answer_from_copy

    build(tmp_path, answer)
    assert len(folders) == SHARDS
    eventually(lambda: not copies.staged.remove_ended())
    assert [*(tmp_path / "cache").iterdir()] == []


@pytest.mark.parametrize("metric", ["cosine", "inner_product", "euclidean"])
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_points_of_every_kind_are_found(tmp_path: Path, kind: str, metric: Metric) -> None:
    log = Mock()
    points = POINTS if kind == "dense" else SPARSE
    _, searches = build(tmp_path, Shards, log, points=points, metric=metric)
    assert len(searches) > 2
    log.warning.assert_not_called()


_POINTS = {"ids": np.array([2**40]), "codes": np.zeros(1, np.float32), "ends": np.array([1])}
_NEAREST = {"rows": np.array([5000]), "gains": np.zeros(1, np.float32), "ends": np.ones(192, int)}
# Of 192 queries each has one point, and the first queries have one point twice.
_FEW = {"rows": np.full(192, 5), "gains": np.zeros(192, np.float32), "ends": np.arange(1, 193)}
_TWICE = {"rows": np.full(400, 5), "gains": np.zeros(400, np.float32)}
_TWICE["ends"] = np.minimum(400, 40 * np.arange(1, 193))
_NO_ENDS = {**_NEAREST, "ends": np.array([1])}
_NAN = {**_NEAREST, "rows": np.array([5]), "gains": np.full(1, np.nan, np.float32)}


@pytest.mark.parametrize(
    ("operation", "reply"),
    [
        (MEASURE, b""),
        (MEASURE, b"?"),
        (MEASURE, join([])),
        (MEASURE, join([MEASURE_REPLY.pack({})])),
        (MEASURE, join([MEASURE_REPLY.pack(_POINTS)])),
        (FIND, b"?"),
        (FIND, STAGED_SEARCH_REPLY.pack({})),
        (FIND, STAGED_SEARCH_REPLY.pack(_NEAREST)),
        (FIND, STAGED_SEARCH_REPLY.pack(_NO_ENDS)),
        (FIND, STAGED_SEARCH_REPLY.pack(_NAN)),
        (FIND, STAGED_SEARCH_REPLY.pack(_FEW)),
        (FIND, STAGED_SEARCH_REPLY.pack(_TWICE)),
    ],
    ids=[
        *("nothing", "noise", "no reply", "no queries", "other points"),
        *("noise", "no queries", "other rows", "no ends", "not a number", "few", "twice"),
    ],
)
def test_replies_that_do_not_fit_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str, reply: bytes
) -> None:
    monkeypatch.setattr(shard_work_module, "_PAUSE_SECONDS", 600.0)
    response = shard_index_pb2.AskResponse(replies=reply).SerializeToString()
    log = Mock()

    def answer(stage: Staging) -> Answer:
        shards = Shards(stage)

        def answer_wrongly(place: int, request: shard_index_pb2.AskRequest) -> bytes:
            if request.operation == operation:
                return rounds.pack_round({place: response})
            return shards(place, request)

        return answer_wrongly

    messages, searches = build(tmp_path, answer, log)
    assert log.warning.call_count == 1
    assert messages
    assert searches


def test_replies_may_come_in_any_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replies to the rounds of one question are those of their own shards."""
    receive = shard_work_module.ShardWork._receive_all

    def receive_backwards(
        work: shard_work_module.ShardWork, numbers: list[int]
    ) -> list[tuple[int, bytes]]:
        return [*receive(work, numbers)][::-1]

    monkeypatch.setattr(shard_work_module.ShardWork, "_receive_all", receive_backwards)
    log = Mock()
    build(tmp_path, Shards, log)
    log.warning.assert_not_called()


class _Doubling:
    """Doubles the numbers of shards, and keeps those for which no place has replied."""

    operation, verb = "double", "double"

    def __init__(self) -> None:
        self.here: list[int] = []

    def pack(self, shard: int) -> bytes:
        return bytes([shard])

    def unpack(self, _: int, reply: Buffer) -> int:
        return 2 * int(bytes(reply)[0])

    def work(self, shard: int) -> int:
        self.here.append(shard)
        return 2 * shard


def test_a_place_that_fails_for_one_of_its_shards_is_asked_more_seldom(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Shards of places that are left alone are not lost, and results are in order."""
    seconds = Mock(return_value=100.0)
    monkeypatch.setattr(shard_work_module, "time", Mock(monotonic=seconds))

    def answer(place: int, request: shard_index_pb2.AskRequest) -> bytes:
        if request.messages == b"\0":
            return rounds.pack_refusal("busy")
        response = shard_index_pb2.AskResponse(replies=request.messages)
        return rounds.pack_round({place: response.SerializeToString()})

    with shard_work(answer, PLACES, Mock()) as (work, places):
        for moment, at_places, here in (
            (100.0, [0, 1, 0, 1], [0]),
            (100.9, [1, 1], [2, 0]),
            (101.1, [0, 1, 0, 1], [0]),
            (103.0, [1, 1], [2, 0]),
            (103.2, [0, 1, 0, 1], [0]),
            (107.1, [1, 1], [2, 0]),
        ):
            places.clear()
            seconds.return_value, task = moment, _Doubling()
            assert work.ask(task, [2, 1, 0, 3]) == [4, 2, 0, 6]
            assert (places, task.here) == (at_places, here)
        # As soon as it has answered for all, it is asked after the shortest time.
        seconds.return_value = 200.0
        assert work.ask(_Doubling(), [2]) == [4]
        assert work.ask(_Doubling(), [0]) == [0]
        seconds.return_value = 201.1
        assert work.ask(task := _Doubling(), [2]) == [4]
        assert task.here == []


def test_nothing_may_follow_the_commit(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="nothing may follow"):
        build(tmp_path, Shards, first=Frame.MESSAGE)
    assert [*tmp_path.glob(".points.staging-*")] == []


@pytest.mark.parametrize("asks", [1, 40])
def test_a_build_that_is_cancelled_while_it_waits_ends_at_once(tmp_path: Path, asks: int) -> None:
    """Nothing is left of it; a place may be silent when its caller leaves."""
    is_over = threading.Event()

    def answer(stage: Staging) -> Answer:
        shards, left = Shards(stage), [asks]

        def hang_up(place: int, request: shard_index_pb2.AskRequest) -> bytes:
            left[0] -= 1
            if left[0]:
                return shards(place, request)
            is_over.set()
            raise EOFError

        return hang_up

    with pytest.raises((EOFError, BrokenPipeError, ConnectionResetError)):
        build(tmp_path, answer)
    assert is_over.is_set()
    assert [*tmp_path.glob(".points.staging-*")] == []
