"""Work of a build on all cores: kernels and matrix products let go of the interpreter's lock."""

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
# More queued items for each core would keep another build waiting.
_QUEUED_ITEMS_PER_CORE: Final = 4
_here = threading.local()


def on_all_cores(work: Callable[[_Item], _Result], items: Sequence[_Item]) -> Iterator[_Result]:
    """Yield what `work` makes of each item, in their order; its first error is raised.

    None of the work goes on behind its end, however it ends. What asks for all cores in the midst
    of such work gets its own alone: the others are busy.
    """
    cores = count_cores()
    if min(cores, len(items)) < 2 or hasattr(_here, "busy"):
        yield from map(work, items)
        return
    begun: deque[Future[_Result]] = deque()
    try:
        for item in items:
            begun.append(_pool(os.getpid(), cores).submit(work, item))
            if len(begun) > _QUEUED_ITEMS_PER_CORE * cores:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
    finally:
        for future in begun:
            future.cancel()
        wait(begun)


@functools.cache
def _pool(_process: int, cores: int) -> ThreadPoolExecutor:
    """Return threads that stay: a build comes here a hundred times. A fork has none of them."""

    def begin() -> None:
        _here.busy = True

    return ThreadPoolExecutor(cores, "divgrpc", begin)
