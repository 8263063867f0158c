"""Divides the work of a build among shard servers and the cores of this machine.

Theory of operation. Shard servers have the staging folder, so the front passes them messages that
name rows only. It asks another replica if one is slow or gone. Each place has a few items at a
time, and so has each core: this machine may have more cores than all places. One thread receives
replies, others work. The main thread alone sends, because it sends the progress too.

A question about a shard goes to the place of the shard alone, whose servers have it open. The main
thread waits for the replies to all of them.

What a place does not finish is worked on here, with the same bytes, and the place gets nothing else
for a while. So no build fails because of a shard server.
"""

import itertools
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from google.protobuf.message import DecodeError

from divgrpc.platforms import count_cores
from divgrpc.sharding.messages import Buffer
from divgrpc_protos.v1 import shard_index_pb2
from divgrpc_server.builder.uploads import check_end
from divgrpc_server.ipc import job_frames, job_rounds, rounds
from divgrpc_server.ipc.job_frames import Frame
from divgrpc_server.logging.logs import Logger

# An item is worked on while the next one waits. A query that comes to the place waits for both.
_ITEMS_PER_PLACE: Final = 2
_ITEMS_PER_CORE: Final = 2
_PAUSE_SECONDS: Final = 1.0
_DOUBLINGS_MAX: Final = 6
_Result = TypeVar("_Result")
_Result_co = TypeVar("_Result_co", covariant=True)
_Item_contra = TypeVar("_Item_contra", contravariant=True)


class Task(Protocol[_Item_contra, _Result_co]):
    """What is to be done with items: ranges of rows, or numbers of shards."""

    operation: str  # as for `StagedBuild.ask`
    verb: str  # what a shard server does with the points, for the log

    def pack(self, item: _Item_contra, /) -> bytes:
        """Return the message for a shard server."""

    def unpack(self, item: _Item_contra, reply: Buffer, /) -> _Result_co:
        """Return the result in a reply; raises `ValueError` for a reply that does not fit."""

    def work(self, item: _Item_contra, /) -> _Result_co:
        """Return the result without a shard server."""


class _Ask(NamedTuple):
    """A place, and the rows that it was asked for."""

    place: int
    rows: range


class _Replies(NamedTuple):
    """The packed replies to a round."""

    number: int
    packed: bytes


@dataclass(slots=True)
class _PlaceState:
    """When a place may be asked again, and how often it has failed in a row."""

    free_time: float = 0.0
    failures: int = 0


class ShardWork:
    """Lets shard servers work on a build of an index."""

    def __init__(self, link: socket.socket, index: str, places: int, log: Logger) -> None:
        """Take the socket to the front.

        places: the number of places with shard servers.
        """
        self._link, self._index, self._places, self._log = link, index, places, log
        self._numbers = itertools.count(1)
        self._place_states = {place: _PlaceState() for place in range(places)}

    def run(
        self, task: Task[range, _Result], items: Sequence[range], ahead: int | None = None
    ) -> Iterator[tuple[range, _Result]]:
        """Yield all items in any order, each with its result.

        ahead: how many items after the first one without a result may be begun; None for all.
        """
        with ThreadPoolExecutor(count_cores()) as threads:
            work: _Work[_Result] = _Work(items, self._place_states, ahead)
            receiver = threading.Thread(target=self._receive, args=(work,), daemon=True)
            receiver.start()

            def submit(rows: range) -> None:
                work.count_here += 1
                threads.submit(lambda: (rows, task.work(rows))).add_done_callback(work.put)

            try:
                for _ in items:
                    yield self._next(task, work, submit)
            finally:
                work.expected.put(False)
            receiver.join()

    def _next(
        self, task: Task[range, _Result], work: "_Work[_Result]", submit: Callable[[range], None]
    ) -> tuple[range, _Result]:
        """Return the next result, and hand out items meanwhile."""
        while True:
            while work.may_begin() and (place := work.free_place()) is not None:
                self._ask(task, work, place, work.todo.popleft())
            while work.may_begin() and work.count_here < _ITEMS_PER_CORE * count_cores():
                submit(work.todo.popleft())
            event = work.events.get()
            if isinstance(event, BaseException):
                raise event
            if not isinstance(event, _Replies):
                work.count_here -= 1
                del work.unfinished[event[0]]
                return event
            ask = work.asks.pop(event.number)
            try:
                result = task.unpack(ask.rows, _reply_of(ask.place, event.packed))
            except (ValueError, DecodeError) as error:
                work.todo.appendleft(ask.rows)
                self._pause(ask.place, task.verb, error)
            else:
                self._place_states[ask.place].failures = 0
                del work.unfinished[ask.rows]
                return ask.rows, result

    def _ask(
        self, task: Task[range, _Result], work: "_Work[_Result]", place: int, rows: range
    ) -> None:
        number = self._send(place, task.operation, task.pack(rows))
        work.asks[number] = _Ask(place, rows)
        work.expected.put(True)

    def _send(self, place: int, operation: str, messages: bytes) -> int:
        """Send a message to a place; return the number of its round."""
        number = next(self._numbers)
        message = shard_index_pb2.AskRequest(
            index=self._index, shard=place, operation=operation, messages=messages
        )
        packed = rounds.pack_round({place: message.SerializeToString()}, may_lack=True)
        for part in job_rounds.parts_of(number, packed):
            job_frames.send(self._link, Frame.ASK, part)
        return number

    def _pause(self, place: int, verb: str, error: Exception) -> None:
        """Ask a place nothing for a while, because it has not finished something."""
        if not any(state.free_time for state in self._place_states.values()):
            self._log.warning(
                f"a shard server does not {verb} points of a build, so this process does",
                index=self._index, place=place, reason=str(error),
            )  # fmt: skip
        state = self._place_states[place]
        # A run waits for what a place has, so a place that keeps failing is asked more seldom.
        pause = _PAUSE_SECONDS * 2 ** min(state.failures, _DOUBLINGS_MAX)
        state.free_time, state.failures = time.monotonic() + pause, state.failures + 1

    def prepare(self, operation: str, messages: Mapping[int, bytes]) -> None:
        """Let the place of each shard have a message about it before a task asks; it may fail."""
        for _ in self._receive_all([self._tell(operation, *item) for item in messages.items()]):
            pass

    def ask(self, task: Task[int, _Result], shards: Sequence[int]) -> list[_Result]:
        """Return the result of each of some shards, in their order."""
        now = time.monotonic()
        shard_of = {
            self._tell(task.operation, shard, task.pack(shard)): shard
            for shard in shards
            if self._place_states[self._place_of(shard)].free_time < now
        }
        # The shards of other places, while these places work.
        rest = [shard for shard in shards if shard not in shard_of.values()]
        results, faults = {shard: task.work(shard) for shard in rest}, {}
        for number, packed in self._receive_all(shard_of):
            shard = shard_of[number]
            place = self._place_of(shard)
            try:
                results[shard] = task.unpack(shard, _reply_of(place, packed))
            except (ValueError, DecodeError) as error:
                faults[place] = error
        for place in {*map(self._place_of, shard_of.values())} - faults.keys():
            self._place_states[place].failures = 0
        for place, fault in faults.items():
            self._pause(place, task.verb, fault)
        return [results[shard] if shard in results else task.work(shard) for shard in shards]

    def _place_of(self, shard: int) -> int:
        return shard % self._places

    def _tell(self, operation: str, shard: int, message: bytes) -> int:
        """Send a message to the place of a shard; return the number of its round."""
        return self._send(self._place_of(shard), operation, message)

    def _receive_all(self, numbers: Collection[int]) -> Iterator[tuple[int, bytes]]:
        """Yield the number and the packed replies of each of some rounds, in any order."""
        assembly = job_rounds.Assembly()
        for _ in numbers:
            while (replies := self._receive_part(assembly)) is None:
                pass
            yield replies

    def _receive(self, work: "_Work[_Result]") -> None:
        """Receive a reply for each item that a place was asked for."""
        assembly = job_rounds.Assembly()
        try:
            while work.expected.get():
                while (replies := self._receive_part(assembly)) is None:
                    pass
                work.events.put(_Replies(*replies))
        except Exception as error:  # noqa: BLE001  # the main thread raises it
            work.events.put(error)

    def _receive_part(self, assembly: job_rounds.Assembly) -> tuple[int, bytes] | None:
        """Receive a frame; return the number and the packed replies of a round that is complete."""
        kind, payload = job_frames.receive(self._link)
        if kind == Frame.REPLIES:
            return assembly.add(payload)
        check_end(kind)
        return None


class _Work(Generic[_Result]):
    """Who has which items.

    todo: the items that nobody has. unfinished: the numbers of the items without a result.
    count_here: the number of items that this machine has. asks: the items that places have, by the
    number of the round. events: results, replies, and errors. expected: true for each reply that
    will come, false at the end.
    """

    def __init__(
        self, items: Sequence[range], places: dict[int, _PlaceState], ahead: int | None
    ) -> None:
        self.todo = deque(items)
        self.unfinished = {rows: number for number, rows in enumerate(items)}
        self.count_here = 0
        self.asks: dict[int, _Ask] = {}
        self.events: SimpleQueue[tuple[range, _Result] | _Replies | BaseException] = SimpleQueue()
        self.expected: SimpleQueue[bool] = SimpleQueue()
        self._places, self._ahead = places, ahead

    def may_begin(self) -> bool:
        """Return whether an item may be begun."""
        if not self.todo or self._ahead is None:
            return bool(self.todo)
        first = next(iter(self.unfinished.values()))
        return self.unfinished[self.todo[0]] < first + self._ahead

    def put(self, future: "Future[tuple[range, _Result]]") -> None:
        """Take what a thread has done."""
        self.events.put(future.exception() or future.result())

    def free_place(self) -> int | None:
        """Return the place with the fewest items that may get one more; None if all are busy."""
        now = time.monotonic()
        counts = {place: 0 for place, state in self._places.items() if state.free_time < now}
        for ask in self.asks.values():
            if ask.place in counts:
                counts[ask.place] += 1
        place = min(counts, key=counts.__getitem__, default=None)
        return place if place is not None and counts[place] < _ITEMS_PER_PLACE else None


def _reply_of(place: int, packed: bytes) -> Buffer:
    """Return the reply in the packed replies to a round; raises `ValueError` and `DecodeError`."""
    replies = rounds.unpack_round(packed)
    reason = rounds.refusal_of(replies)
    if reason is not None:
        raise ValueError(reason)
    return shard_index_pb2.AskResponse.FromString(replies.messages[place]).replies
