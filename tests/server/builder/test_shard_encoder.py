"""Blocks of a build that shard servers encode, as the builder asks for them."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from divgrpc import Index
from divgrpc.arrays import Array
from divgrpc.builder import encoder
from divgrpc.builder.builder import IndexBuilder
from divgrpc.errors import InvalidArgumentError
from divgrpc.parameters import BuildParameters
from divgrpc.platforms import count_cores
from divgrpc.sharding.divided_build import DividedBuild
from divgrpc.sharding.layouts import ENCODE_REPLY
from divgrpc.storage.generations import IndexFolder, Staging, staging
from divgrpc.types import HashFamily
from divgrpc_protos.v1 import shard_index_pb2
from divgrpc_server.builder import shard_work as shard_work_module
from divgrpc_server.builder.shard_encoder import ShardEncoder
from divgrpc_server.ipc import rounds
from divgrpc_server.ipc.job_frames import Frame
from support.data.divided_indexes import differing_arrays
from support.data.served_index import random_points
from support.processes.builder_front import Answer, Shards, shard_work

ROWS_PER_BLOCK = 32
POINTS = random_points(ROWS_PER_BLOCK * 4 * (count_cores() + 2), dims=16, seed=3)
PLACES = 2


def build(
    folder: Path,
    log: Mock,
    answer: Callable[[Staging], Answer],
    first: Frame | None = Frame.END,
    hash_family: HashFamily = "auto",
) -> list[int]:
    """Build an index with the help of places, and return those that were asked."""
    parameters = BuildParameters(hash_family=hash_family)
    with (
        staging(folder / "points", replace=False) as stage,
        shard_work(answer(stage), PLACES, log, first) as (work, places),
    ):
        division = DividedBuild(stage, PLACES)
        division.encode_in = partial(ShardEncoder, work, stage)
        builder = IndexBuilder(stage, parameters, points=division)
        builder.append(POINTS)
        builder.build()
    whole = Index.build(POINTS, hash_family=hash_family).engine
    assert differing_arrays(folder / "points" / "1", whole) == []
    return places


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder, "_BLOCK_NUMBERS", ROWS_PER_BLOCK * POINTS.shape[1])


def test_all_places_and_this_process_encode(tmp_path: Path) -> None:
    """The caller may end its upload meanwhile."""
    log = Mock()
    places = build(tmp_path, log, Shards)
    assert {*places} == {0, 1}
    assert len(places) < len(POINTS) // ROWS_PER_BLOCK
    log.warning.assert_not_called()


def test_a_place_that_does_not_encode_costs_no_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is left alone for a while; the log says it once."""
    monkeypatch.setattr(shard_work_module, "_PAUSE_SECONDS", 600.0)
    log = Mock()
    places = build(tmp_path, log, lambda stage: Shards(stage, "no folder", ""))
    assert 1 <= places.count(0) <= 2
    (call,) = log.warning.call_args_list
    assert call.kwargs == {"index": "points", "place": 0, "reason": "no folder"}


def test_places_are_asked_again_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here at once, and for all blocks."""
    monkeypatch.setattr(shard_work_module, "_PAUSE_SECONDS", -1.0)
    monkeypatch.setattr(shard_work_module, "_ITEMS_PER_CORE", 0)
    refusals = [rounds.pack_refusal("no room")] * 5

    def answer(stage: Staging) -> Answer:
        shards = Shards(stage)
        return lambda place, request: refusals.pop() if refusals else shards(place, request)

    log = Mock()
    places = build(tmp_path, log, answer)
    shards = IndexFolder(tmp_path / "points").read_info().shards
    assert len(places) == sum(-(-shard.rows // ROWS_PER_BLOCK) for shard in shards) + 5
    assert log.warning.call_count == 1


_NARROW: dict[str, Array] = {
    "cells": np.zeros(ROWS_PER_BLOCK, np.int32),
    "terms": np.zeros(ROWS_PER_BLOCK, np.uint32),
    "codes": np.zeros((ROWS_PER_BLOCK, 1), np.uint8),
}


@pytest.mark.parametrize(
    "reply",
    [b"", ENCODE_REPLY.pack({}), ENCODE_REPLY.pack(_NARROW), b"?"],
    ids=["nothing", "no rows", "short codes", "noise"],
)
def test_replies_of_another_version_are_not_used(tmp_path: Path, reply: bytes) -> None:
    response = shard_index_pb2.AskResponse(replies=reply).SerializeToString()
    log = Mock()
    build(tmp_path, log, lambda _: lambda place, _: rounds.pack_round({place: response}))
    assert log.warning.call_count == 1


@pytest.mark.parametrize(("hash_family", "cell"), [("cells", -1), ("cells", 2**20), ("lsh_div", 0)])
def test_cells_that_a_build_lacks_are_not_used(
    tmp_path: Path, hash_family: HashFamily, cell: int
) -> None:
    def answer(stage: Staging) -> Answer:
        shards = Shards(stage)

        def answer_wrongly(place: int, request: shard_index_pb2.AskRequest) -> bytes:
            (reply,) = rounds.unpack_round(shards(place, request)).messages.values()
            response = shard_index_pb2.AskResponse.FromString(reply)
            columns = ENCODE_REPLY.unpack(response.replies)
            cells = columns["cells"].copy()
            cells[-1] = cell
            response.replies = ENCODE_REPLY.pack({**columns, "cells": cells})
            return rounds.pack_round({place: response.SerializeToString()})

        return answer_wrongly

    log = Mock()
    build(tmp_path, log, answer, hash_family=hash_family)
    assert "cells" in log.warning.call_args.kwargs["reason"]


def test_nothing_may_follow_the_commit(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="nothing may follow"):
        build(tmp_path, Mock(), Shards, Frame.MESSAGE)
    assert [*tmp_path.glob(".points.staging-*")] == []


def test_a_front_that_hangs_up_ends_the_build(tmp_path: Path) -> None:
    def hang_up(*_: object) -> bytes:
        raise EOFError

    with pytest.raises((EOFError, BrokenPipeError, ConnectionResetError)):
        build(tmp_path, Mock(), lambda _: hang_up)
    assert [*tmp_path.glob(".points.staging-*")] == []
