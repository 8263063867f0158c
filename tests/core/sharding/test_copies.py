"""Copies of shards on a disk of this machine."""

import errno
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import Any, Final

import pytest

from divgrpc.builder.builder import IndexBuilder
from divgrpc.columns.values import columns_of
from divgrpc.errors import IndexDamagedError, StorageFullError
from divgrpc.parameters import BuildParameters
from divgrpc.platforms import wait_for_lock
from divgrpc.sharding import copies as copies_module
from divgrpc.sharding.files import divide_folder, open_shard_part
from divgrpc.storage.generations import ROOT_LOCK, Generation, IndexFolder, staging
from support.data.reported_copies import ReportedCopies
from support.data.served_index import random_points

POINTS = random_points(120, dims=8, seed=3)
COLOURS = ["red", "green", "blue"] * 40
_COPIED: Final = "a shard was copied"
_DAMAGED: Final = "a copy is damaged, and is made again"


class Copies(ReportedCopies):
    """Copies of the shards of indexes."""

    prefixes = ("points.", "others.")

    def build(self, name: str = "points", rows: int = len(POINTS)) -> Path:
        """Build an index on two shards, and return the folder of its generation."""
        columns = columns_of({"colour": COLOURS[:rows]}, rows, {})
        with staging(self.root / name, replace=True) as stage:
            stage.divide = lambda folder, manifest: divide_folder(folder, manifest, 2)
            builder = IndexBuilder(stage, BuildParameters(), attributes=columns)
            builder.append(POINTS[:rows], columns=columns)
            number = builder.build().manifest.generation
        return self.root / name / str(number)

    @property
    def names(self) -> list[str]:
        """The folders of copies, without their checksums."""
        return [path.name.rsplit(".", 1)[0] for path in self.paths if path.is_dir()]


@pytest.fixture
def copies(tmp_path: Path) -> Copies:
    return Copies(tmp_path)


def check_equal(one: Generation, other: Generation) -> None:
    assert one.manifest == other.manifest
    assert one.arrays.keys() == other.arrays.keys()
    for name, array in other.arrays.items():
        assert one.arrays[name].tobytes() == array.tobytes()


def flip(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def test_the_copy_is_read_and_not_the_original(copies: Copies) -> None:
    folder = copies.build()
    original = open_shard_part(folder, 1)
    expected = {name: array.tobytes() for name, array in original.arrays.items()}
    part = copies.copies.open("points", 1, 1)
    check_equal(part, original)
    for path in folder.rglob("*.npy"):
        size = path.stat().st_size
        with path.open("r+b") as file:
            file.write(bytes(size))
    assert {name: array.tobytes() for name, array in part.arrays.items()} == expected
    assert copies.names == ["points.1.1"]
    # A copy is made once, and opened from then on.
    copies.copies.open("points", 1, 1)
    assert copies.events == [(_COPIED, "")]
    # Mapped files may go.
    shutil.rmtree(copies.cache)
    assert {name: array.tobytes() for name, array in part.arrays.items()} == expected


def test_each_damaged_file_of_a_copy_is_noticed(copies: Copies) -> None:
    """The copy is made again, and then has the bytes of the original."""
    folder = copies.build()
    copies.copies.open("points", 1, 0)
    (copy,) = (path for path in copies.cache.iterdir() if path.is_dir())
    files = [path for path in copy.rglob("*") if path.is_file() and path.stat().st_size > 128]
    assert {path.name for path in files} >= {"manifest.json", "vectors.npy", "hyperplanes.npy"}
    for path in files:
        copies.events.clear()
        flip(path)
        check_equal(copies.copies.open("points", 1, 0), open_shard_part(folder, 0))
        assert [event for event, _ in copies.events] == [_DAMAGED, _COPIED]
    shutil.rmtree(copy / "shards")
    check_equal(copies.copies.open("points", 1, 0), open_shard_part(folder, 0))


def test_a_damaged_original_is_copied_twice_and_leaves_no_copy(copies: Copies) -> None:
    path = copies.build() / "shards" / "0" / "vectors.npy"
    flip(path)
    with pytest.raises(IndexDamagedError, match="in a new copy, array vectors does not match"):
        copies.copies.open("points", 1, 0)
    assert [event for event, _ in copies.events] == [_COPIED, _DAMAGED, _COPIED]
    assert copies.names == []
    copies.copies.open("points", 1, 1)
    path.unlink()
    with pytest.raises(IndexDamagedError, match=r"vectors\.npy is missing"):
        copies.copies.open("points", 1, 0)
    assert copies.names == ["points.1.1"]


_KILLED: Final = """
import os, signal, sys
from pathlib import Path
from divgrpc.sharding import copies

moment, cache, root = sys.argv[1:]
fsync, rename = os.fsync, os.rename

def end(*_): os.kill(os.getpid(), signal.SIGKILL)
def rename_and_end(*paths): rename(*paths), end()
synced = []
def sync(file):
    fsync(file), synced.append(file)
    if len(synced) == 3: end()

if moment == "copying": os.fsync = sync
if moment == "whole": os.rename = end
if moment == "renamed": os.rename = rename_and_end
copies.ShardCopies(Path(cache), Path(root), print).open("points", 1, 0)
"""


@pytest.mark.parametrize("moment", ["copying", "whole", "renamed"])
def test_a_killed_process_leaves_no_copy_that_is_incomplete(copies: Copies, moment: str) -> None:
    folder = copies.build()
    command = [sys.executable, "-c", _KILLED, moment, str(copies.cache), str(copies.root)]
    killed = subprocess.run(command, check=False)
    assert killed.returncode == -signal.SIGKILL
    (name,) = (path.name for path in copies.cache.iterdir() if path.is_dir())
    assert name.endswith(".part") == (moment != "renamed")
    check_equal(copies.copies.open("points", 1, 0), open_shard_part(folder, 0))
    assert copies.events == ([] if moment == "renamed" else [(_COPIED, "")])
    assert copies.names == ["points.1.0"]


def test_old_and_unfinished_copies_are_removed(copies: Copies) -> None:
    """Copies of current generations stay, and so does whatever is no copy."""
    copies.build()
    copies.build("others")
    for name, shard in (("points", 0), ("points", 1), ("others", 0)):
        copies.copies.open(name, 1, shard)
    (copies.cache / "points.2.0.00000000.part").mkdir()
    (copies.cache / "photographs").mkdir()
    (copies.cache / "points.txt").touch()
    copies.copies.remove_stale()
    assert copies.names == [*("others.1.0", "photographs", "points.1.0", "points.1.1")]
    copies.build()
    copies.copies.open("points", 2, 0)
    copies.copies.remove_stale()
    assert copies.names == ["others.1.0", "photographs", "points.2.0"]
    # An index that was deleted and built again has the same numbers.
    IndexFolder(copies.root / "others").delete()
    copies.build("others", rows=60)
    copies.copies.remove_stale()
    assert copies.names == ["photographs", "points.2.0"]
    # While nobody can read the pointer, the copy may be current.
    (copies.root / "points" / "CURRENT").write_text("?")
    copies.copies.remove_stale()
    assert copies.names == ["photographs", "points.2.0"]
    # Where nothing is mounted, no index was deleted.
    copies.root.rename(copies.root.with_name("elsewhere"))
    copies.root.mkdir()
    copies.copies.remove_stale()
    copies.root.rmdir()
    copies.copies.remove_stale()
    assert copies.names == ["photographs", "points.2.0"]
    copies.root.with_name("elsewhere").rename(copies.root)
    (copies.root / ROOT_LOCK).touch()
    IndexFolder(copies.root / "points").delete()
    copies.copies.remove_stale()
    assert copies.names == ["photographs"]


def test_a_copy_that_cannot_be_removed_keeps_no_other_one(
    copies: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies.build()
    copies.build("others")
    for name, shard in (("points", 0), ("points", 1), ("others", 0)):
        copies.copies.open(name, 1, shard)
    remove = shutil.rmtree

    def fail_with_one(folder: Path, **options: Any) -> None:  # noqa: ANN401  # those of `rmtree`
        if folder.name.startswith("others.1"):
            raise OSError(errno.EBUSY, "busy")
        remove(folder, **options)

    monkeypatch.setattr(shutil, "rmtree", fail_with_one)
    for name in ("points", "others"):
        IndexFolder(copies.root / name).delete()
    (copies.root / ROOT_LOCK).touch()
    copies.copies.remove_stale()
    assert copies.names == ["others.1.0"]
    assert ("old copies cannot be removed", "[Errno 16] busy") in copies.events


def test_the_copy_of_an_index_whose_manifest_is_damaged_stays(copies: Copies) -> None:
    """The manifest may be restored, and a large shard takes long to copy."""
    folder = copies.build()
    copies.copies.open("points", 1, 0)
    manifest = folder / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:-9])
    copies.copies.remove_stale()
    assert copies.names == ["points.1.0"]


def test_two_generations_of_one_number_have_two_copies(copies: Copies) -> None:
    """The index was deleted and built again."""
    copies.build()
    copies.copies.open("points", 1, 0)
    IndexFolder(copies.root / "points").delete()
    folder = copies.build(rows=60)
    check_equal(copies.copies.open("points", 1, 0), open_shard_part(folder, 0))
    assert copies.names == ["points.1.0", "points.1.0"]


@pytest.mark.parametrize("error", [StorageFullError("no room"), PermissionError("read-only")])
def test_without_room_for_a_copy_the_original_is_read(
    copies: Copies, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    folder = copies.build()

    def fail(*_: Path) -> None:
        raise error

    monkeypatch.setattr(copies_module, "_copy", fail)
    check_equal(copies.copies.open("points", 1, 0), open_shard_part(folder, 0))
    assert copies.events == [("a shard has no copy, and is read where it is", str(error))]
    assert copies.names == []


def test_several_processes_make_one_copy(copies: Copies) -> None:
    """Threads stand for processes: each open of a lock file has a lock of its own."""
    folder = copies.build()
    with ThreadPoolExecutor(6) as pool:
        futures = [pool.submit(copies.copies.open, "points", 1, 0) for _ in range(6)]
        parts = [future.result() for future in futures]
    for part in parts:
        check_equal(part, open_shard_part(folder, 0))
    assert copies.events == [(_COPIED, "")]


def test_a_copy_opens_while_the_next_generation_is_copied(
    copies: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that starts meanwhile must answer queries."""
    copies.build()
    copies.copies.open("points", 1, 0)
    copies.build()
    is_copying, goes_on, copy = Event(), Event(), copies_module._copy

    def wait_and_copy(source: Path, target: Path) -> None:
        is_copying.set()
        assert goes_on.wait(20)
        copy(source, target)

    monkeypatch.setattr(copies_module, "_copy", wait_and_copy)
    (copies.root / "points" / "1").mkdir()
    shutil.copy(next(copies.cache.glob("points.1.0.*/manifest.json")), copies.root / "points" / "1")
    with ThreadPoolExecutor() as threads:
        making = threads.submit(copies.copies.open, "points", 2, 0)
        assert is_copying.wait(20)
        opening = threads.submit(copies.copies.open, "points", 1, 0)
        try:
            assert opening.result(10).manifest.generation == 1
        finally:
            goes_on.set()
        assert making.result(20).manifest.generation == 2


def test_the_copy_of_a_build_is_that_of_the_generation(copies: Copies) -> None:
    """It stays while the build is under way, and goes if the build is not published."""
    copies.build()

    def build(error: Exception | None) -> None:
        def prepare(folder: Path) -> None:
            for shard in range(2):
                copies.copies.prepare(folder, "points", shard)
            copies.copies.remove_stale()
            assert copies.names == ["points.2.0", "points.2.1"]
            if error is not None:
                raise error

        with staging(copies.root / "points", replace=True) as stage:
            stage.divide = lambda folder, manifest: divide_folder(folder, manifest, 2)
            stage.on_whole = prepare
            builder = IndexBuilder(stage, BuildParameters())
            builder.append(POINTS)
            builder.build()

    with pytest.raises(StorageFullError):
        build(StorageFullError("no room left to store the index"))
    copies.copies.remove_stale()
    assert copies.names == []
    copies.events.clear()
    build(None)
    copies.copies.remove_stale()
    assert copies.copies.open("points", 2, 1).manifest.rows
    assert [event for event, _ in copies.events] == [_COPIED] * 2


def locks_of(copies: Copies) -> list[str]:
    return [path.name for path in copies.paths if path.is_file()]


def test_locks_of_shards_without_a_copy_are_removed(copies: Copies) -> None:
    """Those of an index that was deleted, and those that an earlier version has left."""
    copies.build()
    copies.build("others")
    for name in ("points", "others"):
        copies.copies.open(name, 1, 0)
    own_locks = [".points.0.lock", ".points.0.part.lock"]
    assert locks_of(copies) == [".others.0.lock", ".others.0.part.lock", *own_locks]
    IndexFolder(copies.root / "others").delete()
    for name in (".gone.7.lock", ".gone.7.part.lock", ".points.1.part.lock"):
        (copies.cache / name).touch()
    (copies.cache / ".photographs.lock").touch()
    copies.copies.remove_stale()
    assert copies.names == ["points.1.0"]
    assert locks_of(copies) == [".photographs.lock", *own_locks]


_WAITING: Final = """
import sys
from pathlib import Path
from divgrpc.sharding import copies

cache, root = map(Path, sys.argv[1:])
wait = copies.wait_for_lock

def show(file, *, is_shared):
    print("waits" if not is_shared else "looks", flush=True)
    wait(file, is_shared=is_shared)

copies.wait_for_lock = show
copies.ShardCopies(cache, root, print).open("points", 1, 0)
"""


def test_a_process_that_waits_for_a_removed_lock_takes_the_new_one(copies: Copies) -> None:
    copies.build()
    copies.cache.mkdir()
    path = copies.cache / ".points.0.part.lock"
    with path.open("ab") as old, ExitStack() as stack:
        wait_for_lock(old, is_shared=False)
        command = [sys.executable, "-c", _WAITING, str(copies.cache), str(copies.root)]
        process = stack.enter_context(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["looks\n", "waits\n"]
        path.unlink()
        with path.open("ab") as new:
            wait_for_lock(new, is_shared=False)
            old.close()
            # It has the lock of the old file now, and waits for that of the new one.
            assert process.stdout.readline() == "waits\n"
            time.sleep(0.2)
            assert copies.names == []
        out, error = process.communicate(timeout=60)
        assert (process.returncode, error) == (0, "")
        assert "a shard was copied" in out
    assert copies.names == ["points.1.0"]


_ALONE: Final = """
import os, sys, time
from pathlib import Path
from divgrpc.sharding import copies

cache = Path(sys.argv[1])
shard_copies = copies.ShardCopies(cache, cache / "none", print)
marker = cache / "marker"
for number in range(300):
    with shard_copies._lock("points", 0, ".part"), shard_copies._lock("points", 0):
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
        time.sleep(0.0005)
        marker.unlink()
        shard_copies._remove_stale("points", 0)
"""


def test_two_processes_that_remove_locks_exclude_one_another(copies: Copies) -> None:
    command = [sys.executable, "-c", _ALONE, str(copies.cache)]
    with ExitStack() as stack:
        processes = [stack.enter_context(subprocess.Popen(command)) for _ in range(2)]
        assert [process.wait(60) for process in processes] == [0, 0]
    assert locks_of(copies) == []
