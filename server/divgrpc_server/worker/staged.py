"""The builds that a shard server works on for builders (`divgrpc.sharding.staged_build`)."""

import re
import threading
import time
from pathlib import Path
from typing import Final

from divgrpc.errors import invalid
from divgrpc.sharding.messages import Buffer
from divgrpc.sharding.staged_arrays import folder_of
from divgrpc.sharding.staged_build import StagedBuild
from divgrpc.storage.generations import staging_path
from divgrpc.storage.shards import SHARDS

_LOOK_SECONDS: Final = 1.0
# A few builds may be under way at once. Each of them offers the points of one shard after another.
# What is offered has hash functions in memory.
_BUILDS_MAX: Final = 4


def staged_folder(index: str, message: Buffer) -> str:
    """Return the staging folder in a message, or the folder of a shard in it.

    It must be one of the index, so that it leads to no other folder. Raises `InvalidArgumentError`.
    """
    folder = folder_of(message)
    prefix = re.escape(staging_path(Path(index), "").name)
    if not re.fullmatch(rf"{prefix}[0-9A-Za-z]+(/{SHARDS}/[0-9]+)?", folder):
        raise invalid("folder", f"must be a staging folder of index {index!r}, got {folder!r:.80}")
    return folder


def is_staged(name: str) -> bool:
    """Return whether a name is one of a staging folder, with which no index begins."""
    return name.startswith(".")


class StagedCache:
    """Keeps the builds that have asked last, while they offer anything."""

    def __init__(self, root: Path) -> None:
        """Take the folder of the indexes."""
        self._root = root
        # By folder; the build that has asked last comes last.
        self._builds: dict[str, StagedBuild] = {}
        self._forgets = False
        self._lock = threading.Lock()

    def find(self, folder: str) -> StagedBuild:
        """Return the build with a staging folder."""
        with self._lock:
            build = self._builds.pop(folder, None) or StagedBuild(self._root / folder)
            self._builds[folder] = build
            if len(self._builds) > _BUILDS_MAX:
                del self._builds[next(iter(self._builds))]
            if not self._forgets:
                self._forgets = True
                threading.Thread(target=self._forget, daemon=True).start()
        return build

    def _forget(self) -> None:
        """Forget what is no longer offered, because hash functions take memory."""
        while True:
            time.sleep(_LOOK_SECONDS)
            with self._lock:
                builds = [*self._builds.items()]
            ended = [name for name, build in builds if build.close_ended()]
            with self._lock:
                for name in ended:
                    self._builds.pop(name, None)
                if not self._builds:
                    self._forgets = False
                    return
