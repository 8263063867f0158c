"""The points that builders let a shard server encode (`divgrpc.sharding.staged_points`)."""

import threading
import time
from pathlib import Path
from typing import Final

from divgrpc.errors import invalid
from divgrpc.sharding.messages import Buffer
from divgrpc.sharding.staged_points import StagedPoints, folder_of, is_offered
from divgrpc.storage.generations import staging_path

_LOOK_SECONDS: Final = 1.0
# A few builds may be under way at once. Each of them has hash functions in memory.
_BUILDS_MAX: Final = 4


def staged_folder(index: str, message: Buffer) -> str:
    """Return the name of the staging folder in a message, which must be one of the index.

    So it leads to no other folder. Raises `InvalidArgumentError`.
    """
    folder = folder_of(message)
    prefix = staging_path(Path(index), "").name
    suffix = folder.removeprefix(prefix)
    if not folder.startswith(prefix) or not (suffix.isascii() and suffix.isalnum()):
        raise invalid("folder", f"must be a staging folder of index {index!r}, got {folder!r:.80}")
    return folder


def is_staged(name: str) -> bool:
    """Return whether a name is one of a staging folder, with which no index begins."""
    return name.startswith(".")


class StagedCache:
    """Keeps the points of the builds that have asked last, while they are offered."""

    def __init__(self, root: Path) -> None:
        """Take the folder of the indexes."""
        self._root = root
        # By folder; the build that has asked last comes last.
        self._points: dict[str, StagedPoints] = {}
        self._forgets = False
        self._lock = threading.Lock()

    def find(self, folder: str) -> StagedPoints:
        """Return the points in a staging folder; raises `IndexNotFoundError`."""
        with self._lock:
            points = self._points.pop(folder, None) or StagedPoints(self._root / folder)
            self._points[folder] = points
            if len(self._points) > _BUILDS_MAX:
                del self._points[next(iter(self._points))]
            if not self._forgets:
                self._forgets = True
                threading.Thread(target=self._forget, daemon=True).start()
        return points

    def _forget(self) -> None:
        """Forget the points of builds that are over, because hash functions take memory."""
        while True:
            time.sleep(_LOOK_SECONDS)
            ended = [name for name in [*self._points] if not is_offered(self._root / name)]
            with self._lock:
                for name in ended:
                    self._points.pop(name, None)
                if not self._points:
                    self._forgets = False
                    return
