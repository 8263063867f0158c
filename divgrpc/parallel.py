"""Parallel work on threads; it saves time because kernels and matrix products release the GIL."""

import contextlib
import functools
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Final, TypeVar

from threadpoolctl import threadpool_limits

from divgrpc.platforms import count_cores

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
# Maximum number of queued items per core. All builds of a process share the pool of threads, so a
# longer queue of one build would delay the other builds.
_QUEUED_ITEMS_PER_CORE: Final = 4
_thread = threading.local()


def on_all_cores(work: Callable[[_Item], _Result], items: Sequence[_Item]) -> Iterator[_Result]:
    """Call `work` with every item, on all cores, and yield the results in the order of the items.

    The exception of the first item that fails is raised. When the iterator ends, even with an
    exception, all calls of `work` have ended. A nested call of this function runs on the calling
    thread, because all cores are busy.
    """
    cores = count_cores()
    if min(cores, len(items)) < 2 or hasattr(_thread, "busy"):
        yield from map(work, items)
        return
    futures: deque[Future[_Result]] = deque()
    try:
        for item in items:
            futures.append(_pool(os.getpid(), cores).submit(work, item))
            if len(futures) > _QUEUED_ITEMS_PER_CORE * cores:
                yield futures.popleft().result()
        while futures:
            yield futures.popleft().result()
    finally:
        for future in futures:
            future.cancel()
        wait(futures)


@contextlib.contextmanager
def on_this_thread() -> Iterator[None]:
    """In the block, let `on_all_cores` do all work on the calling thread, and start no threads."""
    _thread.busy = True
    try:
        yield
    finally:
        del _thread.busy


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """In the block, let each matrix product of this process use one thread of the BLAS.

    The last digits of a product depend on the number of threads, and products on all cores would
    wait for each other. Blocks of several threads may overlap: the limit ends with the last one.
    """
    _blas_limit.begin()
    try:
        yield
    finally:
        _blas_limit.end()


class _BlasLimit:
    """A limit of one thread, while there are blocks that need it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks = 0
        self._limits: list[Any] = []

    def begin(self) -> None:
        """Begin a block."""
        with self._lock:
            # A library may have been loaded since the first block began.
            self._limits.append(threadpool_limits(1, user_api="blas"))
            self._blocks += 1

    def end(self) -> None:
        """End a block."""
        with self._lock:
            self._blocks -= 1
            while not self._blocks and self._limits:
                self._limits.pop().restore_original_limits()


_blas_limit: Final = _BlasLimit()


@functools.cache
def _pool(_process: int, cores: int) -> ThreadPoolExecutor:
    """Return a thread pool that is kept until the process ends; a forked process gets its own.

    The pool is kept because a build uses it about a hundred times.
    """
    return ThreadPoolExecutor(cores, "divgrpc", setattr, (_thread, "busy", True))
