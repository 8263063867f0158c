"""The calls in a request of a front: one, or several if it is a batch of a WriteStream."""

from collections.abc import Sequence
from typing import Any, Final

from google.protobuf.message import DecodeError
from google.rpc import status_pb2

from divgrpc.errors import MergesBehindError, invalid
from divgrpc.parameters import check_index_name
from divgrpc.storage.manifest import Manifest
from divgrpc.types import WriteResult
from divgrpc.writes.target import Request
from divgrpc_protos.v1 import writes_pb2
from divgrpc_server.codec import writes
from divgrpc_server.codec.statuses import OutOfMemoryError, explain
from divgrpc_server.ipc import packets
from divgrpc_server.ipc.errors import FrameError
from divgrpc_server.ipc.packets import Op, Outcome, Reply
from divgrpc_server.ipc.write_batches import Kind, WriteOutcome, pack_outcomes, unpack_messages
from divgrpc_server.logging.logs import Logger

_MESSAGES: Final[dict[int, Any]] = {
    Op.UPSERT: writes_pb2.UpsertRequest,
    Op.DELETE: writes_pb2.DeleteRequest,
}
_RESPONSES: Final[dict[int, Any]] = {
    Op.UPSERT: writes_pb2.UpsertResponse,
    Op.DELETE: writes_pb2.DeleteResponse,
}
_STREAM_OPS: Final = {"upsert": Op.UPSERT, "delete": Op.DELETE}


class Call:
    """A unary call, and its outcome when it has one."""

    def __init__(self, tag: str, log: Logger) -> None:
        """Create a call with a tag, for errors and for the log."""
        self.op: int = Op.LOST
        self.message: Any = None
        self.outcome: WriteOutcome | None = None
        self._tag, self._log = tag, log

    @property
    def index(self) -> str:
        """The name of the index."""
        return str(self.message.index)

    def parse(self, op: int, payload: bytes) -> None:
        """Parse the request; an error becomes the outcome."""
        if op == Op.LOST:
            self.fail(OutOfMemoryError("the writer has no descriptor left for the request"))
            return
        try:
            self._take(op, _MESSAGES[op].FromString(payload))
        except Exception as error:  # noqa: BLE001  # becomes the status of the call
            self.fail(error)

    def _take(self, op: int, message: Any) -> None:  # noqa: ANN401  # one of `_MESSAGES`
        check_index_name(message.index)
        self.op, self.message = op, message

    def write(self, manifest: Manifest) -> Request:
        """Return the write to an index; raises `InvalidArgumentError`."""
        if self.op == Op.UPSERT:
            return writes.parse_upsert(self.message, manifest)
        return writes.parse_delete(self.message, manifest)

    def succeed(self, result: WriteResult) -> None:
        """Answer a write."""
        self.answer(
            _RESPONSES[self.op](
                generation=result.generation, sequence=result.sequence, rows=result.rows
            )
        )

    def answer(self, response: Any) -> None:  # noqa: ANN401  # the response of the method
        """Answer the call."""
        self.outcome = WriteOutcome(Kind.ANSWER, response.SerializeToString())

    def fail(self, error: Exception) -> None:
        """Answer the call with an error."""
        self.outcome = WriteOutcome(Kind.STATUS, self._status(error).SerializeToString())

    def _status(self, error: Exception) -> status_pb2.Status:
        return explain(error, self._tag, self._log)


class StreamCall(Call):
    """A message of a WriteStream; an error is its answer, unless the message cannot be parsed."""

    def __init__(self, tag: str, log: Logger) -> None:
        super().__init__(tag, log)
        self._response = writes_pb2.WriteStreamResponse()

    def parse(self, op: int, payload: bytes) -> None:
        """Parse the message; an error becomes the outcome."""
        del op  # the message says which write it is
        try:
            request = writes_pb2.WriteStreamRequest.FromString(payload)
        except DecodeError as error:
            self.give_up(error)
            return
        self._response.correlation_id = request.correlation_id
        name = request.WhichOneof("write")
        if name is None:
            self.fail(invalid("write", "must be an upsert or a delete"))
            return
        try:
            self._take(_STREAM_OPS[name], getattr(request, name))
        except Exception as error:  # noqa: BLE001  # becomes the answer
            self.fail(error)

    def give_up(self, error: Exception) -> None:
        """End the stream with an error, because the message cannot be parsed."""
        super().fail(error)

    def answer(self, response: Any) -> None:  # noqa: ANN401  # the response of the write
        """Answer the message."""
        name = "upsert" if self.op == Op.UPSERT else "delete"
        getattr(self._response, name).CopyFrom(response)
        super().answer(self._response)

    def fail(self, error: Exception) -> None:
        """Answer the message with an error, or let the front send it again."""
        if isinstance(error, MergesBehindError):
            self.outcome = WriteOutcome(Kind.PUT_OFF)
            return
        self._response.error.CopyFrom(self._status(error))
        super().answer(self._response)


def calls_of(request: packets.Request, log: Logger) -> Sequence[Call]:
    """Return the calls of a request, up to the first message of a batch that cannot be parsed."""
    if request.op != Op.WRITES:
        call = Call(request.tag, log)
        call.parse(request.op, request.payload)
        return [call]
    calls: list[StreamCall] = []
    try:
        for message in unpack_messages(request.payload):
            calls.append(StreamCall(request.tag, log))
            calls[-1].parse(request.op, message)
            outcome = calls[-1].outcome
            if outcome is not None and outcome.kind == Kind.STATUS:
                break
    except FrameError as error:
        calls.append(StreamCall(request.tag, log))
        calls[-1].give_up(error)
    return calls


def reply_of(request: packets.Request, calls: Sequence[Call]) -> Reply:
    """Return the reply to a request whose calls all have outcomes."""
    outcomes = [call.outcome for call in calls if call.outcome is not None]
    assert len(outcomes) == len(calls)  # noqa: S101  # callers answer each call
    if request.op == Op.WRITES:
        return Reply(request.id, Outcome.ANSWER, pack_outcomes(outcomes))
    ((kind, payload),) = outcomes
    return Reply(request.id, Outcome.ANSWER if kind == Kind.ANSWER else Outcome.STATUS, payload)


def refusal(request: packets.Request, error: Exception, log: Logger) -> Reply:
    """Return the reply to a request that is not made."""
    status = explain(error, request.tag, log)
    return Reply(request.id, Outcome.STATUS, status.SerializeToString())
