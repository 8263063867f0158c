"""Sends the progress of a job to its caller, as often as a person wants to see it."""

import select
import socket
import time
from typing import Final

from google.protobuf.message import Message

from divgrpc.types import Progress
from divgrpc_protos.records import to_message
from divgrpc_protos.v1 import index_pb2
from divgrpc_server.ipc import job_frames
from divgrpc_server.ipc.job_frames import Frame

_EVENT_SECONDS: Final = 0.1


class ProgressEvents:
    """The progress of one call; each event is a message of `response_type`."""

    def __init__(self, link: socket.socket, response_type: type[Message]) -> None:
        self._link, self._response_type = link, response_type
        # `select.select` takes no descriptor from 1,024 on.
        self._poller = select.poll()
        self._poller.register(link, select.POLLOUT)
        # The stage of the last event, and whether all points were done.
        self._state = ("", False)
        self._sent_seconds = 0.0

    def report(self, progress: Progress) -> None:
        """Send the progress, unless progress was sent recently or the socket's buffer is full.

        The beginning and the end of a stage are sent at once. Raises `OSError` if the front hung
        up.
        """
        now = time.monotonic()
        state = (progress.stage, progress.rows_done == progress.rows_total)
        if state == self._state and now - self._sent_seconds < _EVENT_SECONDS:
            return
        if not self._poller.poll(0):
            return
        self._state, self._sent_seconds = state, now
        event = self._response_type(progress=to_message(progress, index_pb2.BuildProgress))
        job_frames.send(self._link, Frame.EVENT, event.SerializeToString())
