"""BuildOnce builds the same index and refuses the same requests as Build, from one message."""

from typing import Any, NamedTuple

import grpc
import numpy as np
import pytest
from scipy.sparse import csr_array

from divgrpc.parameters import LIMITS
from divgrpc_client import Client
from divgrpc_client.messages.options import BuildOptions
from divgrpc_client.messages.upload import RowData, upload
from divgrpc_protos.v1 import index_pb2
from divgrpc_protos.v1.diverse_index_pb2_grpc import DiverseIndexStub
from support.data.served_index import DIMS, random_points
from support.processes.running_server import RunningServer

INVALID = grpc.StatusCode.INVALID_ARGUMENT
ONES = np.ones((3, DIMS), np.float32)
ROWS = 300
LABELS = 6


class Case(NamedTuple):
    """Arguments of `Client.build`."""

    vectors: Any
    options: BuildOptions
    arguments: dict[str, Any]


def streamed_as_one(name: str, case: Case) -> index_pb2.BuildOnceRequest:
    """Return the messages that the Python client would stream, merged into one message."""
    arguments = {"replace": False, **case.arguments}
    data = RowData(**{key: arguments.pop(key) for key in RowData._fields if key in arguments})
    messages = upload(name, case.vectors, case.options, data, **arguments)
    header = messages.header.header
    once = index_pb2.BuildOnceRequest(index=name, parameters=header.parameters)
    once.declarations.extend(header.declarations)
    if header.HasField("labels"):
        once.label_plan.CopyFrom(header.labels)
    for step in messages.chunks(LIMITS["message_bytes_max"]):
        if step.HasField("label_chunk"):
            once.label_chunk.MergeFrom(step.label_chunk)
        elif step.HasField("chunk"):
            assert not once.HasField("vectors"), "one chunk"
            once.MergeFromString(_renumbered(step.chunk).SerializeToString())
    return once


def _renumbered(chunk: index_pb2.BuildChunk) -> index_pb2.BuildOnceRequest:
    """Return the fields of a chunk, keyed by their field numbers in a BuildOnceRequest."""
    return index_pb2.BuildOnceRequest(**{field.name: value for field, value in chunk.ListFields()})


def files(server: RunningServer, name: str) -> dict[str, bytes]:
    """Return the arrays of an index's first generation, including the arrays of labels."""
    folder = server.folder / "data" / name / "1"
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.npy")}


def sparse_points() -> csr_array:
    points = random_points(ROWS)
    return csr_array(np.where(np.abs(points) > 1, points, 0) + np.eye(ROWS, DIMS))


def label_arguments() -> dict[str, Any]:
    rng = np.random.default_rng(3)
    return {
        "labels": csr_array(rng.random((ROWS, LABELS)) < 0.4),
        "label_model": "leml",
        "label_names": list("abcdef"),
        "hierarchy": [(LABELS, label) for label in range(LABELS)],
        "roots": [LABELS],
    }


CASES = {
    "dense": Case(random_points(ROWS), {}, {}),
    "columns": Case(
        random_points(ROWS),
        {"metric": "euclidean", "hash_family": "lsh_div", "n_bits": 9, "seed": 5},
        {
            "ids": np.arange(ROWS)[::-1] * 7,
            "categories": np.arange(ROWS) % 3 - 1,
            "subtopics": np.arange(ROWS) % 4 - 1,
        },
    ),
    "half": Case(random_points(ROWS).astype(np.float16), {"hash_family": "cells"}, {}),
    "sparse": Case(sparse_points(), {}, {"categories": np.arange(ROWS) % 3}),
    "labels": Case(
        random_points(ROWS), {"rank": 3, "regularisation": 0.1, "iterations": 2}, label_arguments()
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_once_and_stream_make_the_same_index(
    server: RunningServer, stub: DiverseIndexStub, client: Client, case: Case
) -> None:
    once = stub.BuildOnce(streamed_as_one("once", case), timeout=60).index
    client.build("streamed", case.vectors, **case.arguments, **case.options)
    arrays = files(server, "once")
    assert arrays
    assert arrays == files(server, "streamed")
    assert once == stub.GetIndex(index_pb2.GetIndexRequest(index="once"), timeout=30).index
    twin = stub.GetIndex(index_pb2.GetIndexRequest(index="streamed"), timeout=30).index
    assert once.parameters == twin.parameters
    assert list(once.arrays) == list(twin.arrays)
    for name in ("once", "streamed"):
        client.delete_index(name)
