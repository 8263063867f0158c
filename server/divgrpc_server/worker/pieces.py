"""An evaluation's work inside a worker: its plan, and its pieces, some milliseconds at a time.

Both hold up a small query no longer than a batch does: a plan is made in a thread, because it
groups all points of an index by category at first; a piece answers few queries a round.
"""

import threading
from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

from divgrpc import evaluation
from divgrpc.engine import Engine
from divgrpc.errors import IndexChangedError
from divgrpc.evaluation.label_measuring import LabelPiece
from divgrpc.evaluation.label_running import plan_labels
from divgrpc.parameters import QueryParameters
from divgrpc.parameters.predict import PredictParameters
from divgrpc.vectors import Rows
from divgrpc_protos.v1 import evaluate_labels_pb2, evaluate_pb2
from divgrpc_server.codec import evaluate, evaluate_labels, requests
from divgrpc_server.codec.evaluate import Head
from divgrpc_server.codec.statuses import OutOfMemoryError, explain
from divgrpc_server.ipc.packets import Op, Outcome, Reply, Request
from divgrpc_server.logging.logs import Logger
from divgrpc_server.worker.batches import Pace

# How long a round waits for a plan.
_ROUND_SECONDS = 0.002


class _Given(NamedTuple):
    """A request as it was read: what checks it, packed, and what answers its one setting."""

    name: str
    rows: Rows
    settings: list[QueryParameters] | list[PredictParameters]
    plan: Callable[[Engine], bytes]
    piece: Callable[[Engine], evaluation.Piece | LabelPiece]


class _Work:
    """What a plan and a piece have in common."""

    # Small packets do not wait for these as they do for batches.
    holds_up = False

    def __init__(self, request: Request, head: Head, given: _Given) -> None:
        self.id = request.id
        self.deadline = request.deadline
        self.head = head
        self.name = given.name
        self.withdrawn = False
        self._tag = request.tag
        self._given = given

    @property
    def run(self) -> int:
        """The evaluation that it is part of."""
        return self.head.run

    @property
    def generation(self) -> int:
        """The generation that it must be of, 0 for the one that serves."""
        return self.head.generation

    @cached_property
    def dropped(self) -> Reply:
        """The reply where nobody waits for it any more: a front counts what it has before us."""
        return Reply(self.id, Outcome.ANSWER, b"")

    def pack_error(self, error: Exception, log: Logger) -> Reply:
        """Return the reply that carries an error."""
        return _refusal(self.id, error, self._tag, log)


class PlanJob(_Work):
    """A whole request, to be checked before any of it is done."""

    _payload: bytes = b""
    _error: Exception | None = None

    def start(self, index: Engine) -> None:
        """Begin to check."""
        self._thread = threading.Thread(target=self._check, args=(index,), daemon=True)
        self._thread.start()

    def _check(self, index: Engine) -> None:
        try:
            self._payload = self._given.plan(index)
        except Exception as error:  # noqa: BLE001  # the edge of a thread: the worker raises it
            self._error = error

    def go_on(self) -> Reply | None:
        """Return the plan once it is made; raises what is wrong with the request."""
        self._thread.join(_ROUND_SECONDS)
        if self._thread.is_alive():
            return None
        if self._error is not None:
            raise self._error
        return Reply(self.id, Outcome.ANSWER, self._payload)


class PieceJob(_Work):
    """One setting over some queries or documents."""

    def start(self, index: Engine) -> None:
        """Begin; raises `IndexChangedError` where this is not the generation of the evaluation."""
        if index.generation != self.generation:
            raise IndexChangedError("the index was replaced while it was evaluated")
        (setting,) = self._given.settings
        self._piece = self._given.piece(index)
        self._pace = Pace(self._given.rows, setting.selector)
        self._measuring = self._piece.measuring()

    def go_on(self) -> Reply | None:
        """Answer the next few queries, then measure the next few; returns what was measured."""
        piece = self._piece
        if piece.done < piece.rows:
            with self._pace.step() as stop:
                piece.answer(stop)
            return None
        try:
            next(self._measuring)
        except StopIteration as end:
            return Reply(self.id, Outcome.ANSWER, evaluate.pack_measured(end.value))
        return None


def parse(request: Request, log: Logger) -> PlanJob | PieceJob | Reply:
    """Return the job that a request asks for, or the reply that says what is wrong with it."""
    if not request.payload:
        lost = OutOfMemoryError("a worker has no descriptor left for the request")
        return _refusal(request.id, lost, request.tag, log)
    try:
        head, message = evaluate.unpack(request.payload)
        given = (
            _queries(message)
            if isinstance(message, evaluate_pb2.EvaluateRequest)
            else _labels(message)
        )
    except Exception as error:  # noqa: BLE001  # the edge: whatever it is, one caller hears of it
        return _refusal(request.id, error, request.tag, log)
    kind = PlanJob if request.op == Op.PLAN else PieceJob
    return kind(request, head, given)


def _queries(message: evaluate_pb2.EvaluateRequest) -> _Given:
    queries = requests.parse_vectors("queries", message.queries)
    task = evaluate.parse_task(message, len(queries))
    asked = evaluate.parse_asked(message, len(queries))
    settings = task.grid.settings()
    return _Given(
        message.index,
        queries,
        settings,
        lambda index: evaluate.pack_plan(evaluation.plan(index, queries, asked, task)),
        lambda index: evaluation.Piece(index, queries, asked, settings[0]),
    )


def _labels(message: evaluate_labels_pb2.EvaluateLabelsRequest) -> _Given:
    documents = requests.parse_vectors("documents", message.documents)
    task = evaluate_labels.parse_task(message, len(documents))
    settings = task.grid.settings()

    def plan(index: Engine) -> bytes:
        truth = evaluate_labels.parse_truth(message, task)
        return evaluate_labels.pack_outlook(plan_labels(index, documents, truth, task))

    return _Given(
        message.index,
        documents,
        settings,
        plan,
        lambda index: LabelPiece(index, documents, settings[0]),
    )


def _refusal(number: int, error: Exception, tag: str, log: Logger) -> Reply:
    return Reply(number, Outcome.STATUS, explain(error, tag, log).SerializeToString())
