"""Copies of shards that are being built, on a disk of this machine."""

import contextlib
import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from divgrpc.errors import IndexNotFoundError, StorageFullError
from divgrpc.parameters import BuildParameters
from divgrpc.sharding import copies as copies_module
from divgrpc.sharding.staged_arrays import StagedArrays
from divgrpc.sharding.staged_shards import OFFER, StagedShard
from support.data.mixed_indexes import drawn
from support.data.reported_copies import ReportedCopies
from support.data.staged_shards import built_on_shards
from support.processes.running_server import eventually

POINTS = drawn(600, 20, 2, "cosine")
SHARDS = 2
Check = Callable[[Path, bytes], None]


class Copies(ReportedCopies):
    """Copies of shards that are being built."""

    prefixes = (".points.staging-",)

    @property
    def names(self) -> list[str]:
        """The endings of the names of all files and folders."""
        return sorted(path.name.partition(".staging-")[2].partition(".")[2] for path in self.paths)

    def open(self, folder: Path) -> StagedShard:
        """Open a shard when its copy is made."""
        shards: list[StagedShard] = []

        def is_open() -> bool:
            with contextlib.suppress(IndexNotFoundError):
                shards.append(StagedShard(folder, self.copies.staged.open))
            return bool(shards)

        eventually(is_open)
        return shards[0]


@pytest.fixture
def copies(tmp_path: Path) -> Copies:
    return Copies(tmp_path)


def build(copies: Copies, check: Check) -> None:
    """Build an index, and call `check` for a message about each shard."""
    folders: set[Path] = set()

    def answer(folder: Path, message: bytes) -> bytes:
        if folder not in folders:
            folders.add(folder)
            check(folder, message)
        return StagedShard(folder).answer(message)

    parameters = BuildParameters(hash_family="lsh_div")
    built_on_shards(copies.root / "points", POINTS, parameters, SHARDS, answer)
    assert len(folders) == SHARDS


def test_a_shard_is_answered_from_its_copy(copies: Copies) -> None:
    """Until nobody offers it any more; it is copied once."""

    def check(folder: Path, message: bytes) -> None:
        with pytest.raises(IndexNotFoundError, match="is being copied"):
            StagedShard(folder, copies.copies.staged.open)
        shard = copies.open(folder)
        copy = copies.cache / f"{folder.parts[-3]}.{folder.name}"
        files = StagedArrays(folder, OFFER).files
        # Nothing is mapped of an array without items.
        paths = [copy / f"{name}.npy" for name, (_, entry) in files.items() if entry.bytes]
        maps = Path("/proc/self/maps").read_text()
        assert [path.name for path in paths if str(path) not in maps] == []
        expected = StagedShard(folder).answer(message)
        assert shard.answer(message) == expected
        assert copies.copies.staged.remove_ended()
        assert copies.open(folder).answer(message) == expected
        # Mapped files may go.
        for path in paths:
            path.unlink()
        assert shard.answer(message) == expected

    build(copies, check)
    assert copies.events == [("a shard of a build was copied", "")] * SHARDS
    assert copies.names != []
    assert not copies.copies.staged.remove_ended()
    assert copies.names == []


def test_what_a_killed_server_left_is_removed_at_the_next_start(copies: Copies) -> None:
    """What is being built, and whatever is no copy, stays."""
    copies.cache.mkdir()
    left = copies.cache / ".points.staging-00ff.3"
    for path in (left, left.with_name(left.name + ".part"), copies.cache / ".photographs.3"):
        path.mkdir()
    left.with_name(left.name + ".lock").touch()
    shards: list[str] = []

    def check(folder: Path, _: bytes) -> None:
        shards.append(folder.name)
        copies.open(folder)
        copies.copies.remove_stale()
        names = [f"{shard}{ending}" for shard in sorted(shards) for ending in ("", ".lock")]
        assert copies.names == ["", *names]

    build(copies, check)
    copies.copies.remove_stale()
    assert [path.name for path in copies.cache.iterdir()] == [".photographs.3"]


@pytest.mark.parametrize("error", [StorageFullError("no room"), PermissionError("read-only")])
def test_a_copy_that_cannot_be_made_is_tried_once(
    copies: Copies, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: Path) -> None:
        raise error

    monkeypatch.setattr(copies_module, "_copy", fail)

    def check(folder: Path, _: bytes) -> None:
        count = len(copies.events)
        with pytest.raises(IndexNotFoundError, match="is being copied"):
            StagedShard(folder, copies.copies.staged.open)
        eventually(lambda: len(copies.events) > count)
        for _attempt in range(2):
            with pytest.raises(IndexNotFoundError, match="cannot be copied, as the log says"):
                StagedShard(folder, copies.copies.staged.open)

    build(copies, check)
    assert copies.events == [("a shard of a build has no copy", str(error))] * SHARDS
    copies.copies.staged.remove_ended()
    assert copies.names == []


def test_a_copy_with_other_bytes_is_not_used(
    copies: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = copies_module._copy

    def copy_wrongly(source: Path, target: Path) -> None:
        copy(source, target)
        if target.name == "codes.npy":
            data = target.read_bytes()
            target.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))

    monkeypatch.setattr(copies_module, "_copy", copy_wrongly)

    def check(folder: Path, _: bytes) -> None:
        count = len(copies.events)
        with pytest.raises(IndexNotFoundError):
            StagedShard(folder, copies.copies.staged.open)
        eventually(lambda: len(copies.events) > count)
        assert "codes does not match its checksum" in copies.events[-1][1]

    build(copies, check)


def test_a_build_that_ends_while_it_is_copied_leaves_nothing(
    copies: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread may begin to copy when the build is over; its end is no fault."""
    copy, begins, ends = copies_module._copy, threading.Event(), threading.Event()

    def copy_late(source: Path, target: Path) -> None:
        begins.set()
        assert ends.wait(60)
        copy(source, target)

    monkeypatch.setattr(copies_module, "_copy", copy_late)

    class _EndError(Exception):
        pass

    def check(folder: Path, _: bytes) -> None:
        with pytest.raises(IndexNotFoundError):
            StagedShard(folder, copies.copies.staged.open)
        assert begins.wait(60)
        shutil.rmtree(folder.parents[1])
        raise _EndError

    with pytest.raises(_EndError):
        build(copies, check)
    # This looks for copies until the thread has ended.
    threading.Timer(0.2, ends.set).start()
    eventually(lambda: not copies.copies.staged.remove_ended())
    assert copies.names == []
    assert copies.events == []


def _is_empty(copies: Copies) -> bool:
    return not copies.copies.staged.remove_ended()


def test_several_processes_make_one_copy(copies: Copies) -> None:
    """Threads stand for processes: each open of a lock file has a lock of its own."""
    servers = [Copies(copies.root.parent) for _ in range(5)]

    def check(folder: Path, message: bytes) -> None:
        with ThreadPoolExecutor(5) as pool:
            shards = [*pool.map(lambda server: server.open(folder), servers)]
        expected = StagedShard(folder).answer(message)
        assert all(shard.answer(message) == expected for shard in shards)

    build(copies, check)
    for server in servers:
        eventually(partial(_is_empty, server))
    assert sum(len(server.events) for server in servers) == SHARDS
    assert os.listdir(copies.cache) == []
