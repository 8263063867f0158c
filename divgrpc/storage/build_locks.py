"""The lock of an index, which a process holds while it builds or changes the index.

The lock is on a file beside the folder of the index. The file has a byte while the holder is about
to replace all points. A write would then be lost, so writers refuse it.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from divgrpc.errors import BuildUnderWayError, IndexNotFoundError
from divgrpc.platforms import lock_exclusively


def build_lock_path(folder: Path) -> Path:
    """Return the file that a process locks while it builds or changes the index in `folder`."""
    return folder.parent / f".{folder.name}.lock"


class BuildLock:
    """A lock that this process holds; `descriptor` is its open file."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def refuse_writes(self) -> None:
        """Let writers of the index refuse writes until the lock is released."""
        os.pwrite(self._descriptor, b"1", 0)


@contextlib.contextmanager
def build_lock(folder: Path) -> Iterator[BuildLock]:
    """Keep other processes from building or changing an index.

    Raises `BuildUnderWayError`, and `IndexNotFoundError` if the parent of `folder` is missing.
    """
    path = build_lock_path(folder)
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            raise IndexNotFoundError(f"there is no index {folder.name!r}") from None
        if not lock_exclusively(descriptor):
            os.close(descriptor)
            raise BuildUnderWayError(f"a build of index {folder.name!r} is under way")
        # The previous holder may have unlinked the file that is open here. Then other processes
        # lock a new file of the same name, so this process must open it too.
        with contextlib.suppress(FileNotFoundError):
            if os.stat(path).st_ino == os.fstat(descriptor).st_ino:
                break
        os.close(descriptor)
    try:
        # A holder that was killed may have left a byte.
        os.ftruncate(descriptor, 0)
        yield BuildLock(descriptor)
    finally:
        try:
            path.unlink(missing_ok=True)
        finally:
            # An open file would stay locked.
            os.close(descriptor)


def check_writes(folder: Path) -> None:
    """Raise `BuildUnderWayError` if a build is about to replace all points of an index."""
    try:
        if not build_lock_path(folder).stat().st_size:
            return
        # The holder may have been killed.
        with build_lock(folder):
            pass
    except (FileNotFoundError, IndexNotFoundError):
        return
    except BuildUnderWayError:
        raise BuildUnderWayError(
            f"a build is about to replace index {folder.name!r}; write to it after the build"
        ) from None
