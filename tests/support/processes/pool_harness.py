"""A front's pool of workers without a server; tests act as the workers."""

import asyncio
import functools
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any

from divgrpc_server.config import Config
from divgrpc_server.front.pool import Pool
from divgrpc_server.ipc import packets
from divgrpc_server.ipc.packets import Op, Outcome, Reply, Request
from divgrpc_server.logging import logs

FOREVER = float("inf")
Scene = Callable[..., Awaitable[None]]


class Stage:
    """A pool, of workers or of the writer, and the links of those that are attached to it."""

    def __init__(self, *, is_writer: bool = False, **options: Any) -> None:  # noqa: ANN401  # as Config's
        self.config = Config(log_level="error", **options)
        self.reports: list[int] = []
        self.stamp = 1
        self.report_made = asyncio.Event()
        self._links: list[packets.Link] = []
        self.pool = Pool(
            self.config,
            logs.configure(self.config, "test"),
            report=self._report,
            on_change=lambda: None,
            stamp=lambda _: self.stamp,
            is_writer=is_writer,
        )

    def attach(self, serial: int) -> packets.Link:
        """Attach a worker and return its end of the link."""
        front_end, worker_end = packets.pair()
        self.pool.attach(serial, packets.Link(front_end))
        link = packets.Link(worker_end)
        self._links.append(link)
        return link

    def close(self) -> None:
        """Close the pool and all links."""
        self.pool.close()
        for link in self._links:
            link.close()

    def _report(self, serial: int) -> None:
        self.reports.append(serial)
        self.report_made.set()

    def age(self, seconds: float) -> None:
        """Let all workers be silent for `seconds` more, without a wait, and let the pool notice."""
        for worker in self.pool._workers:
            worker.life_time -= seconds
        self.pool._ticker.cancel()
        self.pool._tick()

    def ask(self, payload: bytes, seconds: float = FOREVER) -> "asyncio.Task[Reply]":
        """Send a request whose deadline is in `seconds`; return the task that awaits its reply."""
        deadline = time.monotonic() + seconds
        return asyncio.ensure_future(self.pool.answer(Op.QUERY, payload, deadline, "tag"))


def on_stage(**options: Any) -> Callable[[Scene], Callable[..., None]]:  # noqa: ANN401  # as Config's
    """Return a decorator that runs an asynchronous test with a `Stage` in a new event loop."""

    def decorate(test: Scene) -> Callable[..., None]:
        def run(**arguments: object) -> None:
            async def scene() -> None:
                stage = Stage(**options)
                try:
                    await asyncio.wait_for(test(stage, **arguments), 20)
                finally:
                    stage.close()

            asyncio.run(scene())

        _, *parameters = inspect.signature(test).parameters.values()
        functools.update_wrapper(run, test)
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # for pytest
        return run

    return decorate


async def packet(link: packets.Link) -> list[Request]:
    """Wait for a packet and return its requests."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(link.fileno(), readable.set)
    await readable.wait()
    loop.remove_reader(link.fileno())
    return list(packets.unpack_requests(*link.receive()))


def answer(
    link: packets.Link, *requests: Request, small: int = 1, large: int = 0, loan: int = 0
) -> None:
    """Answer requests with their reversed payloads, and return or lend credits (`ipc.packets`)."""
    items = [
        packets.pack_reply(Reply(request.id, Outcome.ANSWER, request.payload[::-1][:100]))
        for request in requests
    ]
    link.send(packets.pack_credits(small, large, loan) + b"".join(items))


def begin(link: packets.Link, *requests: Request) -> None:
    """Say that a worker begins with suspects, as it does before it answers one."""
    items = [packets.pack_reply(Reply(r.id, Outcome.START, b"")) for r in requests if r.is_suspect]
    link.send(packets.pack_credits(0, 0) + b"".join(items))


async def settle() -> None:
    """Let all tasks run that are ready."""
    for _ in range(5):
        await asyncio.sleep(0)
