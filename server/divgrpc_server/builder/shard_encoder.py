"""Encodes the points of a build on shard servers, and meanwhile on the cores of this machine.

Theory of operation. Shard servers have the staging folder, so the front passes them row numbers
only. It asks another replica if one is slow or gone. Each place has a few blocks at a time, and so
has each core: this machine may have more cores than all places. One thread receives replies, others
encode. The main thread alone sends, because it sends the progress too.

A block that shards do not encode is encoded here, which makes the same bytes, and its place gets no
other one for a while. So no build fails because of a shard server.
"""

import itertools
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Final, NamedTuple, TypeAlias

from google.protobuf.message import DecodeError

from divgrpc.builder.encoder import EncodedRows, encode_on_all_cores
from divgrpc.builder.hash_functions import HashFunctions
from divgrpc.builder.row_encoder import RowEncoder
from divgrpc.platforms import count_cores
from divgrpc.sharding.staged_points import ENCODE, offered, pack_block, unpack_encoded
from divgrpc.storage.arrays import ArrayFolder
from divgrpc.vectors import Rows
from divgrpc_protos.v1 import shard_index_pb2
from divgrpc_server.builder.uploads import check_end
from divgrpc_server.ipc import job_frames, job_rounds, rounds
from divgrpc_server.ipc.job_frames import Frame
from divgrpc_server.logging.logs import Logger

# A block is encoded while the next one waits. A query that comes to the place waits for both.
_BLOCKS_PER_PLACE: Final = 2
_BLOCKS_PER_CORE: Final = 2
# Fewer blocks are encoded before shard servers see the files.
_BLOCKS_MIN: Final = 4
_PAUSE_SECONDS: Final = 1.0


class _Ask(NamedTuple):
    """A block that a place was asked for."""

    place: int
    block: range


class _Replies(NamedTuple):
    """The packed replies to a round."""

    number: int
    packed: bytes


_Encoded: TypeAlias = tuple[range, EncodedRows]


class ShardEncoder:
    """Encodes blocks for `IndexBuilder`; see `divgrpc.builder.encoder.EncodeBlocks`."""

    def __init__(
        self,
        link: socket.socket,
        stage: ArrayFolder,
        index: str,
        places: int,
        log: Logger,
    ) -> None:
        """Take the socket to the front, and the staging folder of the build of an index.

        places: the number of places with shard servers.
        """
        self._link, self._stage = link, stage
        self._index, self._places, self._log = index, places, log

    def __call__(
        self, functions: HashFunctions, points: Rows, blocks: Sequence[range]
    ) -> Iterator[_Encoded]:
        """Yield all blocks in any order, each with its encoded rows."""
        if len(blocks) < _BLOCKS_MIN:
            yield from encode_on_all_cores(functions, points, blocks)
            return
        with offered(self._stage, functions, points), ThreadPoolExecutor(count_cores()) as threads:
            encoder = RowEncoder(functions.arrays, functions.parameters)

            def encode(block: range) -> _Encoded:
                return block, encoder.encode(points[block.start : block.stop])

            work = _Work(blocks, functions, self._places)
            receiver = threading.Thread(target=self._receive, args=(work,), daemon=True)
            receiver.start()
            try:
                for _ in blocks:
                    yield self._next(work, lambda block: threads.submit(encode, block))
            finally:
                work.expected.put(False)
            receiver.join()

    def _next(self, work: "_Work", submit: Callable[[range], "Future[_Encoded]"]) -> _Encoded:
        """Return the next block that is encoded, and hand out others meanwhile."""
        while True:
            while work.todo and (place := work.free_place()) is not None:
                self._ask(work, place, work.todo.popleft())
            while work.todo and work.count_here < _BLOCKS_PER_CORE * count_cores():
                work.count_here += 1
                submit(work.todo.popleft()).add_done_callback(work.put)
            event = work.events.get()
            if isinstance(event, BaseException):
                raise event
            if not isinstance(event, _Replies):
                work.count_here -= 1
                return event
            ask = work.asks.pop(event.number)
            try:
                return ask.block, _encoded_rows(ask, event.packed, work.functions)
            except (ValueError, DecodeError) as error:
                if not work.has_failed:
                    self._log.warning(
                        "a shard server does not hash points of a build, so this process does",
                        index=self._index, place=ask.place, reason=str(error),
                    )  # fmt: skip
                work.put_back(ask)

    def _ask(self, work: "_Work", place: int, block: range) -> None:
        number = next(work.numbers)
        work.asks[number] = _Ask(place, block)
        message = shard_index_pb2.AskRequest(
            index=self._index,
            shard=place,
            operation=ENCODE,
            messages=pack_block(self._stage.folder.name, block),
        )
        packed = rounds.pack_round({place: message.SerializeToString()}, may_lack=True)
        for part in job_rounds.parts_of(number, packed):
            job_frames.send(self._link, Frame.ASK, part)
        work.expected.put(True)

    def _receive(self, work: "_Work") -> None:
        """Receive a reply for each block that was asked for."""
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


class _Work:
    """Who has which blocks of a build.

    todo: the blocks that nobody has. functions: the hash functions. count_here: the number of
    blocks that this machine has. asks: the blocks that places have, by the number of the round.
    events: blocks that are encoded, replies, and errors. expected: true for each reply that will
    come, false at the end.
    """

    def __init__(self, blocks: Sequence[range], functions: HashFunctions, places: int) -> None:
        self.todo = deque(blocks)
        self.functions = functions
        self.count_here = 0
        self.asks: dict[int, _Ask] = {}
        self.numbers = itertools.count(1)
        self.events: SimpleQueue[_Encoded | _Replies | BaseException] = SimpleQueue()
        self.expected: SimpleQueue[bool] = SimpleQueue()
        # When each place may be asked again.
        self._free_times = dict.fromkeys(range(places), 0.0)

    @property
    def has_failed(self) -> bool:
        """Whether a place has not encoded a block."""
        return any(self._free_times.values())

    def put(self, future: "Future[_Encoded]") -> None:
        """Take what a thread has done."""
        self.events.put(future.exception() or future.result())

    def free_place(self) -> int | None:
        """Return the place with the fewest blocks that may get one more; None if all are busy."""
        counts = {place: 0 for place, end in self._free_times.items() if end < time.monotonic()}
        for ask in self.asks.values():
            if ask.place in counts:
                counts[ask.place] += 1
        place = min(counts, key=counts.__getitem__, default=None)
        return place if place is not None and counts[place] < _BLOCKS_PER_PLACE else None

    def put_back(self, ask: _Ask) -> None:
        """Take back a block that its place has not encoded."""
        self.todo.appendleft(ask.block)
        self._free_times[ask.place] = time.monotonic() + _PAUSE_SECONDS


def _encoded_rows(ask: _Ask, packed: bytes, functions: HashFunctions) -> EncodedRows:
    """Return the encoded rows in packed replies; raises `ValueError` and `DecodeError`."""
    replies = rounds.unpack_round(packed)
    reason = rounds.refusal_of(replies)
    if reason is not None:
        raise ValueError(reason)
    response = shard_index_pb2.AskResponse.FromString(replies.messages[ask.place])
    cells, terms, codes = unpack_encoded(response.replies)
    count, code_bytes = len(ask.block), functions.code_bits // 8
    if not len(cells) == len(terms) == count or codes.shape != (count, code_bytes):
        raise ValueError("it has encoded other rows, or is of another version")
    numbers = range(len(functions.arrays["cell_centres"])) if functions.has_cells else range(-1, 0)
    if cells.min() < numbers.start or cells.max() >= numbers.stop:
        raise ValueError("it has found cells that the build does not have")
    return cells, terms, codes
