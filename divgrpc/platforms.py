"""Calls of the operating system that some systems lack, with replacements.

Importing this module needs no Linux. The client, `divgrpc.Index` and selection therefore work on
every system that numpy and numba support.
"""

import errno
import os
import signal
import sys
import time
from typing import IO, Final

_PR_SET_PDEATHSIG: Final = 1
_FINE_SECONDS: Final = 1e-6


def _has_fine_thread_time() -> bool:
    if not hasattr(time, "thread_time"):
        return False
    return time.get_clock_info("thread_time").resolution <= _FINE_SECONDS


# A clock of this thread, in seconds. It leaves out waits for a core and for the interpreter's lock,
# so a query takes the same beside other threads. Where the system's is coarse it is the usual one.
thread_seconds: Final = time.thread_time if _has_fine_thread_time() else time.perf_counter


def count_cores() -> int:
    """Return how many cores this process may use, or all cores if the system has no such limit."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def lock_exclusively(file: IO[bytes] | int) -> bool:
    """Take the lock of an open file if it is free; return whether this process has it.

    Closing the file releases the lock. Raises `OSError` (ENOLCK) on systems without file locks.
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

    On systems without such a call the file gets this size, but its space is not reserved.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size_bytes)
    elif os.fstat(descriptor).st_size < size_bytes:
        os.ftruncate(descriptor, size_bytes)


def sync_data(descriptor: int) -> None:
    """Write a file's data to the disk, but not its times if the system can leave them out."""
    getattr(os, "fdatasync", os.fsync)(descriptor)


def end_with_parent() -> None:
    """Let Linux kill this process when its parent dies; other systems do nothing."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
