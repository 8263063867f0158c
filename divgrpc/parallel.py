"""Parallel work on threads; it saves time because kernels and matrix products release the GIL."""

import contextlib
import functools
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Final, TypeVar

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


@functools.cache
def _pool(_process: int, cores: int) -> ThreadPoolExecutor:
    """Return a thread pool that is kept until the process ends; a forked process gets its own.

    The pool is kept because a build uses it about a hundred times.
    """
    return ThreadPoolExecutor(cores, "divgrpc", setattr, (_thread, "busy", True))
