"""A front's side of Evaluate: a plan from every worker, pieces dealt to all, rows put together.

Theory of operation. Every worker that is up checks the whole request and keeps the generation it
finds open until the evaluation is over, so that a build meanwhile changes nothing. Then the queries
are cut into blocks, and a piece is one block at one setting: long enough that dealing it costs
little beside it, short enough that all workers end together. A piece carries all that it needs, so
any worker can answer it, and one whose worker died is asked of another as a query is. There are as
many pieces under way as all workers together take; what comes back is put into a table, and the
rows are made of it in a thread. The costliest settings go first: what is left for the end is short.
"""

import asyncio
import itertools
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from google.rpc import status_pb2

from divgrpc.errors import IndexChangedError, UnavailableError
from divgrpc.evaluation import COLUMNS, Asked, Clock, Plan, Tally, Task
from divgrpc.parameters import QueryParameters
from divgrpc.storage import IndexFolder, read_manifest
from divgrpc.types import EvaluateRow, QueryDefault
from divgrpc_protos import arrays
from divgrpc_protos.arrays import Matrix
from divgrpc_protos.v1 import evaluate_pb2
from divgrpc_server import tasks
from divgrpc_server.builds import RefusedError
from divgrpc_server.crew import PIECES_MAX, Call
from divgrpc_server.frames import Op, Outcome, Reply
from divgrpc_server.pool import Pool
from divgrpc_server.statuses import EvaluationsFullError
from divgrpc_server.tasks import Head

EVALUATIONS_MAX: Final = 2
_PROGRESS_SECONDS: Final = 0.2
# How long a piece should take. The first of a kind of setting tell how many queries that is.
_PIECE_SECONDS: Final = 0.04
_FIRST_QUERIES: Final = 16
_QUERIES_MAX: Final = 128
# Results of a piece: what is measured of them at once takes some milliseconds.
_RESULTS_MAX: Final = 2**15
# How often workers are asked anew where a build was published between their answers.
_ROUNDS_MAX: Final = 4
_TIMES: Final = COLUMNS.index("microseconds")

Write = Callable[[bytes], Awaitable[None]]


class _Block(NamedTuple):
    """Consecutive queries at one setting."""

    setting: int
    rows: slice


class Evaluations:
    """Serves Evaluate calls, a few at a time."""

    def __init__(self, root: Path, pool: Pool) -> None:
        self._root = root
        self._pool = pool
        self._runs = itertools.count(1)
        self._under_way = 0

    async def serve(self, payload: bytes, write: Write, deadline: float, request_id: str) -> None:
        """Serve one call to its end.

        Raises `RefusedError` with what workers say, and errors of ours. Being cancelled, by a
        caller who left or whose deadline passed, withdraws every piece.
        """
        if self._under_way >= EVALUATIONS_MAX:
            raise EvaluationsFullError("as many evaluations are under way as may be; try again")
        self._under_way += 1
        run = next(self._runs)
        try:
            one = _Evaluation(self._pool, payload, write, (run, deadline, request_id))
            rows, default = await one.run()
            for row in (row for row in rows if not row.by_fold):
                await write(tasks.pack_row(row))
            if default is not None:
                await asyncio.to_thread(self._set_default, one.name, one.generation, default)
            for row in (row for row in rows if row.by_fold):
                await write(tasks.pack_row(row))
        finally:
            self._under_way -= 1
            self._pool.release(run.to_bytes(8, "little"))

    def _set_default(self, name: str, generation: int, default: QueryDefault) -> None:
        folder = IndexFolder(self._root / name)
        if folder.current() != generation:
            raise IndexChangedError(f"index {name!r} was replaced while it was evaluated")
        folder.set_defaults(read_manifest(folder.path / str(generation)), query=default)


class _Evaluation:
    """One call: its request, its plan, its table."""

    def __init__(
        self, pool: Pool, payload: bytes, write: Write, ours: tuple[int, float, str]
    ) -> None:
        self._pool = pool
        self._write = write
        self._run, self._deadline, self._request_id = ours
        self._request = evaluate_pb2.EvaluateRequest.FromString(payload)
        self._queries: Matrix = arrays.decode(self._request.queries)
        count = arrays.row_count(self._queries)
        self._task: Task = tasks.parse_task(self._request, count)
        self._asked: Asked = tasks.parse_asked(self._request, count)
        self._settings = self._task.grid.settings()
        self.generation = 0
        # Of every kind of setting, how long a query takes, once that is known. The dial is no part
        # of a kind: it changes what is picked, and hardly how long that takes.
        self._microseconds: dict[QueryParameters, float] = {}
        self._kinds = [replace(setting, diversity=0.0) for setting in self._settings]
        self._calls: dict[int, Call] = {}
        self._replies: deque[tuple[int, _Block, Reply]] = deque()
        self._heard = asyncio.Event()

    @property
    def name(self) -> str:
        """The index that is evaluated."""
        return self._request.index

    async def run(self) -> tuple[list[EvaluateRow], QueryDefault | None]:
        """Return the rows, and the default to be set."""
        plan = await self._plan()
        self.generation = plan.generation
        tally = Tally(self._task, plan, self._asked.numbers())
        try:
            await self._work(plan, tally)
        finally:
            for call in self._calls.values():
                self._pool.withdraw(call)
        return await asyncio.to_thread(tally.rows)

    async def _plan(self) -> Plan:
        """Have every worker check the request, until all have found the same generation."""
        payload = Head(self._run, 0).pack(self._request)
        for _ in range(_ROUNDS_MAX):
            replies = await self._pool.ask_all(Op.PLAN, payload, self._deadline, self._request_id)
            if not replies:
                raise UnavailableError("no worker is up")
            plans = [tasks.unpack_plan(_payload(reply)) for reply in replies]
            if len({plan.generation for plan in plans}) == 1:
                return plans[0]
        raise IndexChangedError(f"index {self.name!r} is replaced again and again")

    async def _work(self, plan: Plan, tally: Tally) -> None:
        blocks, numbers = self._blocks(plan), itertools.count()
        clock = Clock(len(self._settings) * self._task.queries)
        done, told = 0, -math.inf
        while True:
            room = PIECES_MAX * max(1, self._pool.workers) - len(self._calls)
            for block in itertools.islice(blocks, max(0, room)):
                self._deal(next(numbers), block)
            if not self._calls:
                break
            if time.monotonic() - told >= _PROGRESS_SECONDS:
                told = time.monotonic()
                await self._write(tasks.pack_progress(clock.progress(done)))
            with suppress(TimeoutError):
                # No longer: a caller who hears nothing takes us for dead.
                await asyncio.wait_for(self._heard.wait(), _PROGRESS_SECONDS)
            self._heard.clear()
            while self._replies:
                number, block, reply = self._replies.popleft()
                self._calls.pop(number, None)
                measured = tasks.unpack_measured(_payload(reply))
                tally.add(block.setting, block.rows.start, measured)
                self._microseconds[self._kinds[block.setting]] = float(measured[_TIMES].mean())
                done += measured.shape[1]
        await self._write(tasks.pack_progress(clock.progress(done)))

    def _blocks(self, plan: Plan) -> Iterator[_Block]:
        """Cut the work into pieces, the costliest settings first."""
        cost = [
            (
                each.search == "exact",
                each.selector != "nearest" and not each.candidates_limit,
                each.k,
            )
            for each in plan.resolved
        ]
        for setting in sorted(range(len(cost)), key=cost.__getitem__, reverse=True):
            start = 0
            while start < self._task.queries:
                stop = min(self._task.queries, start + self._size(setting))
                yield _Block(setting, slice(start, stop))
                start = stop

    def _size(self, setting: int) -> int:
        each = self._microseconds.get(self._kinds[setting])
        wanted = _FIRST_QUERIES if each is None else _PIECE_SECONDS * 1e6 // max(each, 1.0)
        most = min(_QUERIES_MAX, _RESULTS_MAX // self._settings[setting].k)
        return int(max(1, min(most, wanted)))

    def _deal(self, number: int, block: _Block) -> None:
        rows = block.rows
        request = tasks.piece_of(
            self.name,
            self._settings[block.setting],
            self._asked[rows],
            arrays.encode(arrays.take(self._queries, rows.start, rows.stop)),
        )
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
