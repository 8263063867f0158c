"""The builder without its process: the order and the contents of an upload."""

import select
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from scipy.sparse import csr_array
from structlog.testing import capture_logs

from divgrpc import Index
from divgrpc.errors import InvalidArgumentError
from divgrpc.types import FloatArray
from divgrpc_client.messages.vectors import as_matrix, encode
from divgrpc_protos.v1 import index_pb2, vectors_pb2
from divgrpc_server.builder import __main__ as builder
from divgrpc_server.config import Config
from divgrpc_server.ipc import build_frames, control
from divgrpc_server.ipc.build_frames import Part
from divgrpc_server.logging import logs
from support.manual_uploads import chunk, commit, header
from support.served_index import DIMS

ONES = np.ones((3, DIMS), np.float32)


def run(root: Path, steps: Sequence[index_pb2.BuildRequest]) -> list[Part]:
    """Build from a complete upload, and return the kinds of its events."""
    config = Config(data_dir=str(root))
    ours, builder_end = build_frames.pair()
    control_end, nobody = socket.socketpair()
    with ours, builder_end, control_end, nobody:
        for step in steps:
            build_frames.send(ours, Part.MESSAGE, step.SerializeToString())
        build_frames.send(ours, Part.END)
        build_frames.send(ours, Part.PUBLISH)
        info = builder.build(builder_end, control.Self(control.Channel(nobody), config, root, 1))
        builder.Events(builder_end).done(info)
        events = [build_frames.receive(ours)[0]]
        while events[-1] != Part.DONE:
            events.append(build_frames.receive(ours)[0])
    return events


def empty(**fields: Any) -> index_pb2.BuildRequest:  # noqa: ANN401  # a message's own types
    """Return a chunk without rows, with fields of its matrix."""
    matrix = vectors_pb2.DenseMatrix(cols=DIMS, **fields)
    return index_pb2.BuildRequest(
        chunk=index_pb2.BuildChunk(vectors=vectors_pb2.Vectors(dense=matrix))
    )


def sparse(rows: FloatArray) -> index_pb2.BuildRequest:
    """Return a chunk of sparse rows."""
    vectors = encode(as_matrix("vectors", csr_array(rows)), 0, len(rows))
    return index_pb2.BuildRequest(chunk=index_pb2.BuildChunk(vectors=vectors))


def no_matrix() -> index_pb2.BuildRequest:
    """Return a chunk without a matrix."""
    return index_pb2.BuildRequest(chunk=index_pb2.BuildChunk())


def parameters(**fields: Any) -> index_pb2.BuildRequest:  # noqa: ANN401  # a message's own types
    """Return a header with parameters."""
    return header("index", parameters=index_pb2.BuildParameters(**fields))


def test_an_upload_becomes_an_index(tmp_path: Path) -> None:
    """A header, chunks and a commit make a generation; a chunk may be empty."""
    steps = [header("index"), chunk(ONES[:0]), chunk(ONES, ids=[4, 5, 6]), commit(3)]
    events = run(tmp_path, steps)
    assert events[0] == Part.EVENT
    assert events.index(Part.COMMITTED) < events.index(Part.WHOLE)
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
    ],
)
def test_a_wrong_upload_names_its_field(
    tmp_path: Path, steps: list[index_pb2.BuildRequest], field: str
) -> None:
    """And leaves nothing behind."""
    with pytest.raises(InvalidArgumentError) as caught:
        run(tmp_path, steps)
    assert caught.value.field == field
    assert list(tmp_path.iterdir()) == []


def test_sparse_rows_become_an_index(tmp_path: Path) -> None:
    """Sparse chunks make an index of sparse points; a chunk may be empty."""
    steps = [header("index"), sparse(ONES[:0]), sparse(ONES), sparse(ONES), commit(6)]
    run(tmp_path, steps)
    info = Index.open(tmp_path / "index").info
    assert (info.points, info.rows, info.nonzeros) == ("sparse", 6, 6 * DIMS)


def test_a_front_that_hangs_up_is_no_fault(tmp_path: Path) -> None:
    """The builder then logs nothing."""
    ours, builder_end = build_frames.pair()
    control_end, nobody = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with builder_end, control_end, nobody:
        build_frames.send(ours, Part.MESSAGE, header("index").SerializeToString())
        ours.close()
        with capture_logs() as lines, pytest.MonkeyPatch.context() as patched:
            patched.setattr(builder, "_watch", lambda *_: None)  # it would end this process
            control.Channel(nobody).send(control.Message("call"), builder_end.fileno())
            me = control.Self(control.Channel(control_end), Config(), tmp_path, 1)
            builder.serve(me, logs.configure(Config(), "test"))
    assert lines == []


def test_a_build_is_logged_before_its_outcome_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Because the caller may hang up when it has the outcome."""
    monkeypatch.setattr(builder, "_watch", lambda *_: None)  # it would end this process
    ours, builder_end = build_frames.pair()
    control_end, nobody = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parts: list[Part] = []
    log = Mock()

    def hear(*_: object, **__: object) -> None:
        while select.select([ours], [], [], 0)[0]:
            parts.append(build_frames.receive(ours)[0])

    log.info.side_effect = hear
    with ours, builder_end, control_end, nobody:
        for step in (header("index"), chunk(ONES), commit(3)):
            build_frames.send(ours, Part.MESSAGE, step.SerializeToString())
        build_frames.send(ours, Part.END)
        build_frames.send(ours, Part.PUBLISH)
        control.Channel(nobody).send(control.Message("call"), builder_end.fileno())
        builder.serve(control.Self(control.Channel(control_end), Config(), tmp_path, 1), log)
        assert parts[-1] == Part.WHOLE
        assert build_frames.receive(ours)[0] == Part.DONE


@pytest.mark.parametrize(("ended", "code", "pauses"), [(False, 1, 0), (True, 0, 1)])
def test_the_outcome_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, ended: bool, code: int, pauses: int
) -> None:
    """A hang-up ends a build at once, but not in the middle of its last log line."""
    leave, sleep = Mock(side_effect=SystemExit), Mock()
    monkeypatch.setattr("os._exit", leave)
    monkeypatch.setattr("time.sleep", sleep)
    ending = threading.Lock()
    if ended:
        ending.acquire()
    ours, builder_end = build_frames.pair()
    ours.close()
    control_end, nobody = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with builder_end, control_end, nobody, pytest.raises(SystemExit):
        builder._watch(builder_end, control.Channel(control_end), ending)
    leave.assert_called_once_with(code)
    assert sleep.call_count == pauses


def test_an_upload_that_breaks_off(tmp_path: Path) -> None:
    """A front that hangs up ends the build, and nothing is left behind."""
    ours, builder_end = build_frames.pair()
    with builder_end:
        with ours:
            build_frames.send(ours, Part.MESSAGE, header("index").SerializeToString())
            build_frames.send(ours, Part.MESSAGE, chunk(ONES).SerializeToString())
        nobody = control.Channel(builder_end)
        with pytest.raises((EOFError, BrokenPipeError)):
            builder.build(builder_end, control.Self(nobody, Config(), tmp_path, 1))
    assert list(tmp_path.iterdir()) == []
