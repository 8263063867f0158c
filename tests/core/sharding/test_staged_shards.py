"""Searches of shards that are being built, as a machine measures them that is not the builder."""

import shutil
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from divgrpc.errors import IndexNotFoundError, InvalidArgumentError
from divgrpc.parameters import BuildParameters
from divgrpc.sharding import layouts, measuring, staged_arrays, staged_shards
from divgrpc.sharding.layouts import MEASURE_REPLY, STAGED_QUESTION
from divgrpc.sharding.measuring import Question
from divgrpc.sharding.messages import join
from divgrpc.sharding.staged_build import StagedBuild
from divgrpc.sharding.staged_shards import MEASURE, StagedShard, pack_question
from support.data.mixed_indexes import FAMILIES, KINDS, METRICS, drawn, stored_as
from support.data.staged_shards import Answer, built_on_shards

ROWS = 1500
SHARDS = 3
# Each two values of different options occur together.
CASES = [
    (family, metric, KINDS[(one + other) % len(KINDS)])
    for one, family in enumerate(FAMILIES)
    for other, metric in enumerate(METRICS)
]
DENSE = drawn(ROWS, 20, 2, "cosine")


class _Machine:
    """Answers messages about shards, and keeps them."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.builds: dict[Path, StagedBuild] = {}

    def __call__(self, folder: Path, message: bytes) -> bytes:
        # The thread that reports progress, because a builder sends both through one socket.
        assert threading.current_thread() is threading.main_thread()
        self.messages.append(message)
        build = self.builds.setdefault(folder, StagedBuild(folder))
        return build.ask(MEASURE, message)


@pytest.mark.parametrize("number", range(len(CASES)))
def test_a_build_that_is_measured_elsewhere_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Shards are asked for two points at first, and so again. Each reply is compared."""
    family, metric, kind = CASES[number]
    points = stored_as(drawn(ROWS, 20, 2, metric), kind)
    options: dict[str, Any] = {"n_components": 8}
    if family != "cells":
        options |= {"n_tables": 2, "n_bits": 4}
    parameters = BuildParameters(hash_family=family, metric=metric, seed=3, **options)
    expected = built_on_shards(tmp_path / "here", points, parameters, SHARDS)
    monkeypatch.setattr(measuring, "share_of", lambda limit, _: min(limit, 2))
    machine = _Machine()
    assert built_on_shards(tmp_path / "there", points, parameters, SHARDS, machine) == expected
    assert len(machine.builds) == SHARDS
    assert len(machine.messages) > 400 * SHARDS


def ask_once(tmp_path: Path, answer: Answer, points: object = DENSE) -> None:
    """Build an index on shards; `answer` is called once, and the builder answers otherwise."""
    machine = _Machine()
    answers: list[Answer] = [answer]

    def answer_once(folder: Path, message: bytes) -> bytes:
        return answers.pop()(folder, message) if answers else machine(folder, message)

    built_on_shards(
        tmp_path / "points", points, BuildParameters(hash_family="lsh_div"), 1, answer_once
    )
    assert not answers


def test_no_vectors_are_offered(tmp_path: Path) -> None:
    """What is copied to other machines has the size of the codes."""

    def answer(folder: Path, message: bytes) -> bytes:
        files = staged_arrays.StagedArrays(folder, staged_shards.OFFER).files
        assert {*files} == {
            *("codes", "scan_terms", "hyperplanes", "thresholds", "ids"),
            *("table_starts", "table_keys", "table_offsets", "table_rows"),
        } & {*files}
        assert {"codes", "ids", "hyperplanes"} <= {*files}
        assert all(path.exists() for path, _ in files.values())
        return StagedShard(folder).answer(message)

    ask_once(tmp_path, answer)


def test_messages_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    def answer(folder: Path, message: bytes) -> bytes:
        shard = StagedShard(folder)
        noise = np.frombuffer(b"noise123", np.uint8)
        other = join([layouts.COUNT_REQUEST.pack({})])
        for bad in (
            *(b"", b"?", STAGED_QUESTION.pack({}), STAGED_QUESTION.pack({"messages": noise})),
            *(pack_question("", other), pack_question("", join([b""])), message[:-8]),
        ):
            with pytest.raises(InvalidArgumentError):
                shard.answer(bad)
        assert shard.answer(pack_question("", join([]))) == join([])
        return shard.answer(message)

    ask_once(tmp_path, answer)


def test_a_builder_of_another_version_is_not_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(folder: Path, message: bytes) -> bytes:
        with monkeypatch.context() as patch:
            patch.setattr(staged_arrays, "VERSION", "0.0.9")
            with pytest.raises(IndexNotFoundError, match=r"of version .* this is 0\.0\.9"):
                StagedBuild(folder).ask(MEASURE, message)
        return StagedBuild(folder).ask(MEASURE, message)

    ask_once(tmp_path, answer)


def test_a_large_shard_is_not_read_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(folder: Path, message: bytes) -> bytes:
        with monkeypatch.context() as patch:
            patch.setattr(staged_shards, "_READ_BYTES_MAX", 10_000)
            with pytest.raises(IndexNotFoundError, match="without --cache-dir reads at most 10000"):
                StagedShard(folder)
        return StagedShard(folder).answer(message)

    ask_once(tmp_path, answer)


def test_nothing_is_answered_after_the_offer(tmp_path: Path) -> None:
    """Nothing is left of it, neither here nor in the folder of the index."""
    machine = _Machine()
    parameters = BuildParameters(hash_family="lsh_div")
    built_on_shards(tmp_path / "points", DENSE, parameters, SHARDS, machine)
    for folder, build in machine.builds.items():
        assert build.close_ended()
        with pytest.raises(IndexNotFoundError, match="no build offers"):
            build.ask(MEASURE, machine.messages[0])
        assert "/shards/" in str(folder)
    assert [*(tmp_path / "points").rglob(staged_shards.OFFER)] == []


def test_files_that_go_away_end_no_process(tmp_path: Path) -> None:
    """A shard in memory answers. One whose files go before or while they are read is refused."""

    class _EndError(Exception):
        pass

    def answer(folder: Path, message: bytes) -> bytes:
        shard = StagedShard(folder)
        expected = shard.answer(message)
        (folder / "codes.npy").unlink()
        with pytest.raises(IndexNotFoundError):
            StagedShard(folder)
        shutil.rmtree(folder.parents[1])
        assert shard.answer(message) == expected
        with pytest.raises(IndexNotFoundError):
            StagedShard(folder)
        raise _EndError

    with pytest.raises(_EndError):
        ask_once(tmp_path, answer)
    assert not (tmp_path / "points").exists()


_NUMBERS = [np.array([3, 5, 9])]
_REPLY = {"ids": [5, 3, 9], "codes": [1.0, 2.0, 3.0], "ends": [2, 3]}


def question(limit: int = 2, *, has_codes: bool = True) -> Question:
    return Question(b"", 2, limit, has_codes, _NUMBERS, {})


def reply(**columns: list[float]) -> bytes:
    kinds = {"ids": np.int64, "codes": np.float32, "ends": np.int64}
    values = {**_REPLY, **columns}
    return join([MEASURE_REPLY.pack({n: np.array(values[n], k) for n, k in kinds.items()})])


def test_points_in_a_reply_are_those_of_each_query() -> None:
    parts = question().unpack(0, reply())
    assert [part.ids.tolist() for part in parts] == [[5, 3], [9]]
    assert [part.codes.tolist() for part in parts] == [[1, 2], [3]]
    (first, second) = question(has_codes=False).unpack(0, reply(codes=[]))
    assert (first.ids.tolist(), len(second.codes)) == ([5, 3], 0)
    empty = question().unpack(0, reply(ids=[], codes=[], ends=[0, 0]))
    assert [len(part.ids) for part in empty] == [0, 0]


@pytest.mark.parametrize(
    "make",
    [
        lambda: b"",
        lambda: b"?" * 64,
        lambda: join([]),
        lambda: join([MEASURE_REPLY.pack({})]),
        lambda: reply() + bytes(8),
        partial(reply, ends=[3]),
        partial(reply, ends=[2, 3, 3]),
        partial(reply, ends=[2, 2]),
        partial(reply, ends=[4, 3]),
        partial(reply, ends=[-1, 3]),
        partial(reply, ends=[2**63 - 1, -(2**63)]),
        partial(reply, ends=[3, 3]),
        partial(reply, codes=[1.0]),
        partial(reply, codes=[]),
        partial(reply, codes=[1.0, np.nan, 3.0]),
        partial(reply, ids=[5, -1, 9]),
        partial(reply, ids=[5, 3, 10]),
    ],
)
def test_replies_that_no_shard_sends_are_refused(make: Callable[[], bytes]) -> None:
    """`ValueError` is what the builder takes for a fault of the shard server."""
    with pytest.raises(ValueError, match="message"):
        question().unpack(0, make())


def test_distances_that_were_not_asked_for_are_refused() -> None:
    with pytest.raises(InvalidArgumentError):
        question(has_codes=False).unpack(0, reply())
