"""The worker of a shard server: the shards that it has open, and the calls of routers.

Theory of operation. A router names an index, a generation, a shard and the checksum of the shard's
manifest. Together they name files that never change, so a shard that is open is never looked at
again. A thread opens a shard at the first call for it, and calls wait meanwhile. When an index is
replaced or deleted, the shards of its earlier generations are closed. A router that still asks for
one gets `IndexChangedError`, and begins its query again.

A server may have copies of shards (`divgrpc.sharding.copies`). Then a shard is copied before it is
opened, and threads remove the copies of earlier generations when the server starts and when an
index changes. A copy that is damaged again after it was made again is not made a third time until a
minute has passed.

Before a build is published, and when this server or the generation is new to a router, a thread
opens the shards that this server will be asked for, so that no call waits.

A builder may ask a shard server to work on points in its staging folder (`worker.staged`). Codes of
a shard that is being built are copied too, before searches of it are measured.
"""

import os
import resource
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple

from divgrpc.errors import (
    DivgrpcError,
    IndexChangedError,
    IndexDamagedError,
    IndexNotFoundError,
    LimitExceededError,
)
from divgrpc.parameters import check_index_name
from divgrpc.platforms import thread_seconds
from divgrpc.sharding.copies import ShardCopies
from divgrpc.sharding.core import ShardCore
from divgrpc.sharding.files import open_shard_part
from divgrpc.sharding.staged_build import OPERATIONS, StagedBuild, folder_of
from divgrpc.storage.generations import Generation, IndexFolder, read_manifest
from divgrpc.storage.manifest import Manifest
from divgrpc.storage.shards import check_shard
from divgrpc_protos.v1 import shard_index_pb2
from divgrpc_server.codec.staged_folders import check_staged
from divgrpc_server.ipc.control import Process
from divgrpc_server.ipc.packets import Op, Outcome, Reply, Request
from divgrpc_server.logging.logs import Logger
from divgrpc_server.worker.error_replies import pack_error
from divgrpc_server.worker.staged import StagedCache, is_staged

_RETRY_SECONDS: Final = 1.0
_DAMAGE_SECONDS: Final = 5.0
# Shards that nobody has asked for yet take at most this share of the descriptors.
_EARLY_SHARE: Final = 0.5
# To look again takes as long as the two copies that were made before.
_COPY_DAMAGE_SECONDS: Final = 60.0


class ShardKey(NamedTuple):
    """A shard of one generation of the index `name`; `checksum` is the CRC-32 of its manifest."""

    name: str
    generation: int
    shard: int
    checksum: int

    def __str__(self) -> str:
        """Return a text that only this shard has."""
        return "/".join(map(str, self))

    @classmethod
    def parse(cls, text: str) -> "ShardKey":
        """Return the shard that a text of `__str__` names."""
        name, *numbers = text.split("/")
        return cls(name, *map(int, numbers))


class Ask:
    """One call of a router; it has the methods of `worker.batches.Batch`.

    A call is answered as a whole, so `ends_soon` is true and `answer_slice` is never called.
    """

    ends_soon = True

    def __init__(self, request: Request, message: shard_index_pb2.AskRequest) -> None:
        self.id = request.id
        self.deadline = request.deadline
        self.tag = request.tag
        self.is_withdrawn = False
        self._message = message
        name = check_index_name(message.index)
        if message.operation in OPERATIONS:
            folder = folder_of(message.operation, message.messages)
            self.name = check_staged(name, folder)
        else:
            key = ShardKey(name, message.generation, message.shard, message.checksum)
            self.name = str(key)

    def start(self, core: ShardCore | StagedBuild) -> Reply:
        """Return the reply; raises the errors of `ask`."""
        start = thread_seconds()
        replies = core.ask(self._message.operation, self._message.messages)
        seconds = thread_seconds() - start
        response = shard_index_pb2.AskResponse(replies=replies, cpu_seconds=seconds)
        return Reply(self.id, Outcome.ANSWER, response.SerializeToString())

    def answer_slice(self) -> Reply | None:
        """Raise, because `start` has answered."""
        raise AssertionError("a call of a router has no slices")

    def pack_error(self, error: Exception, log: Logger) -> Reply:
        """Return the reply that carries an error."""
        return pack_error(self.id, self.tag, error, log)


def parse_ask(request: Request, log: Logger) -> Ask | Reply:
    """Return the call of a request, or a reply with an error if the request is invalid."""
    assert request.op == Op.ASK  # noqa: S101  # a front of a shard server sends nothing else
    if not request.payload:
        # A router asks for nothing, to see whether this server lets it in.
        return Reply(request.id, Outcome.ANSWER, b"")
    try:
        return Ask(request, shard_index_pb2.AskRequest.FromString(request.payload))
    except Exception as error:  # noqa: BLE001  # becomes the status of the call
        return pack_error(request.id, request.tag, error, log)


class _Outcome(NamedTuple):
    """A shard that a thread has opened, or the error.

    folder: of a shard of a build, its folder; else "".
    """

    key: ShardKey
    result: ShardCore | Exception
    folder: str = ""


class _Preparation(NamedTuple):
    """A shard that was opened before a call for it, and the folder of its build or generation."""

    core: ShardCore
    build: Path


class ShardCache:
    """Open shards by name; a thread calls `on_open` when it has opened one.

    It has the methods of `worker.index_cache.IndexCache`.
    """

    def __init__(
        self,
        root: Path,
        on_open: Callable[[], None],
        on_damage: Callable[[str, str], None],
        copies: ShardCopies | None = None,
    ) -> None:
        """Take the folder of the indexes.

        on_damage: called with the name of an index and the damage. copies: opens shards, which are
            otherwise opened in `root`.
        """
        self._root, self._on_open, self._on_damage = root, on_open, on_damage
        self._copies = copies
        self._staged = StagedCache(root, copies.staged if copies else None)
        self._cores: dict[ShardKey, ShardCore] = {}
        self._prepared: dict[ShardKey, _Preparation] = {}
        # Why shards of builds could not be opened, by their folders.
        self._prepare_errors: dict[str, Exception] = {}
        self._errors: dict[ShardKey, tuple[Exception, float]] = {}
        self._opening: set[ShardKey] = set()
        # Shards that could not be opened because they are damaged, which was reported.
        self._damaged: set[ShardKey] = set()
        self._outcomes: SimpleQueue[_Outcome] = SimpleQueue()
        self._damage_seconds = _DAMAGE_SECONDS if copies is None else _COPY_DAMAGE_SECONDS

    def find(self, text: str) -> ShardCore | StagedBuild | None:
        """Return a shard, or None while it is being opened; raises the error of opening it.

        text: the shard, as `ShardKey.__str__` names it, or the name of a staging folder.
        """
        if is_staged(text):
            return self._staged.find(text)
        key = ShardKey.parse(text)
        core = self._cores.get(key)
        if core is None and key in self._prepared:
            core = self._cores[key] = self._prepared.pop(key).core
        if core is not None:
            return core
        if key in self._errors:
            error, end_time = self._errors[key]
            if time.monotonic() < end_time:
                raise error.with_traceback(None)
            del self._errors[key]
        if key not in self._opening:
            self._opening.add(key)
            threading.Thread(target=self._open, args=(key,), daemon=True).start()
        return None

    def explain_wait(self, text: str) -> str:
        """Return what this server does while `find` returns None for a shard."""
        key = ShardKey.parse(text)
        if self._copies is not None and self._copies.is_copying(key.name, key.shard):
            return (
                "a shard server is copying it to the folder of --cache-dir, and its first query"
                " waits for that; ask again later, or with a longer timeout"
            )
        return "a shard server is opening it; ask again later, or with a longer timeout"

    def _open(self, key: ShardKey) -> None:
        result: ShardCore | Exception
        try:
            result = ShardCore(self._open_part(key))
        except Exception as error:  # noqa: BLE001  # `find` raises it
            result = error
        self._outcomes.put(_Outcome(key, result))
        self._on_open()

    def _open_part(self, key: ShardKey) -> Generation:
        """Open a shard, in its copy if this server has copies; raises as `_check_key` does."""
        try:
            folder = _check_key(self._root, key)
            if self._copies is None:
                return open_shard_part(folder, key.shard)
            return self._copies.open(key.name, key.generation, key.shard)
        except IndexDamagedError:
            # A generation that was replaced loses its files one after another.
            if IndexFolder(self._root / key.name).current() != key.generation:
                raise _replaced(key) from None
            _check_key(self._root, key)
            raise

    def collect(self) -> list[tuple[str, str]]:
        """Store the shards that threads have opened.

        Returns their names, each with "". For a shard of a build, returns the name of the index
        with the folder of the shard; `take_error` tells why it could not be opened.
        """
        names: list[tuple[str, str]] = []
        while True:
            try:
                key, result, folder = self._outcomes.get_nowait()
            except Empty:
                return names
            if folder:
                names += self._take_prepared(key, result, folder)
                continue
            self._opening.discard(key)
            names.append((str(key), ""))
            if isinstance(result, ShardCore) and key not in self._current(key.name):
                # It was replaced or deleted while it was opened.
                result = _replaced(key)
            self._note_damage(key, result)
            if isinstance(result, ShardCore):
                self._prepared.pop(key, None)
                self._cores.setdefault(key, result)
                continue
            is_damaged = isinstance(result, IndexDamagedError)
            seconds = self._damage_seconds if is_damaged else _RETRY_SECONDS
            now = time.monotonic()
            self._errors = {k: error for k, error in self._errors.items() if error[1] > now}
            self._errors[key] = (result, now + seconds)

    def _note_damage(self, key: ShardKey, result: ShardCore | Exception) -> None:
        """Report a shard that is damaged, unless that was done; or forget it when it is open."""
        if isinstance(result, ShardCore):
            self._damaged.discard(key)
        elif isinstance(result, IndexDamagedError) and key not in self._damaged:
            self._damaged.add(key)
            self._on_damage(key.name, f"shard {key.shard}: {result}")

    @property
    def damaged(self) -> set[str]:
        """The names of the indexes with a shard that could not be opened because it is damaged."""
        return {key.name for key in self._damaged}

    def _take_prepared(
        self, key: ShardKey, result: ShardCore | Exception, folder: str
    ) -> list[tuple[str, str]]:
        """Keep a shard that was opened before a call, unless it is open or was replaced.

        folder: of the shard. Returns what `collect` does.
        """
        build = (self._root / folder).parent.parent
        is_build = build.parent == self._root
        if not is_build and key in self._current(key.name):
            self._note_damage(key, result)
        if isinstance(result, Exception):
            self._prepare_errors[folder] = result
            return [(key.name, folder)]
        # A replaced generation may stay in the data folder for some minutes.
        is_kept = self._is_kept(key, build) if is_build else key in self._current(key.name)
        if is_kept and key not in self._cores:
            self._prepared[key] = _Preparation(result, build)
        # A call that came meanwhile need not wait until the shard is opened again.
        return [(key.name, folder)] + [(str(key), "")] * (key in self._opening)

    def open_all(self) -> None:
        """Remove old copies; which shards this server has is decided by those that ask it."""
        self._remove_copies()

    def prepare(self, index: str, folder: str) -> None:
        """Start to open a shard after copying it.

        folder: of the shard, in a build that is not published yet or in a generation.
        """
        threading.Thread(target=self._prepare, args=(index, folder), daemon=True).start()

    def _prepare(self, index: str, folder: str) -> None:
        path, key = self._root / folder, ShardKey(index, 0, 0, 0)
        build, shard = path.parent.parent, int(path.name)
        result: ShardCore | Exception
        try:
            manifest = _read_build(build, shard)
            key = ShardKey(index, manifest.generation, shard, manifest.shards[shard].crc32)
            if build.parent.name == index:
                result = self._open_core(key) or self._open_early(key)
            elif self._copies is None:
                # A build that is cancelled removes its files.
                check_shard(build, manifest, shard)
                result = ShardCore(open_shard_part(build, shard, verify=False))
            else:
                result = ShardCore(self._copies.prepare(build, index, shard))
        except Exception as error:  # noqa: BLE001  # `take_error` returns it
            result = error
        self._outcomes.put(_Outcome(key, result, folder))
        self._on_open()

    def _open_early(self, key: ShardKey) -> ShardCore:
        """Open a shard before a call for it, if that leaves descriptors for shards with calls."""
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if len(os.listdir("/proc/self/fd")) > _EARLY_SHARE * most:
            raise LimitExceededError("half of the descriptors are in use, so it waits for a query")
        return ShardCore(self._open_part(key))

    def _open_core(self, key: ShardKey) -> ShardCore | None:
        """Return a shard that is open already, perhaps for another router."""
        preparation = self._prepared.get(key)
        return preparation.core if preparation else self._cores.get(key)

    def take_error(self, folder: str) -> Exception | None:
        """Return why a shard of a build could not be opened, None if it was, and forget it."""
        return self._prepare_errors.pop(folder, None)

    def forget_prepared(self) -> None:
        """Close shards of builds, because the front that asked for them may be gone."""
        self._prepared.clear()

    def refresh(self, index: str) -> None:
        """Close the shards of an index that are not of its current generation."""
        current = self._current(index)
        self._close(lambda key: key.name == index and key not in current)
        self._damaged -= {key for key in self._damaged if key.name == index and key not in current}
        # A build that is published later has a greater number.
        newest = max((key.generation for key in current), default=0)
        for key, (core, build) in [*self._prepared.items()]:
            if key in current:
                self._cores[key] = core
            is_old = key.name == index and key.generation <= newest
            if is_old or not self._is_kept(key, build):
                del self._prepared[key]
        self._remove_copies()

    def _is_kept(self, key: ShardKey, build: Path) -> bool:
        """Return whether a build that was in the folder `build` is under way or was published."""
        # A build is renamed when it is published.
        folders = build, self._root / key.name / str(key.generation)
        return any(map(os.path.exists, folders))

    def _remove_copies(self) -> None:
        """Remove the copies of earlier generations in a thread, which may wait for a copy."""
        if self._copies is not None:
            threading.Thread(target=self._copies.remove_stale, daemon=True).start()

    def _current(self, index: str) -> set[ShardKey]:
        """Return the shards of the current generation of an index."""
        try:
            manifest = IndexFolder(self._root / index).read_current(read_manifest)
        except (DivgrpcError, OSError):
            return set()  # it was deleted, or the next call reports the damage
        number, entries = manifest.generation, manifest.shards
        return {ShardKey(index, number, shard, entry.crc32) for shard, entry in enumerate(entries)}

    def recheck(self, index: str) -> None:
        """Close the shards of an index, so that the next call checks their files."""
        self._close(lambda key: key.name == index)

    def _close(self, is_stale: Callable[[ShardKey], bool]) -> None:
        self._cores = {key: core for key, core in self._cores.items() if not is_stale(key)}
        self._errors = {key: error for key, error in self._errors.items() if not is_stale(key)}


def copies_of(process: Process, log: Logger) -> ShardCopies | None:
    """Return the copies of shards of a server, None without the option `cache_dir`."""
    if not process.config.cache_dir:
        return None

    def report(event: str, shard: str, reason: str) -> None:
        if reason:
            log.warning(event, shard=shard, reason=reason)
        else:
            log.info(event, shard=shard)

    return ShardCopies(Path(process.config.cache_dir), process.root, report)


def _check_key(root: Path, key: ShardKey) -> Path:
    """Return the folder of the generation of a shard, if it has the shard.

    Raises `IndexNotFoundError`, `IndexChangedError` and `IndexDamagedError`.
    """
    folder = root / key.name / str(key.generation)
    if not folder.is_dir():
        if IndexFolder(root / key.name).pointer_stamp() is None:
            raise IndexNotFoundError(f"there is no index {key.name!r}")
        raise _replaced(key)
    entries = read_manifest(folder).shards
    if key.shard >= len(entries) or entries[key.shard].crc32 != key.checksum:
        raise _replaced(key)
    return folder


def _read_build(folder: Path, shard: int) -> Manifest:
    """Return the manifest of a build.

    Raises `IndexNotFoundError` if it is not there, perhaps not yet on a network file system, or is
    not divided among so many shards.
    """
    if not folder.exists():
        raise IndexNotFoundError(f"there is no build {folder.name!r}")
    manifest = read_manifest(folder)
    if shard >= len(manifest.shards):
        raise IndexNotFoundError(f"the build {folder.name!r} has no shard {shard}")
    return manifest


def _replaced(key: ShardKey) -> IndexChangedError:
    return IndexChangedError(
        f"index {key.name!r} has no shard {key.shard} of generation {key.generation} any more"
    )
