"""The front's side of DiversifyStream, which receives each pick in a reply of its own."""

import asyncio
import time
from typing import Final

from divgrpc_protos.v1 import diversify_pb2
from divgrpc_server.front.jobs import Write
from divgrpc_server.front.pool import Pool
from divgrpc_server.front.refusals import RefusedError
from divgrpc_server.ipc.packets import Op, Outcome, Reply

# A stream ends this share of its time before the deadline, so that its status arrives in time.
_RESERVE_SHARE: Final = 0.1
_RESERVE_SECONDS_MIN, _RESERVE_SECONDS_MAX = 0.03, 0.5


def _without(count: int, payload: bytes) -> diversify_pb2.DiversifyStreamResponse:
    """Return a message without those of its picks that are among the first `count` of the call."""
    picks = diversify_pb2.DiversifyStreamResponse.FromString(payload)
    extra = min(count - picks.rank, len(picks.places))
    for column in (picks.places, picks.scores, picks.selection_scores):
        del column[:extra]
    picks.rank += extra
    return picks


class PickStream:
    """One DiversifyStream call.

    If its worker dies, another worker makes all picks again. They are the same, so those that were
    written before are left out.
    """

    def __init__(self, pool: Pool, request: bytes, deadline: float, tag: str) -> None:
        """Create the stream of a DiversifyStreamRequest; `deadline` is as for `Pool.submit`."""
        seconds = deadline - time.monotonic()
        reserve = min(_RESERVE_SECONDS_MAX, max(_RESERVE_SECONDS_MIN, _RESERVE_SHARE * seconds))
        self._pool = pool
        self._request = request
        # When the worker ends, and when the front writes no more.
        self._deadline, self._last_write = deadline - reserve, deadline - reserve / 2
        self._tag = tag
        self._replies: asyncio.Queue[Reply] = asyncio.Queue()

    async def relay(self, write: Write) -> None:
        """Write the picks until the worker ends; raises `RefusedError` and what `submit` raises."""
        call = self._pool.submit(
            Op.PICKS, self._request, self._deadline, self._tag, self._replies.put_nowait
        )
        reply, count = Reply(0, Outcome.PART, b""), 0
        try:
            while (reply := await self._replies.get()).outcome == Outcome.PART:
                # The caller may read more slowly than picks are made.
                if time.monotonic() > self._last_write:
                    return
                picks = _without(count, reply.payload)
                if picks.places:
                    await write(picks.SerializeToString())
                    count += len(picks.places)
        finally:
            if reply.outcome == Outcome.PART:
                self._pool.withdraw(call)
        if reply.outcome == Outcome.STATUS:
            raise RefusedError(reply.payload)
