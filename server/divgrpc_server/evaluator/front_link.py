"""The socket of an evaluator to the front of its call, which asks shards."""

import itertools
import socket
import threading
from dataclasses import dataclass

from divgrpc.sharding.rounds import Round
from divgrpc.sharding.runner import Replies
from divgrpc.storage.manifest import Manifest
from divgrpc_protos.v1 import shard_index_pb2
from divgrpc_server.codec.shard_messages import pack_asks
from divgrpc_server.ipc import job_frames, job_rounds, rounds
from divgrpc_server.ipc.errors import FrameError
from divgrpc_server.ipc.job_frames import Frame


class FrontLink:
    """A socket that several threads use.

    One of the threads that wait for replies receives those of all.
    """

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._sending = threading.Lock()
        self._changed = threading.Condition()
        self._is_receiving = False
        self._numbers = itertools.count(1)
        self._assembly = job_rounds.Assembly()
        self._replies: dict[int, bytes] = {}

    def fileno(self) -> int:
        """Return the descriptor, for polling."""
        return self._link.fileno()

    def send(self, kind: Frame, payload: bytes = b"") -> None:
        """Send a frame; block while the socket's buffer is full."""
        with self._sending:
            job_frames.send(self._link, kind, payload)

    def exchange(self, data: bytes) -> bytes:
        """Send a packed round, and return the packed replies; raises EOFError if the front left."""
        with self._changed:
            number = next(self._numbers)
        for part in job_rounds.parts_of(number, data):
            self.send(Frame.ASK, part)
        with self._changed:
            while number not in self._replies:
                if self._is_receiving:
                    self._changed.wait()
                else:
                    self._receive()
            return self._replies.pop(number)

    def _receive(self) -> None:
        """Receive one frame, while other threads may begin to wait."""
        self._is_receiving = True
        self._changed.release()
        try:
            kind, payload = job_frames.receive(self._link)
        finally:
            self._changed.acquire()
            self._is_receiving = False
            # If this thread fails, another one must receive.
            self._changed.notify_all()
        if kind != Frame.REPLIES:
            raise FrameError(f"a front answered a round with a frame {kind.name}")
        replies = self._assembly.add(payload)
        if replies is not None:
            self._replies.update([replies])


@dataclass(frozen=True, slots=True)
class ShardAsker:
    """Asks the shards of an index through the front; see `ShardRunner`.

    index, manifest: the name of the index, and the manifest of its whole generation.
    """

    link: FrontLink
    index: str
    manifest: Manifest

    def __call__(self, step: Round) -> Replies:
        """Return the replies to a round."""
        packed = rounds.pack_round(pack_asks(step, self.index, self.manifest))
        replies = {
            shard: shard_index_pb2.AskResponse.FromString(reply)
            for shard, reply in rounds.unpack_round(self.link.exchange(packed)).messages.items()
        }
        seconds = sum(reply.cpu_seconds for reply in replies.values())
        return Replies({shard: reply.replies for shard, reply in replies.items()}, seconds)
