"""How an evaluator serves calls; here it runs in a thread of the test process."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from google.rpc import code_pb2, status_pb2

from divgrpc import Index
from divgrpc.engine import Engine
from divgrpc.evaluation import Grid, evaluate
from divgrpc_protos.arrays import encode_dense
from divgrpc_protos.v1 import evaluate_pb2, query_pb2
from divgrpc_server.config import Config
from divgrpc_server.evaluator import process as evaluator
from divgrpc_server.ipc import control, job_frames
from divgrpc_server.ipc.control import Message
from divgrpc_server.ipc.job_frames import Frame
from divgrpc_server.logging import logs
from support.data.served_index import random_points

QUERIES = random_points(20, seed=4)
CATEGORIES = np.arange(20) % 2


class Evaluator:
    """An evaluator in a thread, with the supervisor's end of its channel."""

    def __init__(self, root: Path) -> None:
        supervisor_end, evaluator_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel = control.Channel(supervisor_end)
        self._me = control.Process(control.Channel(evaluator_end), Config(workers=2), root, 1)
        self._log = logs.configure(Config(log_level="error"), "test")
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        evaluator.serve(self._me, self._log)
        self._me.channel.close()

    @contextmanager
    def call(self, **fields: object) -> Iterator[socket.socket]:
        """Hand over a call of Evaluate, and yield the front's end of its socket."""
        request = {
            "index": "small",
            "queries": encode_dense(QUERIES),
            "categories": CATEGORIES,
            "selectors": [query_pb2.SELECTOR_NEAREST],
            "ks": [5],
            "folds": 0,
        }
        message = evaluate_pb2.EvaluateRequest(**request | fields)  # type: ignore[arg-type]  # of several types
        front_end, evaluator_end = job_frames.pair()
        with front_end:
            with evaluator_end:
                self.channel.send(Message("call", 0, "tag"), evaluator_end.fileno())
            job_frames.send(front_end, Frame.EVALUATE, message.SerializeToString())
            # The evaluator may answer and close its socket before it has read the last frame.
            with suppress(BrokenPipeError):
                job_frames.send(front_end, Frame.END)
            yield front_end

    def hang_up(self) -> None:
        """Close the channel, as a supervisor does when it ends, and wait for the thread."""
        self.channel.close()
        self._thread.join(20)
        assert not self._thread.is_alive()


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Evaluator]:
    """Yield an evaluator that serves an index with categories."""
    Index.build(random_points(200), categories=np.arange(200) % 2, path=tmp_path / "small")
    evaluator = Evaluator(tmp_path)
    yield evaluator
    evaluator.hang_up()


def frames(link: socket.socket) -> list[tuple[Frame, bytes]]:
    """Return all frames that an evaluator sends for a call."""
    replies = [job_frames.receive(link)]
    while replies[-1][0] not in (Frame.RESULT, Frame.STATUS):
        replies.append(job_frames.receive(link))
    return replies


def test_calls_are_served_one_after_the_other(one: Evaluator, tmp_path: Path) -> None:
    """Each call gets progress and rows, and the supervisor then learns that the process is free."""
    index, grid = Index.open(tmp_path / "small"), Grid(selectors=("nearest",), ks=(5,))
    (expected,) = evaluate(index, QUERIES, CATEGORIES, grid=grid, folds=0)
    for _ in range(2):
        with one.call() as link:
            replies = frames(link)
        parts = [part for part, _ in replies]
        rows_from = parts.index(Frame.COMMIT)
        events = [evaluate_pb2.EvaluateResponse.FromString(payload) for _, payload in replies]
        progress = [event.progress.queries_done for event in events[:rows_from]]
        assert (progress[0], progress[-1]) == (0, 20)
        (row,) = [event.row for event in events[rows_from:] if event.HasField("row")]
        assert (row.generation, row.queries) == (1, 20)
        assert row.metrics[0].value == next(iter(expected.metrics.values())).value
        assert replies[-1] == (Frame.RESULT, b"")
        message, _ = one.channel.receive() or (None, None)
        assert message == Message("ready")


def test_a_refused_call_does_not_end_the_evaluator(one: Evaluator) -> None:
    for fields, code in (
        ({"ks": [0]}, code_pb2.INVALID_ARGUMENT),
        ({"index": "nobody"}, code_pb2.NOT_FOUND),
    ):
        with one.call(**fields) as link:
            ((part, payload),) = frames(link)
        assert part == Frame.STATUS
        assert status_pb2.Status.FromString(payload).code == code
    with one.call() as link:
        assert frames(link)[-1][0] == Frame.RESULT


def test_an_error_in_one_thread_stops_the_others(
    one: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an error no thread of the evaluator continues with queries of the failed call."""
    calls: list[int] = []

    def fail(_: Engine, queries: object, *__: object) -> None:
        del queries
        calls.append(1)
        raise MemoryError

    monkeypatch.setattr(Engine, "answer_one_by_one", fail)
    many = random_points(5_000)
    with one.call(queries=encode_dense(many), categories=np.zeros(5_000, int)) as link:
        part, payload = frames(link)[-1]
    assert part == Frame.STATUS
    assert status_pb2.Status.FromString(payload).code == code_pb2.RESOURCE_EXHAUSTED
    assert len(calls) <= 2


def test_progress_is_sent_at_a_fixed_interval() -> None:
    """Progress is sent even if it did not change; an error in a thread is raised."""
    from concurrent.futures import Future

    pending: Future[None] = Future()
    tell = Mock(side_effect=[None, None, lambda: None])

    def report() -> None:
        tell()
        if tell.call_count == 2:
            pending.set_result(None)

    evaluator._await([pending], report, 0.01)
    assert tell.call_count == 3
    failure: Future[None] = Future()
    failure.set_exception(MemoryError())
    with pytest.raises(MemoryError):
        evaluator._await([failure, Future()], lambda: None, 0.01)
