"""A builder in this process: the order and the contents of an upload."""

import socket
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from scipy.sparse import csr_array
from structlog.testing import capture_logs

from divgrpc import Index
from divgrpc.types import FloatArray
from divgrpc_client.messages.vectors import as_matrix, encode
from divgrpc_protos.v1 import index_pb2, labels_pb2, points_pb2, vectors_pb2
from divgrpc_server.builder import process as builder
from divgrpc_server.config import Config
from divgrpc_server.ipc import control, job_calls, job_frames
from divgrpc_server.ipc.job_frames import Frame
from divgrpc_server.logging import logs
from support.data.served_index import DIMS
from support.requests.manual_uploads import (
    Message,
    build_here,
    chunk,
    commit,
    header,
    once,
    received_frames,
    send_upload,
    wrong_field,
)

ONES = np.ones((3, DIMS), np.float32)
INCOMPLETE_SETS = points_pb2.LabelSets(label_count=2, offsets=[0, 1], ids=[0])
METRIC = index_pb2.BuildParameters.FromString(b"\x08\x63")  # 99
RANK = labels_pb2.LabelPlan(parameters=labels_pb2.LabelParameters(rank=3))
SHORT = once("index", ONES)
SHORT.vectors.dense.data = SHORT.vectors.dense.data[:-1]


def empty(**fields: Any) -> index_pb2.BuildRequest:  # noqa: ANN401  # a message's own types
    """Return a chunk without rows; `fields` are set in its matrix."""
    matrix = vectors_pb2.DenseMatrix(cols=DIMS, **fields)
    return index_pb2.BuildRequest(
        chunk=index_pb2.BuildChunk(vectors=vectors_pb2.Vectors(dense=matrix))
    )


def sparse(rows: FloatArray) -> index_pb2.BuildRequest:
    vectors = encode(as_matrix("vectors", csr_array(rows)), 0, len(rows))
    return index_pb2.BuildRequest(chunk=index_pb2.BuildChunk(vectors=vectors))


def no_matrix() -> index_pb2.BuildRequest:
    return index_pb2.BuildRequest(chunk=index_pb2.BuildChunk())


def parameters(**fields: Any) -> index_pb2.BuildRequest:  # noqa: ANN401  # a message's own types
    return header("index", parameters=index_pb2.BuildParameters(**fields))


def test_an_upload_becomes_an_index(tmp_path: Path) -> None:
    """A header, chunks and a commit become a generation; one chunk is empty."""
    steps = [header("index"), chunk(ONES[:0]), chunk(ONES, ids=[4, 5, 6]), commit(3)]
    events = build_here(tmp_path, *steps)
    assert events[0] == Frame.EVENT
    assert events.index(Frame.COMMIT) < events.index(Frame.STAGED)
    assert Index.open(tmp_path / "index").query(ONES[0], k=3).ids.tolist() == [[4, 5, 6]]


@pytest.mark.parametrize(
    ("steps", "field"),
    [
        ([], "header"),
        ([chunk(ONES)], "header"),
        ([commit(0)], "header"),
        ([header("index"), header("index")], "header"),
        ([header("index"), chunk(ONES)], "commit"),
        ([header("index"), index_pb2.BuildRequest()], "step"),
        ([header("index"), chunk(ONES), commit(4)], "commit.rows"),
        ([header("index"), chunk(ONES), commit(3), chunk(ONES)], "step"),
        ([header("index"), chunk(ONES), commit(3), commit(3)], "step"),
        ([header("index", expected_rows=4), chunk(ONES), commit(3)], "header.expected_rows"),
        ([header("index"), commit(0)], "vectors"),
        ([header("index"), chunk(ONES), chunk(ONES[:, 1:]), commit(6)], "vectors"),
        ([header("index"), chunk(ONES), chunk(ONES[:0, 1:]), commit(3)], "vectors"),
        ([header("index"), chunk(ONES), empty(data=b"1234"), commit(3)], "vectors.dense.data"),
        ([header("index"), chunk(ONES), empty(dtype=9), commit(3)], "vectors.dense.dtype"),
        ([header("index"), chunk(ONES), no_matrix(), commit(3)], "vectors"),
        ([header("index"), chunk(ONES), chunk(ONES[:0], ids=[1]), commit(3)], "ids"),
        ([header("index"), chunk(ONES), sparse(ONES), commit(6)], "vectors"),
        ([header("index"), chunk(ONES), sparse(ONES[:0]), commit(3)], "vectors"),
        ([header("index"), sparse(ONES), chunk(ONES), commit(6)], "vectors"),
        ([header("index"), sparse(ONES), chunk(ONES[:0]), commit(3)], "vectors"),
        ([header("index"), sparse(ONES), sparse(ONES[:, 1:]), commit(6)], "vectors"),
        ([header("index"), sparse(ONES[:0]), sparse(ONES[:, 1:]), commit(3)], "vectors"),
        ([header("index"), chunk(ONES * np.nan), commit(3)], "vectors"),
        ([header("index"), chunk(ONES * np.inf), commit(3)], "vectors"),
        ([header("index"), chunk(ONES * 0), commit(3)], "vectors"),
        ([header("index"), chunk(ONES, ids=[1, 2, 1]), commit(3)], "ids"),
        ([header("index"), chunk(ONES, ids=[1, 2]), commit(3)], "ids"),
        ([header("index"), chunk(ONES, ids=[1, 2, -1]), commit(3)], "ids"),
        ([header("index"), chunk(ONES, categories=[1]), commit(3)], "categories"),
        ([header("index"), chunk(ONES, subtopics=[1, 2, -2]), commit(3)], "subtopics"),
        ([header("index"), chunk(ONES), chunk(ONES, ids=[1, 2, 3]), commit(6)], "ids"),
        ([header("")], "index"),
        ([header("../x")], "index"),
        ([header("x" * 300)], "index"),
        ([header("Upper")], "index"),
        ([parameters(target_recall=0.0), chunk(ONES), commit(3)], "target_recall"),
        ([parameters(n_bits=25), chunk(ONES), commit(3)], "n_bits"),
        ([parameters(n_tables=0), chunk(ONES), commit(3)], "n_tables"),
        ([parameters(metric=99), chunk(ONES), commit(3)], "metric"),
        ([parameters(n_components=1000), chunk(ONES), commit(3)], "n_components"),
        ([parameters(metric=3, centred=True), chunk(ONES), commit(3)], "centred"),
        ([parameters(hash_family=4, n_tables=4), chunk(ONES), commit(3)], "n_tables"),
        ([parameters(hash_family=4, n_bits=8), chunk(ONES), commit(3)], "n_bits"),
        ([index_pb2.BuildOnceRequest()], "index"),
        ([once("../x", ONES)], "index"),
        ([index_pb2.BuildOnceRequest(index="index")], "vectors"),
        ([once("index", ONES[:0])], "vectors"),
        ([once("index", ONES * np.nan)], "vectors"),
        ([SHORT], "vectors.dense.data"),
        ([once("index", ONES, ids=[1, 2, 1])], "ids"),
        ([once("index", ONES, ids=[1, 2])], "ids"),
        ([once("index", ONES, categories=[1])], "categories"),
        ([once("index", ONES, subtopics=[1, 2, -2])], "subtopics"),
        ([once("index", ONES, labels=INCOMPLETE_SETS)], "labels.offsets"),
        ([once("index", ONES, label_plan=RANK)], "rank"),
        ([once("index", ONES, parameters=index_pb2.BuildParameters(n_bits=25))], "n_bits"),
        ([once("index", ONES, parameters=METRIC)], "metric"),
    ],
)
def test_a_wrong_upload_names_its_field(tmp_path: Path, steps: list[Message], field: str) -> None:
    """No file of the build is left."""
    assert wrong_field(tmp_path, *steps) == field
    assert list(tmp_path.iterdir()) == []


def test_sparse_rows_become_an_index(tmp_path: Path) -> None:
    steps = [header("index"), sparse(ONES[:0]), sparse(ONES), sparse(ONES), commit(6)]
    build_here(tmp_path, *steps)
    info = Index.open(tmp_path / "index").info
    assert (info.points, info.rows, info.nonzeros) == ("sparse", 6, 6 * DIMS)


@pytest.fixture
def unwatched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the check that ends the process when the caller hangs up."""
    monkeypatch.setattr(job_calls, "ending_on_hang_up", lambda *_: nullcontext())


@pytest.mark.usefixtures("unwatched")
def test_a_front_that_hangs_up_is_no_fault(tmp_path: Path) -> None:
    front_end, builder_end = job_frames.pair()
    control_end, supervisor_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with builder_end, control_end, supervisor_end, capture_logs() as lines:
        job_frames.send(front_end, Frame.MESSAGE, header("index").SerializeToString())
        front_end.close()
        control.Channel(supervisor_end).send(control.Message("call"), builder_end.fileno())
        process = control.Process(control.Channel(control_end), Config(), tmp_path, 1)
        builder.serve(process, logs.configure(Config(), "test"))
    assert lines == []


@pytest.mark.usefixtures("unwatched")
def test_a_build_is_logged_before_its_outcome_is_sent(tmp_path: Path) -> None:
    """The build is logged first, because the caller may hang up once it has the outcome."""
    front_end, builder_end = job_frames.pair()
    control_end, supervisor_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    kinds: list[Frame] = []
    log = Mock()
    log.info.side_effect = lambda *_, **__: kinds.extend(received_frames(front_end))
    with front_end, builder_end, control_end, supervisor_end:
        send_upload(front_end, header("index"), chunk(ONES), commit(3))
        control.Channel(supervisor_end).send(control.Message("call"), builder_end.fileno())
        builder.serve(control.Process(control.Channel(control_end), Config(), tmp_path, 1), log)
        assert kinds[-1] == Frame.STAGED
        assert received_frames(front_end) == [Frame.RESULT]


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize(("error", "code"), [(MemoryError(), 1), (ValueError(), 0)])
def test_without_memory_the_supervisor_removes_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    """It does so if the exit code is not 0."""
    front_end, builder_end = job_frames.pair()
    control_end, supervisor_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    monkeypatch.setattr(builder, "build", Mock(side_effect=error))
    with front_end, builder_end, control_end, supervisor_end:
        send_upload(front_end, header("index"))
        control.Channel(supervisor_end).send(control.Message("call"), builder_end.fileno())
        process = control.Process(control.Channel(control_end), Config(), tmp_path, 1)
        assert builder.serve(process, Mock()) == code
        assert received_frames(front_end) == [Frame.STATUS]


def test_a_front_that_hangs_up_ends_the_build(tmp_path: Path) -> None:
    front_end, builder_end = job_frames.pair()
    with builder_end:
        with front_end:
            job_frames.send(front_end, Frame.MESSAGE, header("index").SerializeToString())
            job_frames.send(front_end, Frame.MESSAGE, chunk(ONES).SerializeToString())
        nobody = control.Channel(builder_end)
        with pytest.raises((EOFError, BrokenPipeError)):
            builder.build(builder_end, control.Process(nobody, Config(), tmp_path, 1), Mock())
    assert list(tmp_path.iterdir()) == []
