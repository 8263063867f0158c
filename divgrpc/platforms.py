"""Calls that not every operating system has, each with what stands in for it elsewhere.

Nothing is imported here, or called at import, that only Linux has. The client, `divgrpc.Index` and
selection therefore load on every system that numpy and numba know.
"""

import errno
import os
import signal
import sys
from typing import IO, Final

_PR_SET_PDEATHSIG: Final = 1


def count_cores() -> int:
    """Return how many cores this process may use; where the system cannot say, how many exist."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def lock_exclusively(file: IO[bytes] | int) -> bool:
    """Take the lock of an open file if it is free; return whether this process has it.

    The lock ends when the file is closed. Raises `OSError` (ENOLCK) where there are no locks.
    """
    try:
        import fcntl
    except ModuleNotFoundError:
        raise OSError(errno.ENOLCK, "this system has no file locks") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def reserve(descriptor: int, size_bytes: int) -> None:
    """Reserve disk space, so that a full disk is an error here and not a signal later.

    Systems without such a call get a file of this size, whose space is not reserved.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size_bytes)
    elif os.fstat(descriptor).st_size < size_bytes:
        os.ftruncate(descriptor, size_bytes)


def sync_data(descriptor: int) -> None:
    """Write a file's data to the disk, without its times where the system can leave them."""
    getattr(os, "fdatasync", os.fsync)(descriptor)


def end_with_parent() -> None:
    """Have Linux end this process when its parent dies; other systems do nothing."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
