"""The builds that a shard server works on for builders (`divgrpc.sharding.staged_build`)."""

import threading
import time
from pathlib import Path
from typing import Final

from divgrpc.sharding.staged_build import StagedBuild

_LOOK_SECONDS: Final = 1.0
# A few builds may be under way at once. Each of them offers the points of one shard after another.
# What is offered has hash functions in memory.
_BUILDS_MAX: Final = 4


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
