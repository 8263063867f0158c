"""BuildOnce: the index that the stream makes, from one message, and the same refusals."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np
import pytest
from scipy.sparse import csr_array

from divgrpc.errors import IndexNotFoundError, InvalidArgumentError
from divgrpc.parameters import LIMITS
from divgrpc.types import FloatArray
from divgrpc_client import Client
from divgrpc_client.messages.options import BuildOptions
from divgrpc_client.messages.upload import upload
from divgrpc_protos.arrays import encode_dense
from divgrpc_protos.v1 import index_pb2, labels_pb2, vectors_pb2
from divgrpc_protos.v1.diverse_index_pb2_grpc import DiverseIndexStub
from divgrpc_server.builder import __main__ as builder
from divgrpc_server.config import Config
from divgrpc_server.ipc import control, job_frames
from divgrpc_server.ipc.job_frames import Frame
from support.manual_uploads import Held
from support.raw_calls import unary
from support.running_server import RunningServer, eventually
from support.served_index import DIMS, random_points
from support.status_details import Details, details_of

INVALID = grpc.StatusCode.INVALID_ARGUMENT
ONES = np.ones((3, DIMS), np.float32)
ROWS = 300
LABELS = 6
_NO_COLUMNS: dict[str, Any] = {"ids": None, "categories": None, "subtopics": None}


def request(name: str, points: FloatArray = ONES, **fields: Any) -> index_pb2.BuildOnceRequest:  # noqa: ANN401  # a message's types
    """Return a request to build an index of dense points."""
    return index_pb2.BuildOnceRequest(index=name, vectors=encode_dense(points), **fields)


def large(name: str) -> index_pb2.BuildOnceRequest:
    """Return a request whose message is nearly as large as it may be."""
    rows = (LIMITS["message_bytes_max"] - 1024) // 4 // DIMS
    return request(name, random_points(rows))


class Case(NamedTuple):
    """Arguments of `Client.build`."""

    vectors: Any
    options: BuildOptions
    arguments: dict[str, Any]


def streamed_as_one(name: str, case: Case) -> index_pb2.BuildOnceRequest:
    """Return the messages that the Python client would stream as one message."""
    arguments = {**_NO_COLUMNS, "replace": False, **case.arguments}
    messages = upload(name, case.vectors, case.options, **arguments)
    header = messages.header.header
    once = index_pb2.BuildOnceRequest(index=name, parameters=header.parameters)
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
    """Return the fields of a chunk under their numbers in a BuildOnceRequest."""
    return index_pb2.BuildOnceRequest(**{field.name: value for field, value in chunk.ListFields()})


def refusal(stub: DiverseIndexStub, once: index_pb2.BuildOnceRequest) -> Details:
    """Return the details of a call that must fail."""
    with pytest.raises(grpc.RpcError) as caught:
        stub.BuildOnce(once, timeout=30)
    return details_of(caught.value)


def files(server: RunningServer, name: str) -> dict[str, bytes]:
    """Return the arrays of an index's first generation, those of its labels too."""
    folder = server.folder / "data" / name / "1"
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.npy")}


def leftovers(server: RunningServer, name: str) -> list[Path]:
    """Return the folders of an index in the data folder, staging folders included."""
    data = server.folder / "data"
    return [entry for entry in data.iterdir() if entry.name.lstrip(".").split(".")[0] == name]


@pytest.fixture
def clean(server: RunningServer) -> Iterator[str]:
    """Yield a name, and check that no folder of it is left."""
    yield "once-clean"
    eventually(lambda: not leftovers(server, "once-clean"))


def sparse_points() -> csr_array:
    """Return sparse rows with at least one number each."""
    points = random_points(ROWS)
    return csr_array(np.where(np.abs(points) > 1, points, 0) + np.eye(ROWS, DIMS))


def label_arguments() -> dict[str, Any]:
    """Return labels of every row, their names and their hierarchy."""
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
        random_points(ROWS),
        {"rank": 3, "regularisation": 0.1, "iterations": 2},
        label_arguments(),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_once_and_stream_make_the_same_index(
    server: RunningServer, stub: DiverseIndexStub, client: Client, case: Case
) -> None:
    """The same points, parameters and labels give arrays with the same bytes."""
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


def _wrong() -> dict[str, tuple[index_pb2.BuildOnceRequest, str]]:
    """Return wrong requests with the field of the error."""
    name = "once-clean"
    bad = ONES.copy()
    bad[1, 1] = np.nan
    short = request(name)
    short.vectors.dense.data = short.vectors.dense.data[:-1]
    torn = labels_pb2.LabelSets(label_count=2, offsets=[0, 1], ids=[0])
    bits = index_pb2.BuildParameters(n_bits=25)
    metric = index_pb2.BuildParameters.FromString(b"\x08\x63")  # 99
    return {
        "nothing": (index_pb2.BuildOnceRequest(), "index"),
        "name": (request("../x"), "index"),
        "no vectors": (index_pb2.BuildOnceRequest(index=name), "vectors"),
        "no rows": (request(name, ONES[:0]), "vectors"),
        "nan": (request(name, bad), "vectors"),
        "short": (short, "vectors.dense.data"),
        "ids twice": (request(name, ids=[1, 2, 1]), "ids"),
        "too few ids": (request(name, ids=[1, 2]), "ids"),
        "categories": (request(name, categories=[1]), "categories"),
        "subtopics": (request(name, subtopics=[1, 2, -2]), "subtopics"),
        "labels": (request(name, labels=torn), "labels.offsets"),
        "rank": (
            request(
                name,
                label_plan=labels_pb2.LabelPlan(parameters=labels_pb2.LabelParameters(rank=3)),
            ),
            "rank",
        ),
        "bits": (request(name, parameters=bits), "n_bits"),
        "metric": (request(name, parameters=metric), "metric"),
    }


@pytest.mark.parametrize("case", _wrong())
def test_a_builder_names_the_field_of_a_wrong_request(tmp_path: Path, case: str) -> None:
    """And leaves nothing behind."""
    once, field = _wrong()[case]
    ours, builder_end = job_frames.pair()
    control_end, nobody = socket.socketpair()
    with ours, builder_end, control_end, nobody:
        job_frames.send(ours, Frame.ONCE, once.SerializeToString())
        job_frames.send(ours, Frame.END)
        me = control.Process(control.Channel(nobody), Config(), tmp_path, 1)
        with pytest.raises(InvalidArgumentError) as caught:
            builder.build(builder_end, me)
    assert caught.value.field == field
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("case", ["no vectors", "ids twice"])
def test_a_wrong_request_names_its_field(stub: DiverseIndexStub, clean: str, case: str) -> None:
    """Over the wire the status is INVALID_ARGUMENT, and nothing is left behind."""
    once, field = _wrong()[case]
    details = refusal(stub, once)
    assert details.code == INVALID
    assert details.fields == (field,)
    assert clean


def test_bytes_that_are_no_message(channel: grpc.Channel) -> None:
    """The reason is MALFORMED_MESSAGE, as in other methods."""
    with pytest.raises(grpc.RpcError) as caught:
        unary(channel, "BuildOnce")(b"\xff\xff", timeout=30)
    assert details_of(caught.value).reason == "MALFORMED_MESSAGE"


def test_a_message_of_the_greatest_size_is_built(stub: DiverseIndexStub, client: Client) -> None:
    """The largest message that gRPC accepts becomes an index."""
    once = large("once-large")
    assert LIMITS["message_bytes_max"] - 2048 < once.ByteSize() <= LIMITS["message_bytes_max"]
    assert stub.BuildOnce(once, timeout=60).index.rows == once.vectors.dense.rows
    client.delete_index("once-large")


def test_a_message_that_is_too_large_says_what_to_use(stub: DiverseIndexStub, clean: str) -> None:
    """The error has the limit, and refers to Build."""
    once = large(clean)
    once.vectors.dense.data += bytes(4096)
    details = refusal(stub, once)
    assert details.code == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert details.reason == "MESSAGE_TOO_LARGE"
    assert str(LIMITS["message_bytes_max"]) in details.message
    assert details.message.endswith("use Build")


def test_a_name_in_use(stub: DiverseIndexStub, client: Client) -> None:
    """Without `replace` the call is refused, with it the index gets a new generation."""
    stub.BuildOnce(request("once-used"), timeout=30)
    assert refusal(stub, request("once-used")).code == grpc.StatusCode.ALREADY_EXISTS
    again = stub.BuildOnce(request("once-used", replace=True), timeout=30)
    assert again.index.generation == 2
    assert client.query("once-used", ONES[0], k=3).generation == 2


def test_one_build_of_a_name_at_a_time(stub: DiverseIndexStub) -> None:
    """A second build of the name is ABORTED, with a time to retry after."""
    held = Held(stub, "once-twice")
    details = refusal(stub, request("once-twice"))
    held.call.cancel()
    assert details.code == grpc.StatusCode.ABORTED
    assert details.retry_after


def test_once_counts_as_a_build(server: RunningServer, stub: DiverseIndexStub) -> None:
    """At the limit of builds it is RESOURCE_EXHAUSTED."""
    held = [Held(stub, name) for name in ("once-full-a", "once-full-b")]
    details = refusal(stub, request("once-full-c"))
    for build in held:
        build.call.cancel()
    assert (details.code, details.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "BUILDS_FULL")
    eventually(lambda: not server.pids("builder"))


def test_a_deadline_that_passes(server: RunningServer, stub: DiverseIndexStub, clean: str) -> None:
    """The status is DEADLINE_EXCEEDED, the builder ends, and nothing is left."""
    with pytest.raises(grpc.RpcError) as caught:
        stub.BuildOnce(large(clean), timeout=0.2)
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    eventually(lambda: not server.pids("builder"))


def test_a_cancelled_call_leaves_nothing(
    server: RunningServer, stub: DiverseIndexStub, client: Client, clean: str
) -> None:
    """The builder ends in the middle of its work."""
    call = stub.BuildOnce.future(large(clean))
    eventually(lambda: leftovers(server, clean))
    call.cancel()
    eventually(lambda: not leftovers(server, clean) and not server.pids("builder"))
    with pytest.raises(IndexNotFoundError):
        client.get_index(clean)


def test_a_builder_that_dies_is_reported(
    server: RunningServer, stub: DiverseIndexStub, client: Client
) -> None:
    """The status is UNAVAILABLE, and the old generation still serves."""
    stub.BuildOnce(request("once-kept"), timeout=30)
    once = large("once-kept")
    once.replace = True
    call = stub.BuildOnce.future(once)
    eventually(lambda: len(leftovers(server, "once-kept")) > 1)
    server.kill("builder")
    with pytest.raises(grpc.RpcError) as caught:
        call.result()
    assert details_of(caught.value).code == grpc.StatusCode.UNAVAILABLE
    assert client.query("once-kept", ONES[0], k=3).generation == 1


def test_numbers_in_plain_fields_are_enough(stub: DiverseIndexStub, client: Client) -> None:
    """`values` instead of `data`, as tools without bytes write it, makes the same points."""
    points = random_points(20)
    dense = vectors_pb2.DenseMatrix(rows=20, cols=DIMS, values=points.ravel().tolist())
    vectors = vectors_pb2.Vectors(dense=dense)
    stub.BuildOnce(index_pb2.BuildOnceRequest(index="once-plain", vectors=vectors), timeout=30)
    assert client.query("once-plain", points[7], k=1).ids[0, 0] == 7
