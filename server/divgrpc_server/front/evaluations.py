"""A front's side of evaluations: a plan from every worker, pieces dealt to all, rows put together.

Theory of operation. Every worker that is up checks the whole request and keeps the generation it
finds open until the evaluation is over, so that a build meanwhile changes nothing. Then the queries
are cut into blocks, and a piece is one block at one setting: long enough that dealing it costs
little beside it, short enough that all workers end together. A piece carries all that it needs, so
any worker can answer it, and one whose worker died is asked of another as a query is. There are as
many pieces under way as all workers together take; what comes back is put into a table, and the
rows are made of it in a thread. The costliest settings go first: what is left for the end is short.
What differs between queries and documents with labels is in `dealing`.
"""

import asyncio
import itertools
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from google.rpc import status_pb2

from divgrpc.errors import IndexChangedError, UnavailableError
from divgrpc.evaluation import Clock
from divgrpc.storage.generations import IndexFolder, read_manifest
from divgrpc_server.codec.evaluate import Head
from divgrpc_server.codec.statuses import EvaluationsFullError
from divgrpc_server.front.dealing import Dealt, Made
from divgrpc_server.front.jobs import RefusedError
from divgrpc_server.front.pool import Pool
from divgrpc_server.front.worker_link import PIECES_MAX, Call
from divgrpc_server.ipc.packets import Op, Outcome, Reply

EVALUATIONS_MAX: Final = 2
_PROGRESS_SECONDS: Final = 0.2
# How often a caller hears of rows being made.
_ALIVE_SECONDS: Final = 2.0
# How long a piece should take. The first of a kind of setting tell how many queries that is.
_PIECE_SECONDS: Final = 0.04
_FIRST_QUERIES: Final = 16
_QUERIES_MAX: Final = 128
# Results of a piece: what is measured of them at once takes some milliseconds.
_RESULTS_MAX: Final = 2**15
# How often workers are asked anew where a build was published between their answers.
_ROUNDS_MAX: Final = 4

Write = Callable[[bytes], Awaitable[None]]


class _Block(NamedTuple):
    """Consecutive queries at one setting."""

    setting: int
    rows: slice


class Evaluations:
    """Serves Evaluate and EvaluateLabels calls, a few at a time."""

    def __init__(self, root: Path, pool: Pool) -> None:
        self._root = root
        self._pool = pool
        self._runs = itertools.count(1)
        self._under_way = 0

    async def serve(
        self,
        read: Callable[[bytes], Dealt],
        payload: bytes,
        write: Write,
        deadline: float,
        request_id: str,
    ) -> None:
        """Serve one call to its end; `read` is the class in `dealing` that its request is for.

        Raises `RefusedError` with what workers say, and errors of ours. Being cancelled, by a
        caller who left or whose deadline passed, withdraws every piece.
        """
        if self._under_way >= EVALUATIONS_MAX:
            raise EvaluationsFullError("as many evaluations are under way as may be; try again")
        self._under_way += 1
        run = next(self._runs)
        one: _Evaluation | None = None
        try:
            dealt = read(payload)
            one = _Evaluation(self._pool, dealt, write, (run, deadline, request_id))
            made = await one.run()
            for row in made.settings:
                await write(row)
            if made.defaults:
                told = dealt.name, one.generation, made.defaults
                await asyncio.to_thread(self._set_defaults, *told)
            for row in made.choices:
                await write(row)
        finally:
            self._pool.release(run.to_bytes(8, "little"))
            if one is None or one.making is None:
                self._under_way -= 1
            else:
                one.making.add_done_callback(self._leave)

    def _leave(self, making: "asyncio.Task[Made]") -> None:
        """Make room for another once the rows of one are made, wanted or not."""
        self._under_way -= 1
        if not making.cancelled():
            # Looked at: asyncio complains of one that nobody has seen.
            making.exception()

    def _set_defaults(self, name: str, generation: int, changes: Mapping[str, Any]) -> None:
        folder = IndexFolder(self._root / name)
        if folder.current() != generation:
            raise IndexChangedError(f"index {name!r} was replaced while it was evaluated")
        folder.set_defaults(read_manifest(folder.path / str(generation)), **changes)


class _Evaluation:
    """One call: what it deals out, and what has come of that."""

    def __init__(
        self, pool: Pool, dealt: Dealt, write: Write, ours: tuple[int, float, str]
    ) -> None:
        self._pool = pool
        self._dealt = dealt
        self._write = write
        self._run, self._deadline, self._request_id = ours
        self.generation = 0
        # A thread that makes the rows, which nobody can stop.
        self.making: asyncio.Task[Made] | None = None
        # Of every kind of setting, how long a row takes, once that is known.
        self._microseconds: dict[Hashable, float] = {}
        self._calls: dict[int, Call] = {}
        self._replies: deque[tuple[int, _Block, Reply]] = deque()
        self._heard = asyncio.Event()

    async def run(self) -> Made:
        """Return the rows, and the defaults to be set."""
        await self._plan()
        try:
            told = await self._work()
        finally:
            for call in self._calls.values():
                self._pool.withdraw(call)
        self.making = asyncio.create_task(asyncio.to_thread(self._dealt.made))
        while not (await asyncio.wait({self.making}, timeout=_ALIVE_SECONDS))[0]:
            # A caller who hears nothing takes us for dead.
            await self._write(told)
        return await self.making

    async def _plan(self) -> None:
        """Have every worker check the request, until all have found the same generation."""
        payload = Head(self._run, 0).pack(self._dealt.request)
        for _ in range(_ROUNDS_MAX):
            replies = await self._pool.ask_all(Op.PLAN, payload, self._deadline, self._request_id)
            if not replies:
                raise UnavailableError("no worker is up")
            found = {self._dealt.plan(_payload(reply)) for reply in replies}
            if len(found) == 1:
                (self.generation,) = found
                return
        raise IndexChangedError(f"index {self._dealt.name!r} is replaced again and again")

    async def _work(self) -> bytes:
        """Have all pieces answered; returns what was told last."""
        dealt = self._dealt
        blocks, numbers = self._blocks(), itertools.count()
        clock = Clock(len(dealt.settings) * dealt.rows)
        done, told = 0, -math.inf
        while True:
            room = PIECES_MAX * max(1, self._pool.workers) - len(self._calls)
            for block in itertools.islice(blocks, max(0, room)):
                self._deal(next(numbers), block)
            if not self._calls:
                break
            if time.monotonic() - told >= _PROGRESS_SECONDS:
                told = time.monotonic()
                await self._write(dealt.progress(clock.progress(done)))
            with suppress(TimeoutError):
                # No longer, for the same reason.
                await asyncio.wait_for(self._heard.wait(), _PROGRESS_SECONDS)
            self._heard.clear()
            while self._replies:
                number, block, reply = self._replies.popleft()
                self._calls.pop(number, None)
                spent = dealt.take(block.setting, block.rows.start, _payload(reply))
                self._microseconds[dealt.kind(block.setting)] = spent
                done += block.rows.stop - block.rows.start
        last = dealt.progress(clock.progress(done))
        await self._write(last)
        return last

    def _blocks(self) -> Iterator[_Block]:
        """Cut the work into pieces, the costliest settings first."""
        dealt = self._dealt
        for setting in sorted(range(len(dealt.settings)), key=dealt.cost, reverse=True):
            start = 0
            while start < dealt.rows:
                stop = min(dealt.rows, start + self._size(setting))
                yield _Block(setting, slice(start, stop))
                start = stop

    def _size(self, setting: int) -> int:
        each = self._microseconds.get(self._dealt.kind(setting))
        wanted = _FIRST_QUERIES if each is None else _PIECE_SECONDS * 1e6 // max(each, 1.0)
        most = min(_QUERIES_MAX, _RESULTS_MAX // self._dealt.width(setting))
        return int(max(1, min(most, wanted)))

    def _deal(self, number: int, block: _Block) -> None:
        request = self._dealt.piece(block.setting, block.rows)
        payload = Head(self._run, self.generation).pack(request)
        deliver = partial(self._deliver, number, block)
        call = self._pool.submit(Op.PIECE, payload, self._deadline, self._request_id, deliver)
        self._calls[number] = call

    def _deliver(self, number: int, block: _Block, reply: Reply) -> None:
        self._replies.append((number, block, reply))
        self._heard.set()


def _payload(reply: Reply) -> bytes:
    """Return what a worker answered; raises `RefusedError` with what it refused."""
    if reply.outcome != Outcome.ANSWER:
        raise RefusedError(status_pb2.Status.FromString(reply.payload))
    return reply.payload
