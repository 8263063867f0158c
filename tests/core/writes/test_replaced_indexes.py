"""Writes to an index that a build replaces are made before it, refused, or made after it."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from divgrpc import Collection, Index
from divgrpc.errors import BuildUnderWayError, IndexChangedError
from divgrpc.storage.build_locks import build_lock, build_lock_path
from divgrpc.storage.layouts import LayoutInfo
from divgrpc.types import Progress
from divgrpc.writes.layout import WritesFolder
from divgrpc.writes.log import LogWriter

VECTORS = np.random.default_rng(6).standard_normal((300, 8)).astype(np.float32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "points"


def test_writes_are_refused_from_the_end_of_the_upload_on(path: Path) -> None:
    stages: dict[str, bool] = {}
    faults: set[str] = set()
    with Collection.build(VECTORS, path=path) as collection:

        def write(progress: Progress) -> None:
            try:
                collection.upsert([5], VECTORS[:1])
            except BuildUnderWayError as error:
                faults.add(str(error))
                stages[progress.stage] = False
            else:
                stages[progress.stage] = True

        Index.build(VECTORS[:100], path=path, replace=True, progress=write)
        assert stages.pop("receiving")
        assert len(stages) > 1
        assert not any(stages.values())
        assert faults == {"a build is about to replace index 'points'; write to it after the build"}
        with pytest.raises(IndexChangedError):
            collection.upsert([5], VECTORS[:1])
    with Collection.open(path) as collection:
        assert (len(collection), collection.upsert([5], VECTORS[:1]).sequence) == (100, 1)


@pytest.mark.parametrize("writes", [0, 1])
def test_a_build_may_end_while_a_layout_is_written(
    path: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    """The first write makes a layout, and so does a merge; then its folder is gone."""
    publish = WritesFolder._publish

    def build_and_publish(self: WritesFolder, info: LayoutInfo) -> None:
        if self.path.parent.parent == path and self.path.parent.name == "1":
            Index.build(VECTORS[:100], path=path, replace=True)
        publish(self, info)

    with Collection.build(VECTORS, path=path) as collection:
        for _ in range(writes):
            collection.upsert([5], VECTORS[:1])
        monkeypatch.setattr(WritesFolder, "_publish", build_and_publish)
        with pytest.raises(IndexChangedError, match="open it again"):
            collection.upsert([5], VECTORS[:1]) if not writes else collection.compact()
    with Collection.open(path) as collection:
        assert (len(collection), collection.upsert([5], VECTORS[:1]).sequence) == (100, 1)


def test_a_build_may_end_while_a_file_of_the_log_is_made(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write found no build under way, and then its folder is gone."""
    begin = LogWriter._begin

    def build_and_begin(self: LogWriter, size: int) -> None:
        if self._log.folder.parents[1] == path / "1":
            Index.build(VECTORS[:100], path=path, replace=True)
        begin(self, size)

    with Collection.build(VECTORS, path=path) as collection:
        monkeypatch.setattr(LogWriter, "_begin", build_and_begin)
        with pytest.raises(IndexChangedError, match="open it again"):
            collection.upsert([5], VECTORS[:1])
    with Collection.open(path) as collection:
        assert (len(collection), collection.upsert([5], VECTORS[:1]).sequence) == (100, 1)


def test_a_build_that_fails_allows_writes_again(path: Path) -> None:
    def fail(progress: Progress) -> None:
        if progress.stage != "receiving":
            raise KeyboardInterrupt

    with Collection.build(VECTORS, path=path) as collection:
        with pytest.raises(KeyboardInterrupt):
            Index.build(VECTORS, path=path, replace=True, progress=fail)
        assert collection.upsert([5], VECTORS[:1]).sequence == 1


def test_a_builder_that_was_killed_refuses_no_writes(path: Path) -> None:
    with Collection.build(VECTORS, path=path) as collection:
        build_lock_path(path).write_bytes(b"1")
        assert collection.upsert([5], VECTORS[:1]).sequence == 1
        build_lock_path(path).write_bytes(b"1")
        with build_lock(path):
            assert collection.upsert([5], VECTORS[:1]).sequence == 2
        assert not build_lock_path(path).exists()


def test_a_lock_whose_file_cannot_be_removed_is_free(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.mkdir()

    def fail(_: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", fail)
        with pytest.raises(OSError, match=os.strerror(errno.EIO)), build_lock(path):
            pass
    with build_lock(path):
        pass
    assert not build_lock_path(path).exists()


def test_renewals_let_writes_go_on(path: Path) -> None:
    with Collection.build(VECTORS, path=path) as collection:
        collection.upsert([5], VECTORS[:1])
        sequences: list[int] = []

        def write(_: Progress) -> None:
            sequences.append(collection.upsert([6], VECTORS[:1]).sequence)

        assert collection.retrain(progress=write)
        assert sequences == list(range(2, len(sequences) + 2))
