"""The calls of AddAttributes that the writer serves, each in a thread of its own."""

import socket
import threading
from contextlib import suppress

from divgrpc.types import IndexInfo
from divgrpc_protos.records import to_message
from divgrpc_protos.v1 import attributes_pb2, index_pb2
from divgrpc_server.builder.uploads import AttributeUpload
from divgrpc_server.codec.statuses import BuildsFullError, explain
from divgrpc_server.ipc import job_frames
from divgrpc_server.ipc.job_frames import Frame
from divgrpc_server.logging.logs import Logger
from divgrpc_server.writer.collections import Collections


class Extensions:
    """Adds attributes to collections, for a limited number of callers at a time."""

    def __init__(self, collections: Collections, limit: int, log: Logger) -> None:
        self._collections, self._log = collections, log
        self._room = threading.Semaphore(limit)

    def begin(self, link: socket.socket, tag: str) -> None:
        """Serve the call that comes on `link`; `tag` is its request id."""
        # A process that ends does not wait for these threads.
        threading.Thread(target=self._serve, args=(link, tag), daemon=True).start()

    def _serve(self, link: socket.socket, tag: str) -> None:
        # If the front hangs up, nobody waits for the outcome.
        with link, suppress(EOFError, OSError):
            job_frames.send(link, *self._outcome(link, tag))

    def _outcome(self, link: socket.socket, tag: str) -> tuple[Frame, bytes]:
        """Return the last frame of a call; raises `EOFError` or `OSError` if the front hangs up."""
        try:
            info = self._add(link)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise
        except Exception as error:  # noqa: BLE001  # becomes the status of the call
            return Frame.STATUS, explain(error, tag, self._log).SerializeToString()
        response = attributes_pb2.AddAttributesResponse(done=to_message(info, index_pb2.IndexInfo))
        return Frame.RESULT, response.SerializeToString()

    def _add(self, link: socket.socket) -> IndexInfo:
        if not self._room.acquire(blocking=False):
            raise BuildsFullError
        try:
            return self._collections.add_attributes(AttributeUpload(link))
        finally:
            self._room.release()
