"""The builds that a shard server works on for builders (`divgrpc.sharding.staged_build`)."""

import threading
import time
from pathlib import Path
from typing import Final

from divgrpc.sharding.copies import StagedCopies
from divgrpc.sharding.staged_build import StagedBuild

_LOOK_SECONDS: Final = 1.0
# A few builds may be under way at once. What they offer has hash functions in memory.
_BUILDS_MAX: Final = 4


def is_staged(name: str) -> bool:
    """Return whether a name is one of a staging folder, with which no index begins."""
    return name.startswith(".")


class StagedCache:
    """Keeps the builds that have asked last, while they offer anything."""

    def __init__(self, root: Path, copies: StagedCopies | None = None) -> None:
        """Take the folder of the indexes, and the copies of their shards."""
        self._root, self._copies = root, copies
        # By the staging folder or the folder of a shard in it, in the order of their last use.
        self._builds: dict[str, StagedBuild] = {}
        self._forgets = False
        self._lock = threading.Lock()

    def find(self, folder: str) -> StagedBuild:
        """Return what a build offers in its staging folder, or in the folder of a shard."""
        with self._lock:
            open_copy = self._copies.open if self._copies else None
            build = self._builds.pop(folder, None) or StagedBuild(self._root / folder, open_copy)
            self._builds[folder] = build
            # The folders of one build, whose shards may be many, come and go together.
            latest = dict.fromkeys(map(_staging_of, reversed(self._builds)))
            for stale in [*latest][_BUILDS_MAX:]:
                names = [name for name in self._builds if _staging_of(name) == stale]
                for name in names:
                    del self._builds[name]
            if not self._forgets:
                self._forgets = True
                threading.Thread(target=self._forget, daemon=True).start()
        return build

    def _forget(self) -> None:
        """Forget what is no longer offered, because it takes memory; and remove its copies."""
        while True:
            time.sleep(_LOOK_SECONDS)
            with self._lock:
                builds = [*self._builds.items()]
            ended = [name for name, build in builds if build.close_ended()]
            has_copies = self._copies is not None and self._copies.remove_ended()
            with self._lock:
                for name in ended:
                    self._builds.pop(name, None)
                if not self._builds and not has_copies:
                    self._forgets = False
                    return


def _staging_of(folder: str) -> str:
    """Return the staging folder of a build, given it or the folder of a shard in it."""
    return folder.partition("/")[0]
