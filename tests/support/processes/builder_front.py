"""What a builder takes for a front with shard servers: a thread that answers its messages."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from divgrpc.errors import IndexNotFoundError
from divgrpc.sharding.staged_build import StagedBuild, folder_of
from divgrpc.sharding.staged_shards import OpenCopy
from divgrpc.storage.generations import Staging
from divgrpc_protos.v1 import shard_index_pb2
from divgrpc_server.builder.shard_work import ShardWork
from divgrpc_server.ipc import job_frames, job_rounds, rounds
from divgrpc_server.ipc.job_frames import Frame
from divgrpc_server.logging.logs import Logger

# Returns what a front sends for rows that a place was asked for.
Answer = Callable[[int, shard_index_pb2.AskRequest], bytes]


class Front:
    """Answers a builder from another thread, and keeps the places of all messages."""

    def __init__(self, link: socket.socket, answer: Answer, first: Frame | None) -> None:
        """Send a frame of the caller before the first reply."""
        self.places: list[int] = []
        self._link, self._answer, self._first = link, answer, first
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        assembly = job_rounds.Assembly()
        try:
            while True:
                kind, payload = job_frames.receive(self._link)
                assert kind == Frame.ASK
                if self._first is not None:
                    job_frames.send(self._link, self._first)
                    self._first = None
                message = assembly.add(payload)
                assert message is not None
                number, packed = message
                step = rounds.unpack_round(packed)
                ((place, ask),) = step.messages.items()
                assert step.may_lack
                self.places.append(place)
                request = shard_index_pb2.AskRequest.FromString(ask)
                for part in job_rounds.parts_of(number, self._answer(place, request)):
                    job_frames.send(self._link, Frame.REPLIES, part)
        except (EOFError, OSError):
            self._link.close()

    def join(self) -> None:
        """Wait until the builder has closed its socket."""
        self._thread.join()


class Shards:
    """Work on what a staging folder offers, unless the place has a reason not to."""

    def __init__(self, stage: Staging, *reasons: str, open_copy: OpenCopy | None = None) -> None:
        self._stage, self._reasons, self._open_copy = stage, reasons, open_copy
        self._builds: dict[str, StagedBuild] = {}

    def __call__(self, place: int, request: shard_index_pb2.AskRequest) -> bytes:
        """Return the packed replies."""
        if place < len(self._reasons) and self._reasons[place]:
            return rounds.pack_refusal(self._reasons[place])
        assert (request.index, request.shard) == ("points", place)
        folder = folder_of(request.operation, request.messages)
        if folder not in self._builds:
            path = self._stage.folder.parent / folder
            self._builds[folder] = StagedBuild(path, self._open_copy)
        try:
            reply = self._builds[folder].ask(request.operation, request.messages)
        except IndexNotFoundError as error:
            return rounds.pack_refusal(str(error))
        return rounds.pack_round(
            {place: shard_index_pb2.AskResponse(replies=reply).SerializeToString()}
        )


@contextmanager
def shard_work(
    answer: Answer, places: int, log: Logger, first: Frame | None = None
) -> Iterator[tuple[ShardWork, list[int]]]:
    """Yield what divides the work of a build of the index `points`, and the places it asks.

    first: a frame of the caller before the first reply.
    """
    front_end, builder_end = job_frames.pair()
    with builder_end:
        front = Front(front_end, answer, first)
        try:
            yield ShardWork(builder_end, "points", places, log), front.places
        finally:
            builder_end.shutdown(socket.SHUT_RDWR)
            front.join()
