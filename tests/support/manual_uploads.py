"""Build calls made by hand, for uploads that the client would never send."""

import queue
from collections.abc import Iterable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from divgrpc_protos.arrays import encode_dense
from divgrpc_protos.v1 import index_pb2
from divgrpc_protos.v1.diverse_index_pb2_grpc import DiverseIndexStub
from support.status_details import Details, details_of


def header(name: str, **fields: Any) -> index_pb2.BuildRequest:  # noqa: ANN401  # a message's types
    """Return the message that opens a build."""
    return index_pb2.BuildRequest(header=index_pb2.BuildHeader(index=name, **fields))


def chunk(vectors: object, **labels: Any) -> index_pb2.BuildRequest:  # noqa: ANN401  # a message's types
    """Return a message with rows."""
    matrix = encode_dense(np.asarray(vectors, np.float32))
    return index_pb2.BuildRequest(chunk=index_pb2.BuildChunk(vectors=matrix, **labels))


def commit(rows: int) -> index_pb2.BuildRequest:
    """Return the message that ends an upload."""
    return index_pb2.BuildRequest(commit=index_pb2.BuildCommit(rows=rows))


def build(
    stub: DiverseIndexStub, steps: Iterable[index_pb2.BuildRequest], timeout: float = 30
) -> index_pb2.IndexInfo:
    """Return what a build came to."""
    return list(stub.Build(iter(steps), timeout=timeout))[-1].done


def refusal(stub: DiverseIndexStub, *steps: index_pb2.BuildRequest) -> Details:
    """Return the details of a build that must fail."""
    with pytest.raises(grpc.RpcError) as caught:
        build(stub, steps)
    return details_of(caught.value)


class Held:
    """A build that has been accepted, and sends nothing more until told to."""

    def __init__(self, stub: DiverseIndexStub, name: str, **fields: Any) -> None:  # noqa: ANN401
        self._steps: queue.SimpleQueue[index_pb2.BuildRequest | None] = queue.SimpleQueue()
        self.send(header(name, **fields))
        self.call = stub.Build(self._drawn())
        assert next(self.call).HasField("accepted")

    def send(self, step: index_pb2.BuildRequest | None) -> None:
        """Send a message; None ends the upload."""
        self._steps.put(step)

    def _drawn(self) -> Iterator[index_pb2.BuildRequest]:
        while (step := self._steps.get()) is not None:
            yield step
