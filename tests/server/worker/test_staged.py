"""What a worker of a shard server does for a build that is under way."""

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from google.rpc import code_pb2, status_pb2

from divgrpc.builder import encoder
from divgrpc.builder.builder import IndexBuilder
from divgrpc.builder.encoder import EncodedRows, encode_on_all_cores
from divgrpc.builder.hash_functions import HashFunctions
from divgrpc.errors import IndexNotFoundError
from divgrpc.labels import products
from divgrpc.labels.build_inputs import LabelInputs
from divgrpc.labels.products import multiply_part
from divgrpc.labels.training import TrainedLabels, train_on
from divgrpc.labels.training_data import TrainingData
from divgrpc.parameters import BuildParameters, LabelParameters
from divgrpc.sharding import staged_arrays, staged_training
from divgrpc.sharding.copies import ShardCopies
from divgrpc.sharding.divided_build import DividedBuild
from divgrpc.sharding.layouts import STAGED_REQUEST
from divgrpc.sharding.staged_arrays import columns_of
from divgrpc.sharding.staged_points import (
    ENCODE,
    StagedPoints,
    offered,
    pack_block,
    unpack_encoded,
)
from divgrpc.sharding.staged_shards import MEASURE, pack_question
from divgrpc.sharding.staged_training import MULTIPLY, unpack_product
from divgrpc.sharding.staged_training import offered as offered_training
from divgrpc.storage.arrays import ArrayFolder
from divgrpc.storage.generations import staging
from divgrpc.storage.writers import ArrayStore
from divgrpc.vectors import Rows
from divgrpc_protos.v1 import shard_index_pb2
from divgrpc_server.ipc.packets import Op, Outcome, Request
from divgrpc_server.worker import staged
from divgrpc_server.worker.shards import Ask, ShardCache, parse_ask
from divgrpc_server.worker.staged import StagedCache
from support.data.served_index import random_points
from support.data.staged_shards import built_on_shards
from support.processes.running_server import eventually

POINTS = random_points(60, dims=8, seed=1)
BLOCK = range(32)


def build(root: Path, check: Callable[[str, Path, HashFunctions, Rows], None]) -> None:
    """Build an index on a shard, and call `check` while its points are offered.

    `check` takes the name of the folder in messages, and the folder.
    """

    def encode(
        folder: Path, functions: HashFunctions, points: Rows, blocks: Sequence[range]
    ) -> Iterator[tuple[range, EncodedRows]]:
        with offered(folder, stage, functions, points):
            check(str(folder.relative_to(root)), folder, functions, points)
        yield from encode_on_all_cores(functions, points, blocks)

    with staging(root / "points", replace=True) as stage:
        division = DividedBuild(stage, 1)
        division.encode_in = lambda folder: partial(encode, folder)
        builder = IndexBuilder(stage, BuildParameters(), points=division)
        builder.append(POINTS)
        builder.build()


def ask(cache: ShardCache, messages: bytes, **changes: Any) -> bytes | int:  # noqa: ANN401  # fields of a message
    """Return the replies to a call, or the code of its status."""
    fields = {"index": "points", "operation": ENCODE, "messages": messages, **changes}
    payload = shard_index_pb2.AskRequest(**fields).SerializeToString()
    batch = parse_ask(Request(1, math.inf, Op.ASK, "", payload), Mock())
    reply = batch
    if isinstance(batch, Ask):
        try:
            core = cache.find(batch.name)
            assert core is not None
            reply = batch.start(core)
        except Exception as error:  # noqa: BLE001  # becomes the status of the call
            reply = batch.pack_error(error, Mock())
    assert not isinstance(reply, Ask)
    if reply.outcome == Outcome.STATUS:
        return int(status_pb2.Status.FromString(reply.payload).code)
    return shard_index_pb2.AskResponse.FromString(reply.payload).replies


def test_blocks_of_a_build_are_encoded_while_it_offers_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Afterwards the worker keeps nothing of it."""
    monkeypatch.setattr(staged, "_LOOK_SECONDS", 0.01)
    cache = ShardCache(tmp_path, Mock(), Mock())
    folders = []

    def check(name: str, _folder: Path, functions: HashFunctions, points: Rows) -> None:
        folders.append(name)
        reply = ask(cache, pack_block(name, BLOCK))
        assert isinstance(reply, bytes)
        ((_, expected),) = encode_on_all_cores(functions, points, [BLOCK])
        for array, other in zip(unpack_encoded(reply), expected, strict=True):
            assert array.tobytes() == other.tobytes()

    for _ in range(2):  # the second build replaces the first one
        build(tmp_path, check)
        eventually(lambda: not cache._staged._builds)
        assert ask(cache, pack_block(folders[-1], BLOCK)) == code_pb2.NOT_FOUND


def test_what_fits_no_build_is_refused_with_its_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block of too many rows would delay queries for long."""
    monkeypatch.setattr(encoder, "_BLOCK_NUMBERS", 32 * POINTS.shape[1])
    cache = ShardCache(tmp_path, Mock(), Mock())

    def check(name: str, *_: object) -> None:
        bad, absent = code_pb2.INVALID_ARGUMENT, code_pb2.NOT_FOUND
        for folder, code in (
            (".points.staging-0", absent),
            (".points.staging-", bad),
            (".points.staging-0/../points", bad),
            (".points.staging-0/shards/0", absent),
            (".points.staging-0/shards/", bad),
            (".points.staging-0/shards/../..", bad),
            (name + "/", bad),
            (f"../{tmp_path.name}/{name}", bad),
            (name.replace("points", "others"), bad),
            ("points", bad),
            (".", bad),
            ("", bad),
            ("\0", bad),
        ):
            assert ask(cache, pack_block(folder, BLOCK)) == code, folder
        for block in (range(-1, 4), range(4, 4), range(9, 4), range(32, 61), range(33)):
            assert ask(cache, pack_block(name, block)) == bad, block
        numbers = STAGED_REQUEST.pack({"folder": np.frombuffer(name.encode(), np.uint8)})
        for message in (b"", b"?", numbers):
            assert ask(cache, message) == bad
        assert ask(cache, pack_block(name, BLOCK), index="others") == bad
        assert ask(cache, pack_block(name, BLOCK), index="../points") == bad

    build(tmp_path, check)


def test_points_of_a_builder_of_another_version_are_not_encoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(_name: str, folder: Path, *_: object) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(staged_arrays, "VERSION", "0.0.9")
            with pytest.raises(IndexNotFoundError, match=r"a build of version .* this is 0\.0\.9"):
                StagedPoints(folder)

    build(tmp_path, check)


def test_builds_that_ask_in_turn_are_opened_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few are kept; one thread forgets those that are over."""
    names = {*"abcde"}

    def open_build(folder: Path, _: object) -> Mock:
        return Mock(close_ended=lambda: folder.name not in names)

    open_builds = Mock(side_effect=open_build)
    monkeypatch.setattr(staged, "StagedBuild", open_builds)
    monkeypatch.setattr(staged, "_LOOK_SECONDS", 0.01)
    threads = {*threading.enumerate()}
    cache = StagedCache(tmp_path)
    for folder in "ab" * 3 + "cd" + "a" + "e":
        cache.find(folder)
    assert [call.args[0].name for call in open_builds.call_args_list] == [*"abcde"]
    assert [*cache._builds] == [*"cdae"]
    assert len({*threading.enumerate()} - threads) == 1
    names -= {*"ae"}
    eventually(lambda: [*cache._builds] == [*"cd"])
    names.clear()
    eventually(lambda: not {*threading.enumerate()} - threads)
    assert not cache._builds


def test_all_shards_of_a_build_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until so many builds have asked since that it is not kept."""
    is_over = threading.Event()
    monkeypatch.setattr(staged, "StagedBuild", lambda *_: Mock(close_ended=is_over.is_set))
    monkeypatch.setattr(staged, "_LOOK_SECONDS", 0.01)
    cache = StagedCache(tmp_path)
    shards = [f"a/shards/{shard}" for shard in range(9)]
    for folder in ("a", *shards[:5], "b", "c", *shards[5:], "d"):
        cache.find(folder)
    assert {*cache._builds} == {"a", "b", "c", "d", *shards}
    cache.find("e")
    assert {*cache._builds} == {"a", "c", "d", "e", *shards}
    for folder in "cdef":
        cache.find(folder)
    assert {*cache._builds} == {*"cdef"}
    is_over.set()
    eventually(lambda: not cache._builds)


def multiply(cache: ShardCache, folder: str, rows: range, *matrix: int) -> bytes | int:
    """Return the reply to a message that asks for a product, or the code of its status."""
    columns = {**columns_of(folder, rows), "matrix": np.array(matrix, np.int64)}
    return ask(cache, STAGED_REQUEST.pack(columns), operation=MULTIPLY)


def check_refusals(cache: ShardCache, name: str, number: int) -> None:
    """Ask for what does not fit a matrix of four rows and two columns."""
    bad, absent = code_pb2.INVALID_ARGUMENT, code_pb2.NOT_FOUND
    for rows in (range(-1, 4), range(4, 4), range(52, 61), range(10)):
        assert multiply(cache, name, rows, 0, number, 2) == bad, rows
    for matrix in ((5, number, 2), (4, number, 2), (-1, number, 2), (0, 0, 2), (0, number, 0), ()):
        assert multiply(cache, name, range(9), *matrix) == bad, matrix
    assert multiply(cache, name, range(9), 0, number, 10**9) == bad
    # The file has fewer rows than this operation multiplies.
    assert multiply(cache, name, range(9), 1, number, 2) == absent
    assert multiply(cache, name, range(9), 0, number + 1, 2) == absent
    assert ask(cache, pack_block(name, BLOCK)) == absent


def check_gram(
    cache: ShardCache, name: str, data: TrainingData, offer: staged_training.OfferedTraining
) -> None:
    """Ask for XᵀX, which has no matrix, and which the documents of many columns do not have."""
    features = data.documents.shape[1]
    matrix = np.empty((features, 0), np.float32)
    with offer.matrix(matrix) as number:
        reply = multiply(cache, name, range(9), 4, number, 0)
        assert isinstance(reply, bytes)
        expected = multiply_part("gram", data.documents, data.labels, range(9), matrix)
        assert unpack_product("gram", reply).tobytes() == expected.tobytes()
        assert multiply(cache, name, range(10), 4, number, 0) == code_pb2.INVALID_ARGUMENT
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(staged_training, "GRAM_COLUMNS_MAX", features - 1)
            assert multiply(cache, name, range(9), 4, number, 0) == code_pb2.INVALID_ARGUMENT


def test_products_of_a_training_are_refused_with_their_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "_PART_VALUES_MIN", 100)
    cache = ShardCache(tmp_path, Mock(), Mock())
    labels = np.eye(4)[np.arange(len(POINTS)) % 4]
    absent = code_pb2.NOT_FOUND

    def train(
        scratch: ArrayStore, data: TrainingData, parameters: LabelParameters, *_: object
    ) -> TrainedLabels:
        name, matrix = stage.folder.name, np.ones((4, 2), np.float32)
        assert isinstance(scratch, ArrayFolder)
        assert multiply(cache, name, range(9), 0, 1, 2) == absent
        with offered_training(stage.folder, scratch, data, 9) as offer:
            with offer.matrix(matrix) as number:
                reply = multiply(cache, name, range(9), 0, number, 2)
                assert isinstance(reply, bytes)
                expected = multiply_part("features", data.documents, data.labels, range(9), matrix)
                assert unpack_product("features", reply).tobytes() == expected.tobytes()
                check_refusals(cache, name, number)
            assert multiply(cache, name, range(9), 0, number, 2) == absent
            check_gram(cache, name, data, offer)
        return train_on(data, parameters, None)

    with staging(tmp_path / "points", replace=True) as stage:
        inputs = LabelInputs(model="leml", parameters=LabelParameters(rank=2))
        builder = IndexBuilder(stage, BuildParameters(), labels=inputs, train_labels=train)
        builder.append(POINTS, labels=labels)
        builder.build()
    assert multiply(cache, stage.folder.name, range(9), 0, 1, 2) == absent


def test_shards_of_a_build_are_measured_from_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call does not wait for a copy. Copies go with the build."""
    monkeypatch.setattr(staged, "_LOOK_SECONDS", 0.01)
    root, folder, shards = tmp_path / "data", tmp_path / "cache", 3
    copies = ShardCopies(folder, root, Mock())
    cache = ShardCache(root, Mock(), Mock(), copies)
    open_folders: set[Path] = set()

    def answer(path: Path, message: bytes) -> bytes:
        def is_answered() -> bool:
            reply = ask(cache, message, operation=MEASURE)
            assert reply == code_pb2.NOT_FOUND or isinstance(reply, bytes)
            return isinstance(reply, bytes)

        if path not in open_folders:
            assert not is_answered()
            eventually(is_answered)
            open_folders.add(path)
        assert ask(cache, pack_question("points", b""), operation=MEASURE) == bad
        assert ask(cache, message, operation=MEASURE, index="others") == bad
        reply = ask(cache, message, operation=MEASURE)
        assert isinstance(reply, bytes)
        return reply

    bad = code_pb2.INVALID_ARGUMENT
    points = random_points(400, dims=8, seed=1)
    built_on_shards(root / "points", points, BuildParameters(), shards, answer)
    assert len(open_folders) == shards
    eventually(lambda: not cache._staged._builds and not [*folder.iterdir()])


def test_a_worker_that_starts_removes_copies_of_builds_that_are_over(tmp_path: Path) -> None:
    left = tmp_path / "cache" / ".points.staging-0f.3"
    left.mkdir(parents=True)
    root = tmp_path / "data"
    root.mkdir()
    ShardCache(root, Mock(), Mock(), ShardCopies(left.parent, root, Mock())).open_all()
    eventually(lambda: not left.exists())
