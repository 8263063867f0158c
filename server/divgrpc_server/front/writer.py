"""Passes writes to the writer process, which starts at the first write."""

from collections.abc import Callable

from divgrpc_server.front.pool import Pool
from divgrpc_server.ipc.packets import Op, Reply


class Writer:
    """The writer process, as a front sees it: a pool of one."""

    def __init__(self, pool: Pool, start: Callable[[], None]) -> None:
        """Take the pool of the writer; `start` asks the supervisor to start the process."""
        self._pool = pool
        self._start = start

    async def answer(self, op: Op, payload: bytes, deadline: float, tag: str) -> Reply:
        """Send a request and return the reply; raises as `Pool.answer` does."""
        if not self._pool.workers:
            self._start()
        return await self._pool.answer(op, payload, deadline, tag)
