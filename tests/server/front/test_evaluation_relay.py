"""A front passes an evaluation on, though its process ends at any frame."""

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from divgrpc.errors import UnavailableError
from divgrpc_server.config import Config
from divgrpc_server.front import jobs
from divgrpc_server.ipc import control, job_frames
from divgrpc_server.ipc.job_frames import Frame

Frames = list[tuple[Frame, bytes]]

PROGRESS: Frames = [(Frame.EVENT, b"progress")]
ROWS: Frames = [(Frame.COMMIT, b""), (Frame.EVENT, b"row 1"), (Frame.EVENT, b"row 2")]
END: Frames = [(Frame.RESULT, b"")]
WHOLE = PROGRESS + ROWS + END


def relay(*processes: Frames, messages: list[bytes] | None = None) -> list[bytes]:
    """Relay an evaluation to processes that send these frames; return what was passed on.

    messages: gets what was passed on, also if the evaluation fails.
    """
    remaining: Iterator[Frames] = iter(processes)
    messages = [] if messages is None else messages

    class Channel:
        """A supervisor that has a process for each request."""

        def send(self, message: control.Message) -> None:
            front_end, process_end = job_frames.pair()
            with process_end:
                for kind, payload in next(remaining):
                    job_frames.send(process_end, kind, payload)
                # Otherwise the system would drop what the front has not read.
                process_end.shutdown(socket.SHUT_WR)
                links.append(process_end.dup())
            front.handle(control.Message("job", message.number), front_end.detach())

    async def write(message: bytes) -> None:
        messages.append(message)

    async def run() -> None:
        await front.relay(jobs.Evaluation(Frame.EVALUATE, b"request", write), "tag")

    channel: Any = Channel()
    links: list[socket.socket] = []
    front = jobs.Jobs(Config(), channel, Mock(), Path("/nowhere"))
    try:
        asyncio.run(run())
    finally:
        for link in links:
            link.close()
        assert next(remaining, None) is None
    return messages


@pytest.mark.parametrize("count", range(len(WHOLE)))
def test_a_process_that_ends_at_any_frame_costs_no_row(count: int) -> None:
    """The second process starts over, and the caller gets each row once."""
    messages = relay(WHOLE[:count], WHOLE)
    assert [message for message in messages if message != b"progress"] == [b"row 1", b"row 2"]


def test_two_processes_that_end() -> None:
    with pytest.raises(UnavailableError, match="two evaluators ended"):
        relay(WHOLE[:3], WHOLE[:-1])


def test_rows_that_are_too_large_to_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller gets them as they come. If the process then ends, no other one starts over."""
    monkeypatch.setattr(jobs, "_ROWS_BYTES_MAX", 12)
    row: Frames = [(Frame.EVENT, b"row 3")]
    messages: list[bytes] = []
    with pytest.raises(UnavailableError, match="ended while it sent its rows"):
        relay(PROGRESS + ROWS + 2 * row, messages=messages)
    assert messages == [b"progress", b"row 1", b"row 2", b"row 3", b"row 3"]
    assert relay(PROGRESS + ROWS + row + END) == [b"progress", b"row 1", b"row 2", b"row 3"]
