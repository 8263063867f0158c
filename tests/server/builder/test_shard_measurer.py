"""Searches of a build that shard servers measure, as the builder asks for them."""

import threading
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from divgrpc.builder import tuning
from divgrpc.builder.builder import IndexBuilder
from divgrpc.errors import InvalidArgumentError
from divgrpc.parameters import BuildParameters
from divgrpc.sharding.copies import ShardCopies
from divgrpc.sharding.divided_build import DividedBuild
from divgrpc.sharding.layouts import MEASURE_REPLY
from divgrpc.sharding.messages import Buffer, join
from divgrpc.sharding.staged_build import folder_of
from divgrpc.sharding.staged_shards import MEASURE, OFFER
from divgrpc.storage.generations import Staging, read_manifest, staging
from divgrpc.types import HashFamily, Progress
from divgrpc_protos.v1 import shard_index_pb2
from divgrpc_server.builder import shard_measurer
from divgrpc_server.builder import shard_work as shard_work_module
from divgrpc_server.builder.shard_measurer import ShardMeasurer
from divgrpc_server.ipc import rounds
from divgrpc_server.ipc.job_frames import Frame
from support.data.served_index import random_points
from support.data.staged_shards import built_on_shards
from support.processes.builder_front import Answer, Shards, shard_work
from support.processes.running_server import eventually

PLACES, SHARDS = 2, 5
POINTS = random_points(1_500, dims=16, seed=3)


@pytest.fixture(autouse=True)
def few_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_measurer, "_ROWS_MIN", 1)
    # A batch has few queries, so that places are asked often.
    monkeypatch.setattr(tuning, "_BATCH_QUERIES_MAX", 4)


def build(
    folder: Path,
    answer: Callable[[Staging], Answer],
    log: Mock | None = None,
    first: Frame | None = Frame.END,
    hash_family: HashFamily = "lsh_div",
) -> list[tuple[int, str]]:
    """Build an index with the help of places; return the place and the folder of each message.

    The index is compared with one that the same process builds without places.
    """
    parameters = BuildParameters(hash_family=hash_family)
    messages: list[tuple[int, str]] = []
    steps: list[Progress] = []

    def keep(reply: Answer) -> Answer:
        def answer_and_keep(place: int, request: shard_index_pb2.AskRequest) -> bytes:
            assert request.operation == MEASURE
            messages.append((place, folder_of(MEASURE, request.messages)))
            return reply(place, request)

        return answer_and_keep

    with (
        staging(folder / "points", replace=False) as stage,
        shard_work(keep(answer(stage)), PLACES, log or Mock(), first) as (work, _),
    ):
        division = DividedBuild(stage, SHARDS)
        division.measure_in = ShardMeasurer(work, stage)
        builder = IndexBuilder(stage, parameters, points=division, on_progress=steps.append)
        builder.append(POINTS)
        builder.build()
        assert [*folder.rglob(OFFER)] == []
    expected = built_on_shards(folder / "here", POINTS, parameters, SHARDS)
    assert read_manifest(folder / "points" / "1") == expected
    # A caller sees that the build goes on.
    assert sum(step.stage == "tuning" for step in steps) > 20
    return messages


@pytest.mark.parametrize("hash_family", ["lsh_div", "cells"])
def test_the_place_of_each_shard_measures_it(tmp_path: Path, hash_family: HashFamily) -> None:
    """The caller may end its upload meanwhile."""
    log = Mock()
    messages = build(tmp_path, Shards, log, hash_family=hash_family)
    assert {(place, int(folder.rpartition("/")[2])) for place, folder in messages} == {
        (shard % PLACES, shard) for shard in range(SHARDS)
    }
    assert len(messages) > 60 * SHARDS
    log.warning.assert_not_called()


def test_few_points_are_measured_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_measurer, "_ROWS_MIN", len(POINTS) + 1)
    assert build(tmp_path, Shards, first=None) == []


def test_a_place_that_does_not_measure_costs_no_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is left alone for a while; the log says it once."""
    monkeypatch.setattr(shard_work_module, "_PAUSE_SECONDS", 600.0)
    log = Mock()
    messages = build(tmp_path, lambda stage: Shards(stage, "no folder", ""), log)
    # The first message lets it copy the shards, and the next one finds that it has not.
    assert sum(place == 0 for place, _ in messages) == 2 * len(range(0, SHARDS, PLACES))
    assert sum(place == 1 for place, _ in messages) > 100
    (call,) = log.warning.call_args_list
    assert call.args == (
        "a shard server does not measure searches of points of a build, so this process does",
    )
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
            if rounds.refusal_of(rounds.unpack_round(packed)) is None:
                folders.add(folder_of(MEASURE, request.messages))
            return packed

        return answer_from_copy

    build(tmp_path, answer)
    assert len(folders) == SHARDS
    eventually(lambda: not copies.staged.remove_ended())
    assert [*(tmp_path / "cache").iterdir()] == []


_WRONG = {"ids": np.array([2**40]), "codes": np.zeros(1, np.float32), "ends": np.array([1])}


@pytest.mark.parametrize(
    "reply",
    [b"", b"?", join([]), join([MEASURE_REPLY.pack({})]), join([MEASURE_REPLY.pack(_WRONG)])],
    ids=["nothing", "noise", "no reply", "no queries", "other points"],
)
def test_replies_of_another_version_are_not_used(tmp_path: Path, reply: bytes) -> None:
    response = shard_index_pb2.AskResponse(replies=reply).SerializeToString()
    log = Mock()
    build(tmp_path, lambda _: lambda place, _: rounds.pack_round({place: response}), log)
    assert log.warning.call_count == 1


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
