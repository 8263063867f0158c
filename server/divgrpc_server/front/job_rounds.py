"""Asks shards for an evaluator or a builder, which know no gRPC."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from divgrpc_server.codec.statuses import QueueFullError
from divgrpc_server.front.refusals import RefusedError
from divgrpc_server.ipc import job_rounds, rounds
from divgrpc_server.ipc.errors import FrameError
from divgrpc_server.ipc.job_frames import Frame

if TYPE_CHECKING:
    from divgrpc_server.front.sharded_pool import Shards

# If a shard has not replied after this time, the job ends.
_ROUND_SECONDS: Final = 60.0
# After this time, a process that may go on without the replies gets none.
_LACKING_SECONDS: Final = 10.0
_PAUSE_SECONDS: Final = 0.1


class JobRounds:
    """The rounds of one job; several may be under way.

    error: why shards could not be asked; None if they could.
    """

    def __init__(
        self,
        shards: "Shards | None",
        tag: str,
        send: Callable[[Frame, bytes], Awaitable[None]],
        on_error: Callable[[], None],
    ) -> None:
        """Take the tag of the call, and how to send a frame to the process of the job.

        on_error: called when `error` is set.
        """
        self.error: Exception | None = None
        self._shards, self._tag, self._send, self._on_error = shards, tag, send, on_error
        self._assembly = job_rounds.Assembly()
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, payload: bytes) -> None:
        """Take a part of a round, and ask the shards if it is complete; raises `FrameError`."""
        if self._shards is None:
            raise FrameError("a process asks shards, and this server has none")
        message = self._assembly.add(payload)
        if message is not None:
            number, packed = message
            task = asyncio.create_task(self._ask(self._shards, number, packed))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _ask(self, shards: "Shards", number: int, packed: bytes) -> None:
        try:
            step = rounds.unpack_round(packed)
            try:
                replies = rounds.pack_round(await _replies(shards, step, self._tag))
            except Exception as error:
                if not step.may_lack:
                    raise
                replies = rounds.pack_refusal(str(error))
            for part in job_rounds.parts_of(number, replies):
                await self._send(Frame.REPLIES, part)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the process has ended, which the relay notices
        except Exception as error:  # noqa: BLE001  # becomes the status of the call
            if self.error is None:
                self.error = error
                self._on_error()

    async def close(self) -> None:
        """Ask no more."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _replies(shards: "Shards", step: rounds.Round, tag: str) -> dict[int, bytes]:
    """Ask shards, again and again while they have no room."""
    waits = not step.may_lack
    end_time = time.monotonic() + (_ROUND_SECONDS if waits else _LACKING_SECONDS)
    while True:
        try:
            seconds = end_time - time.monotonic()
            return await shards.ask(step.messages, seconds, tag=tag, waits=waits, is_job=True)
        except (RefusedError, QueueFullError) as error:
            if error.reason != QueueFullError.reason or time.monotonic() > end_time:
                raise
            await asyncio.sleep(_PAUSE_SECONDS)
