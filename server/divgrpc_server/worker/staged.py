"""The points that builders let a shard server encode (`divgrpc.sharding.staged_points`)."""

import threading
import time
from pathlib import Path
from typing import Final, NamedTuple

from divgrpc.errors import invalid
from divgrpc.sharding.messages import Buffer
from divgrpc.sharding.staged_points import StagedPoints, folder_of, is_offered
from divgrpc.storage.generations import staging_path

_LOOK_SECONDS: Final = 1.0


class _Opened(NamedTuple):
    folder: str
    points: StagedPoints


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
    """Keeps the points of the build that has asked last, while they are offered."""

    def __init__(self, root: Path) -> None:
        """Take the folder of the indexes."""
        self._root = root
        self._last: _Opened | None = None

    def find(self, folder: str) -> StagedPoints:
        """Return the points in a staging folder; raises `IndexNotFoundError`."""
        last = self._last
        if last is None or last.folder != folder:
            last = self._last = _Opened(folder, StagedPoints(self._root / folder))
            threading.Thread(target=self._forget_later, args=(last,), daemon=True).start()
        return last.points

    def _forget_later(self, opened: _Opened) -> None:
        """Forget points when the build is over, because hash functions take memory."""
        while self._last is opened and is_offered(self._root / opened.folder):
            time.sleep(_LOOK_SECONDS)
        if self._last is opened:
            self._last = None
