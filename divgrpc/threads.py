"""Work of a build on all cores: kernels and matrix products let go of the interpreter's lock."""

import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_here = threading.local()


def on_all_cores(work: Callable[[_Item], _Result], items: Sequence[_Item]) -> Iterator[_Result]:
    """Yield what `work` makes of each item, in their order; its first error is raised.

    None of the work goes on behind its end, however it ends. What asks for all cores in the midst
    of such work gets its own alone: the others are busy.
    """
    cores = len(os.sched_getaffinity(0))
    if min(cores, len(items)) < 2 or hasattr(_here, "busy"):
        yield from map(work, items)
        return
    futures = [_pool(os.getpid(), cores).submit(work, item) for item in items]
    try:
        for future in futures:
            yield future.result()
    finally:
        for future in futures:
            future.cancel()
        wait(futures)


@functools.cache
def _pool(_process: int, cores: int) -> ThreadPoolExecutor:
    """Return threads that stay: a build comes here a hundred times. A fork has none of them."""

    def begin() -> None:
        _here.busy = True

    return ThreadPoolExecutor(cores, "divgrpc", begin)
