"""The shards that a worker of a shard server has open, and their copies."""

import gc
import math
import shutil
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from divgrpc.builder.builder import IndexBuilder
from divgrpc.errors import (
    IndexChangedError,
    IndexDamagedError,
    IndexNotFoundError,
    LimitExceededError,
)
from divgrpc.parameters import BuildParameters
from divgrpc.sharding import copies as copies_module
from divgrpc.sharding.copies import ShardCopies
from divgrpc.sharding.core import ShardCore
from divgrpc.sharding.files import divide_folder
from divgrpc.storage.generations import Generation, IndexFolder, read_manifest, staging
from divgrpc_server.ipc.packets import Op, Outcome, Reply, Request
from divgrpc_server.worker import shards as shards_module
from divgrpc_server.worker.shards import ShardCache, ShardKey, parse_ask
from support.data.served_index import random_points
from support.processes.running_server import eventually

POINTS = random_points(60, dims=8, seed=1)


def build(
    path: Path, prepare: Callable[[Path], None] | None = None, *, rows: int = len(POINTS)
) -> Path:
    """Build an index on two shards, and return the folder of its generation.

    prepare: called with the folder of the build before it is published.
    """
    with staging(path, replace=True) as stage:
        stage.divide = lambda folder, manifest: divide_folder(folder, manifest, 2)
        stage.on_whole = prepare
        builder = IndexBuilder(stage, BuildParameters())
        builder.append(POINTS[:rows])
        return path / str(builder.build().manifest.generation)


def key_of(folder: Path, shard: int = 0) -> ShardKey:
    checksum = read_manifest(folder).shards[shard].crc32
    return ShardKey(folder.parent.name, int(folder.name), shard, checksum)


class Shards:
    """Shards of the index in a folder, with copies in another folder."""

    def __init__(self, folder: Path) -> None:
        self.path, self.copies = folder / "data" / "points", folder / "copies"
        self.path.parent.mkdir()
        # The lock of a server: an empty folder would be taken for one that is not mounted.
        (self.path.parent / ".lock").touch()
        self.damage: list[str] = []
        self._is_open = threading.Event()
        copies = ShardCopies(self.copies, self.path.parent, lambda *_: None)
        self.cache = ShardCache(self.path.parent, self._is_open.set, self._report, copies)

    def _report(self, index: str, damage: str) -> None:
        self.damage.append(f"{index}: {damage}")

    def find(self, key: ShardKey) -> ShardCore:
        """Return a shard after it was opened; raises as `ShardCache.find` does."""
        self._is_open.clear()
        while (core := self.cache.find(str(key))) is None:
            assert self._is_open.wait(20)
            self.cache.collect()
        assert isinstance(core, ShardCore)
        return core

    def prepare(self, build: Path, shard: int = 0, parent: str = "") -> list[tuple[str, str]]:
        """Open a shard of a build or a generation; return what the cache has opened."""
        self._is_open.clear()
        self.cache.prepare("points", f"{parent}{build.name}/shards/{shard}")
        assert self._is_open.wait(20)
        return self.cache.collect()

    @property
    def names(self) -> set[str]:
        """The copies, without their checksums."""
        return {path.name.rsplit(".", 1)[0] for path in self.copies.iterdir() if path.is_dir()}


@pytest.fixture
def shards(tmp_path: Path) -> Shards:
    return Shards(tmp_path)


def test_copies_of_earlier_generations_are_removed(shards: Shards) -> None:
    """When the index is replaced and deleted, and when a worker starts."""
    first = shards.find(key_of(build(shards.path)))
    shards.find(key_of(build(shards.path)))
    assert shards.names == {"points.1.0", "points.2.0"}
    shards.cache.refresh("points")
    eventually(lambda: shards.names == {"points.2.0"})
    # A query may be about to be answered.
    assert first.rows
    shards.find(key_of(build(shards.path)))
    shards.cache.open_all()
    eventually(lambda: shards.names == {"points.3.0"})
    IndexFolder(shards.path).delete()
    shards.cache.refresh("points")
    eventually(lambda: shards.names == set())


def test_a_shard_of_a_build_is_open_when_it_is_published(shards: Shards) -> None:
    """Until then, the shard of the generation before is."""
    first = key_of(build(shards.path))
    core = shards.find(first)

    def prepare(folder: Path) -> None:
        names = [("points", f"{folder.name}/shards/0")]
        assert shards.prepare(folder) == names
        assert shards.cache.take_error(names[0][1]) is None
        shards.cache.refresh("points")
        assert shards.cache.find(str(first)) is core

    second = key_of(build(shards.path, prepare))
    for _ in range(2):
        assert isinstance(shards.cache.find(str(second)), ShardCore)
        shards.cache.refresh("points")
    eventually(lambda: shards.names == {"points.2.0"})
    third = key_of(build(shards.path, lambda folder: [shards.prepare(folder)].clear()))
    shards.cache.refresh("points")
    assert isinstance(shards.cache.find(str(third)), ShardCore)


def test_a_shard_of_a_generation_is_opened_before_the_first_call(shards: Shards) -> None:
    """Once, and not if it is open or was replaced."""
    key = key_of(folder := build(shards.path))
    name = f"points/{folder.name}/shards/0"
    for _ in range(2):
        assert shards.prepare(folder, parent="points/") == [("points", name)]
        assert shards.cache.take_error(name) is None
        core = shards.cache.find(str(key))
        assert isinstance(core, ShardCore)
    assert shards.prepare(folder, parent="points/") == [("points", name)]
    assert shards.cache.find(str(key)) is core
    assert shards.names == {"points.1.0"}
    build(shards.path)
    assert shards.prepare(folder, parent="points/") == [("points", name)]
    assert isinstance(shards.cache.take_error(name), IndexNotFoundError)


def test_a_shard_that_two_routers_prepare_is_opened_once(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Comparing its checksums again would take long."""
    cores: list[ShardCore] = []

    class Core(ShardCore):
        def __init__(self, part: Generation) -> None:
            super().__init__(part)
            cores.append(self)

    monkeypatch.setattr(shards_module, "ShardCore", Core)
    key = key_of(folder := build(shards.path))
    for _ in range(2):
        shards.prepare(folder, parent="points/")
        assert len(cores) == 1
    assert shards.cache.find(str(key)) is cores[0]


def test_descriptors_are_left_for_shards_with_calls(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = key_of(folder := build(shards.path))
    monkeypatch.setattr(shards_module, "_EARLY_SHARE", 0.0)
    shards.prepare(folder, parent="points/")
    error = shards.cache.take_error(f"points/{folder.name}/shards/0")
    assert isinstance(error, LimitExceededError)
    assert shards.find(key).rows


def test_a_call_does_not_wait_after_its_shard_was_prepared(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has begun to open the shard too, and what it opens is closed."""
    key = key_of(folder := build(shards.path))
    goes_on, open_shard = threading.Event(), ShardCache._open

    def wait_and_open(cache: ShardCache, key: ShardKey) -> None:
        assert goes_on.wait(20)
        open_shard(cache, key)

    monkeypatch.setattr(ShardCache, "_open", wait_and_open)
    assert shards.cache.find(str(key)) is None
    names = shards.prepare(folder, parent="points/")
    assert names == [("points", f"points/{folder.name}/shards/0"), (str(key), "")]
    core = shards.cache.find(str(key))
    assert isinstance(core, ShardCore)
    goes_on.set()
    eventually(lambda: shards.cache.collect() == [(str(key), "")])
    assert shards.cache.find(str(key)) is core
    assert not shards.cache._prepared


def test_a_generation_that_is_replaced_while_it_is_opened_is_closed(shards: Shards) -> None:
    """Also if its files stay for other machines."""
    folder = build(shards.path)
    shards.cache.prepare("points", f"points/{folder.name}/shards/0")
    assert shards._is_open.wait(20)
    shutil.copytree(folder, archive := shards.path.parent / "archive")
    build(shards.path)
    archive.rename(folder)
    shards.cache.refresh("points")
    shards.cache.collect()
    assert not shards.cache._prepared


def test_a_build_that_cannot_be_opened_is_opened_at_the_first_call(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepare(folder: Path) -> None:
        for shard in (0, 7):
            with monkeypatch.context() as patch:
                patch.setattr(ShardCopies, "prepare", Path.read_bytes)
                names = [("points", f"{folder.name}/shards/{shard}")]
                assert shards.prepare(folder, shard) == names
                error = shards.cache.take_error(names[0][1])
                assert type(error) is (TypeError if shard == 0 else IndexNotFoundError)
                assert shards.cache.take_error(names[0][1]) is None

    key = key_of(build(shards.path, prepare))
    assert shards.cache.find(str(key)) is None
    assert shards.find(key).rows


def test_a_wait_has_a_cause(shards: Shards, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy is made, or the shard is opened."""
    key = str(key_of(build(shards.path)))
    assert "is opening it" in shards.cache.explain_wait(key)
    is_copying, goes_on, copy = threading.Event(), threading.Event(), copies_module._copy

    def wait_and_copy(source: Path, target: Path) -> None:
        is_copying.set()
        assert goes_on.wait(20)
        copy(source, target)

    monkeypatch.setattr(copies_module, "_copy", wait_and_copy)
    assert shards.cache.find(key) is None
    assert is_copying.wait(20)
    assert "is copying it" in shards.cache.explain_wait(key)
    goes_on.set()
    assert shards.find(ShardKey.parse(key)).rows
    assert "is opening it" in shards.cache.explain_wait(key)


def test_a_build_that_was_given_up_is_closed(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its front, or when its staging folder is gone, or when a later build has its number."""
    cores = weakref.WeakSet[ShardCore]()

    class Core(ShardCore):
        def __init__(self, part: Generation) -> None:
            super().__init__(part)
            cores.add(self)

    monkeypatch.setattr(shards_module, "ShardCore", Core)

    def prepare(folder: Path) -> None:
        shards.prepare(folder)
        raise KeyboardInterrupt

    def give_up() -> None:
        with pytest.raises(KeyboardInterrupt):
            build(shards.path, prepare)
        gc.collect()
        assert len(cores) == 1

    def is_closed() -> bool:
        gc.collect()
        return not cores

    give_up()
    shards.cache.forget_prepared()
    eventually(is_closed)
    give_up()
    assert shards.names == {"points.1.0"}
    shards.cache.refresh("others")
    eventually(is_closed)
    eventually(lambda: shards.names == set())
    give_up()
    build(shards.path, rows=50)
    shards.cache.refresh("points")
    eventually(is_closed)


def test_a_generation_that_goes_while_it_is_copied_is_no_damage(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = key_of(build(shards.path))
    copy = copies_module._copy  # the moment at which the index is replaced

    def replace_and_copy(source: Path, target: Path) -> None:
        if target.name == "vectors.npy":
            build(shards.path)
        copy(source, target)

    monkeypatch.setattr(copies_module, "_copy", replace_and_copy)
    with pytest.raises(IndexChangedError):
        shards.find(old)
    assert shards.damage == []
    assert shards.names == set()


def test_a_generation_that_has_lost_its_first_files_is_no_damage(shards: Shards) -> None:
    """A removal takes its time, and a router may ask for the generation meanwhile."""
    folder = build(shards.path)
    old = key_of(folder)
    build(shards.path)
    folder.mkdir()
    with pytest.raises(IndexChangedError):
        shards.find(old)
    assert shards.damage == []


def test_a_call_without_a_question_is_answered() -> None:
    """A router sends it to see whether it is let in, and no metric counts an error."""
    request = Request(7, math.inf, Op.ASK, "", b"")
    assert parse_ask(request, Mock()) == Reply(7, Outcome.ANSWER, b"")


def test_damage_counts_until_the_shard_is_open(shards: Shards) -> None:
    """Also if the shard was opened before a call; and until its generation is replaced."""
    folder = build(shards.path)
    damage(shards.path)
    assert shards.cache.damaged == set()
    shards.prepare(folder, parent="points/")
    assert shards.cache.damaged == {"points"}
    assert len(shards.damage) == 1
    repair = damage
    repair(shards.path)
    assert shards.find(key_of(folder)).rows
    assert shards.cache.damaged == set()
    damage(shards.path)
    shards.cache.recheck("points")
    shutil.rmtree(shards.copies)
    with pytest.raises(IndexDamagedError):
        shards.find(key_of(folder))
    assert shards.cache.damaged == {"points"}
    build(shards.path)
    shards.cache.refresh("points")
    assert shards.cache.damaged == set()


def delete(path: Path) -> None:
    IndexFolder(path).delete()


def damage(path: Path) -> None:
    """Change a bit of a shard, or change it back."""
    file = path / "1" / "shards" / "0" / "codes.npy"
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


@pytest.mark.parametrize(
    ("change", "error"),
    [(build, IndexChangedError), (delete, IndexNotFoundError), (damage, IndexDamagedError)],
)
def test_what_has_no_copy_is_refused_with_its_reason(
    shards: Shards, change: Callable[[Path], object], error: type[Exception]
) -> None:
    """Damage that the original has is reported once, and other shards are opened."""
    folder = build(shards.path)
    keys = [key_of(folder, shard) for shard in range(2)]
    change(shards.path)
    for _ in range(2):
        with pytest.raises(error):
            shards.find(keys[0])
    if error is IndexDamagedError:
        reason = "in a new copy, array codes does not match its checksum"
        assert shards.damage == [f"points: shard 0: {reason}"]
        assert shards.cache.damaged == {"points"}
        assert shards.find(keys[1]).rows
