"""Uploads composed message by message, for builds that the client would never send."""

import queue
import select
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from divgrpc.errors import InvalidArgumentError
from divgrpc_protos.arrays import encode_dense
from divgrpc_protos.v1 import index_pb2
from divgrpc_protos.v1.diverse_index_pb2_grpc import DiverseIndexStub
from divgrpc_server.builder import process as builder
from divgrpc_server.codec.statuses import expected
from divgrpc_server.config import Config
from divgrpc_server.ipc import control, job_frames
from divgrpc_server.ipc.job_frames import Frame
from support.checks.status_details import Details, failure


def header(name: str, **fields: Any) -> index_pb2.BuildRequest:  # noqa: ANN401  # a message's types
    return index_pb2.BuildRequest(header=index_pb2.BuildHeader(index=name, **fields))


def chunk(vectors: object, **labels: Any) -> index_pb2.BuildRequest:  # noqa: ANN401  # a message's types
    matrix = encode_dense(np.asarray(vectors, np.float32))
    return index_pb2.BuildRequest(chunk=index_pb2.BuildChunk(vectors=matrix, **labels))


def commit(rows: int) -> index_pb2.BuildRequest:
    return index_pb2.BuildRequest(commit=index_pb2.BuildCommit(rows=rows))


def once(name: str, vectors: object, **fields: Any) -> index_pb2.BuildOnceRequest:  # noqa: ANN401  # a message's types
    matrix = encode_dense(np.asarray(vectors, np.float32))
    return index_pb2.BuildOnceRequest(index=name, vectors=matrix, **fields)


Message = index_pb2.BuildRequest | index_pb2.BuildOnceRequest


def build(stub: DiverseIndexStub, *messages: Message) -> index_pb2.IndexInfo:
    (first, *_) = messages
    if isinstance(first, index_pb2.BuildOnceRequest):
        return stub.BuildOnce(first, timeout=30).index
    return list(stub.Build(iter(messages), timeout=30))[-1].done  # type: ignore[arg-type]  # one kind


def refusal(stub: DiverseIndexStub, *messages: Message) -> Details:
    """Return the details of a build that must fail."""
    return failure(build, stub, *messages)


def send_upload(link: socket.socket, *messages: Message) -> None:
    """Send a complete upload to a builder, and the permission to publish it."""
    for message in messages:
        is_once = isinstance(message, index_pb2.BuildOnceRequest)
        frame = Frame.ONCE if is_once else Frame.MESSAGE
        job_frames.send(link, frame, message.SerializeToString())
    job_frames.send(link, Frame.END)
    job_frames.send(link, Frame.PUBLISH)


def received_frames(link: socket.socket) -> list[Frame]:
    """Return the kinds of the frames that the builder has sent so far."""
    kinds = []
    while select.select([link], [], [], 0)[0]:
        kinds.append(job_frames.receive(link)[0])
    return kinds


def build_here(root: Path, *messages: Message) -> list[Frame]:
    """Run a builder in this process on an upload, and return the kinds of its frames."""
    front_end, builder_end = job_frames.pair()
    control_end, supervisor_end = socket.socketpair()
    with front_end, builder_end, control_end, supervisor_end:
        send_upload(front_end, *messages)
        channel = control.Channel(control_end)
        builder.build(builder_end, control.Process(channel, Config(), root, 1), Mock())
        return received_frames(front_end)


def wrong_field(root: Path, *messages: Message) -> str:
    """Return the field that the error of a build in this process names."""
    with pytest.raises(Exception) as error_info:  # noqa: PT011  # the status tells
        build_here(root, *messages)
    error = expected(error_info.value)
    assert isinstance(error, InvalidArgumentError)
    return error.field


class Held:
    """A build that the server has accepted, and which waits for messages from the test."""

    def __init__(self, stub: DiverseIndexStub, name: str, **fields: Any) -> None:  # noqa: ANN401
        self._steps: queue.SimpleQueue[index_pb2.BuildRequest | None] = queue.SimpleQueue()
        self.send(header(name, **fields))
        self.call = stub.Build(self._drawn())
        assert next(self.call).HasField("accepted")

    def send(self, step: index_pb2.BuildRequest | None) -> None:
        """Send a message; None closes the upload."""
        self._steps.put(step)

    def _drawn(self) -> Iterator[index_pb2.BuildRequest]:
        while (step := self._steps.get()) is not None:
            yield step
