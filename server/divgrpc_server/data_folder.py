"""Looks at the folder of the indexes, which other processes change without telling."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeVar

from divgrpc_server.logging.logs import Logger

_T = TypeVar("_T")


async def watch(
    root: Path, read: Callable[[Path], _T], pause_seconds: float, log: Logger
) -> AsyncIterator[_T]:
    """Yield what `read` returns for the folder `root`, again and again.

    It is called in a thread. If it raises `OSError`, nothing is yielded, and the first such error
    in a row is logged.
    """
    is_readable = True
    while True:
        try:
            state = await asyncio.to_thread(read, root)
        except OSError as error:
            if is_readable:
                log.warning("the data directory cannot be read", reason=str(error))
            is_readable = False
        else:
            is_readable = True
            yield state
        await asyncio.sleep(pause_seconds)
