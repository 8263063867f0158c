"""Passes writes to the writer process, which starts at the first write."""

from collections.abc import Callable

from divgrpc_server.front.pool import Pool, PoolCall
from divgrpc_server.ipc.packets import Op, Reply


class Writer:
    """The writer process, as a front sees it: a pool of one."""

    def __init__(self, pool: Pool, start: Callable[[], None]) -> None:
        """Take the pool of the writer; `start` asks the supervisor to start the process."""
        self._pool = pool
        self._start = start
        # A stream takes room for each message, and then submits several messages together.
        self.wait_for_room, self.take = pool.wait_for_room, pool.take
        self.release, self.withdraw = pool.release, pool.withdraw

    async def answer(self, op: Op, payload: bytes, deadline: float, tag: str) -> Reply:
        """Send a request and return the reply; raises as `Pool.answer` does."""
        self._ensure()
        return await self._pool.answer(op, payload, deadline, tag)

    def submit(
        self, op: Op, payload: bytes, deadline: float, tag: str, deliver: Callable[[Reply], None]
    ) -> PoolCall:
        """Queue a request, as `Pool.submit` does."""
        self._ensure()
        return self._pool.submit(op, payload, deadline, tag, deliver)

    def _ensure(self) -> None:
        if not self._pool.workers:
            self._start()
