"""System calls that some operating systems lack, with replacements.

This module can be imported on any operating system. So the client, `divgrpc.Index` and the
selectors work on every system that numpy and numba support.
"""

import errno
import os
import signal
import sys
import time
from contextlib import suppress
from typing import IO, Final

_PR_SET_PDEATHSIG: Final = 1
_FINE_SECONDS: Final = 1e-6


def _has_fine_thread_time() -> bool:
    if not hasattr(time, "thread_time"):
        return False
    return time.get_clock_info("thread_time").resolution <= _FINE_SECONDS


# CPU time of the current thread, in seconds. CPU time excludes waits for a core and for the GIL, so
# other threads do not change the measured time of a query. If the system has no such clock, or only
# one coarser than 1 us, `thread_seconds` is the wall clock `time.perf_counter`.
thread_seconds: Final = time.thread_time if _has_fine_thread_time() else time.perf_counter


def count_cores() -> int:
    """Return how many cores this process may use; all cores if the system does not tell."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def allow_open_files() -> int | None:
    """Let this process, and those that it starts, have as many files open as the system allows.

    Returns the number of files; None on systems without such a limit.
    """
    try:
        import resource
    except ModuleNotFoundError:
        return None
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    # macOS allows no unlimited number.
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def lock_exclusively(file: IO[bytes] | int) -> bool:
    """Try to lock an open file without waiting; return whether this call got the lock.

    Closing the file releases the lock. Raises `OSError` (ENOLCK) on systems without file locks.
    """
    try:
        _flock(file, "LOCK_EX", "LOCK_NB")
    except BlockingIOError:
        return False
    return True


def wait_for_lock(file: IO[bytes], *, is_shared: bool) -> None:
    """Lock an open file, after waiting for the processes that have it locked.

    is_shared: others may share the lock. Closing the file releases the lock. Raises `OSError`, with
    ENOLCK on systems without file locks.
    """
    _flock(file, "LOCK_SH" if is_shared else "LOCK_EX")


def _flock(file: IO[bytes] | int, *flags: str) -> None:
    """Lock an open file with these flags of `fcntl`."""
    try:
        import fcntl
    except ModuleNotFoundError:
        raise OSError(errno.ENOLCK, "this system has no file locks") from None
    fcntl.flock(file, sum(getattr(fcntl, flag) for flag in flags))


def reserve(descriptor: int, size_bytes: int) -> None:
    """Reserve disk space for a file; raises an error if the disk is full.

    Without reserved space, a later write through a memory mapping would end the process with
    SIGBUS. On systems without `posix_fallocate` the file is only extended to `size_bytes`.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size_bytes)
    elif os.fstat(descriptor).st_size < size_bytes:
        os.ftruncate(descriptor, size_bytes)


def write_at(descriptor: int, data: bytes, offset: int) -> None:
    """Write all of `data` to a file at an offset in bytes; raises `OSError`."""
    view = memoryview(data)
    while view:
        count = os.pwrite(descriptor, view, offset)
        view, offset = view[count:], offset + count


def sync_data(descriptor: int) -> None:
    """Flush a file's data to the disk, without the file's timestamps if possible."""
    getattr(os, "fdatasync", os.fsync)(descriptor)


def end_with_parent() -> None:
    """On Linux, make the system kill this process when its parent dies; else do nothing."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
