"""Compact, Retrain and AddAttributes, which may take hours: the writer serves them in threads."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from divgrpc_protos.records import to_message
from divgrpc_protos.v1 import attributes_pb2, index_pb2, writes_pb2
from divgrpc_server.builder.uploads import AttributeUpload
from divgrpc_server.codec.statuses import BuildsFullError, explain
from divgrpc_server.ipc import job_frames
from divgrpc_server.ipc.job_frames import Frame
from divgrpc_server.ipc.progress import ProgressEvents
from divgrpc_server.logging.logs import Logger
from divgrpc_server.monitoring.page import Page
from divgrpc_server.monitoring.stages import counting_stages
from divgrpc_server.writer.collections import Collections

# Maximum number of calls of Compact that only merge, at the same time.
_MERGES_MAX: Final = 16


class Renewals:
    """Serves Compact, Retrain and AddAttributes, for a limited number of callers at a time.

    generations_max: maximum number of calls that make a new generation at the same time.
    page: takes the times of stages; None to count nothing.
    """

    def __init__(
        self, collections: Collections, generations_max: int, log: Logger, page: Page | None
    ) -> None:
        self._collections, self._log, self._page = collections, log, page
        self._generation_places = threading.Semaphore(generations_max)
        self._merge_places = threading.Semaphore(_MERGES_MAX)

    def begin(self, link: socket.socket, tag: str) -> None:
        """Serve the call that comes on `link` in a new thread; `tag` is its tag.

        The process may exit before the thread ends.
        """
        threading.Thread(target=self._serve, args=(link, tag), daemon=True).start()

    def _serve(self, link: socket.socket, tag: str) -> None:
        # A front hangs up when its caller leaves. Then nobody waits for the outcome.
        with link, suppress(EOFError, OSError):
            job_frames.send(link, *self._outcome(link, tag))

    def _outcome(self, link: socket.socket, tag: str) -> tuple[Frame, bytes]:
        """Return the last frame of a call; raises `EOFError` or `OSError` if the front hangs up."""
        try:
            response = self._answer(link)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise
        except Exception as error:  # noqa: BLE001  # becomes the status of the call
            return Frame.STATUS, explain(error, tag, self._log).SerializeToString()
        return Frame.RESULT, response.SerializeToString()

    def _answer(self, link: socket.socket) -> Any:  # noqa: ANN401  # the last message of the call
        kind = job_frames.peek(link)
        if kind == Frame.ATTRIBUTES:
            return self._add(link)
        _, payload = job_frames.receive(link)
        job_frames.receive(link)  # the end of the request
        if kind == Frame.RETRAIN:
            return self._retrain(link, writes_pb2.RetrainRequest.FromString(payload))
        return self._compact(link, writes_pb2.CompactRequest.FromString(payload))

    def _add(self, link: socket.socket) -> attributes_pb2.AddAttributesResponse:
        with _occupy(self._generation_places):
            info = self._collections.add_attributes(AttributeUpload(link))
        return attributes_pb2.AddAttributesResponse(done=to_message(info, index_pb2.IndexInfo))

    def _compact(
        self, link: socket.socket, request: writes_pb2.CompactRequest
    ) -> writes_pb2.CompactResponse:
        report = ProgressEvents(link, writes_pb2.CompactResponse).report
        places = self._generation_places if request.vacuum else self._merge_places
        with _occupy(places), counting_stages(self._page, report) as count_stage:
            outcome = self._collections.compact(request.index, count_stage, vacuum=request.vacuum)
        result = writes_pb2.CompactResult(
            generation=outcome.generation, sequence=outcome.sequence, merged=outcome.is_done
        )
        return writes_pb2.CompactResponse(done=result)

    def _retrain(
        self, link: socket.socket, request: writes_pb2.RetrainRequest
    ) -> writes_pb2.RetrainResponse:
        report = ProgressEvents(link, writes_pb2.RetrainResponse).report
        with (
            _occupy(self._generation_places),
            counting_stages(self._page, report) as count_stage,
        ):
            outcome = self._collections.retrain(request.index, count_stage)
        result = writes_pb2.RetrainResult(
            generation=outcome.generation, sequence=outcome.sequence, retrained=outcome.is_done
        )
        return writes_pb2.RetrainResponse(done=result)


@contextmanager
def _occupy(places: threading.Semaphore) -> Iterator[None]:
    """Occupy a place during the `with` block; raises `BuildsFullError` if none is free."""
    if not places.acquire(blocking=False):
        raise BuildsFullError
    try:
        yield
    finally:
        places.release()
