"""The front's side of WriteStream, which makes many writes in one call, in their order.

While the writer has a batch of messages, further messages gather. They are the next batch, which
the writer commits with one sync of each log. So a slow disk makes batches larger and not more
frequent, and there is one batch at a time, so no write overtakes another.

If merges cannot keep up, the writer puts messages off, and they are the beginning of a later batch.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from google.protobuf.message import DecodeError

from divgrpc.errors import UnavailableError
from divgrpc_protos.v1 import writes_pb2
from divgrpc_server.codec.statuses import status_of
from divgrpc_server.front.jobs import Read, Write
from divgrpc_server.front.message_stream import MessageStream
from divgrpc_server.front.pool import PoolCall
from divgrpc_server.front.refusals import RefusedError
from divgrpc_server.front.writer import Writer
from divgrpc_server.ipc.errors import FrameError
from divgrpc_server.ipc.packets import Op, Outcome, Reply
from divgrpc_server.ipc.write_batches import Kind, WriteOutcome, pack_messages, unpack_outcomes

# A batch ends at the first message with which it has so many bytes. Larger batches save little, and
# other callers wait for them.
_BATCH_BYTES: Final = 1 << 20
# Time until the messages that were put off are sent again.
_PAUSE_SECONDS: Final = 0.1


class _Message:
    """A message in flight, and its answer or, if it cannot be parsed, the error of the stream."""

    __slots__ = ("answer", "body")

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.answer: bytes | RefusedError | None = None


class _Batch:
    """Messages that the writer has."""

    def __init__(self, messages: list[_Message]) -> None:
        self.messages = messages
        self.call: PoolCall | None = None


class WriteStream(MessageStream[_Message]):
    """One WriteStream call; several messages are a call of the pool."""

    def __init__(
        self,
        read: Read,
        write: Write,
        writer: Writer,
        *,
        window: int,
        deadline: float,
        tag: str,
        on_message: Callable[[bytes], None],
    ) -> None:
        """Create the stream; `on_message` is called with each message that is read."""
        super().__init__(read, write, writer.wait_for_room, window=window, on_message=on_message)
        self._writer = writer
        self._deadline = deadline
        self._tag = tag
        # All messages in flight, in order. `_waiting` has the messages that are not at the writer.
        self._messages: deque[_Message] = deque()
        self._waiting: deque[_Message] = deque()
        self._batch: _Batch | None = None
        self._pause: asyncio.TimerHandle | None = None
        # Whether a message cannot be parsed. No message behind it is sent.
        self._is_broken = False

    def _withdraw(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
        batch, self._batch = self._batch, None
        if batch is not None:
            self._drop(batch.messages)
            if batch.call is not None:
                self._writer.withdraw(batch.call)
        self._drop(self._waiting)
        self._waiting.clear()

    def _drop(self, messages: Iterable[_Message]) -> None:
        for message in messages:
            self._writer.release(len(message.body), is_answered=False)

    def _parse(self, message: bytes) -> _Message:
        return _Message(message)

    def _submit(self, item: _Message) -> None:
        if not self._is_broken:
            self._writer.take(len(item.body))
            self._waiting.append(item)
            self._messages.append(item)
            self._send()

    def _send(self) -> None:
        """Send the messages that wait, unless the writer has a batch."""
        if self._batch is not None or self._pause is not None:
            return
        messages: list[_Message] = []
        size = 0
        while self._waiting and size < _BATCH_BYTES:
            messages.append(self._waiting.popleft())
            size += len(messages[-1].body)
        if messages:
            batch = self._batch = _Batch(messages)
            payload = pack_messages(message.body for message in messages)
            batch.call = self._writer.submit(
                Op.WRITES, payload, self._deadline, self._tag, partial(self._deliver, batch)
            )

    def _resume(self) -> None:
        self._pause = None
        self._send()

    def _deliver(self, batch: _Batch, reply: Reply) -> None:
        self._batch = None
        payload, count = reply.payload, 0
        if reply.outcome == Outcome.ANSWER:
            outcomes = _outcomes_in(reply)
            self._take(batch.messages, outcomes)
            error = UnavailableError("nothing is known of this write; name it, and send it again")
            payload, count = status_of(error, self._tag).SerializeToString(), len(outcomes)
        if not self._is_broken:
            rest = batch.messages[count:]
            self._drop(rest)
            for message in rest:
                message.answer = _refusal(message.body, RefusedError(payload))
        self._answer_in_order()
        self._send()

    def _take(self, messages: list[_Message], outcomes: Iterable[WriteOutcome]) -> None:
        """Set the answers of messages, and keep the messages that the writer has put off."""
        rest: list[_Message] = []
        for place, (message, outcome) in enumerate(zip(messages, outcomes, strict=False)):
            if outcome.kind == Kind.PUT_OFF:
                rest.append(message)
                continue
            self._writer.release(len(message.body), is_answered=True)
            if outcome.kind == Kind.ANSWER:
                message.answer = outcome.payload
            else:
                message.answer = RefusedError(outcome.payload)
                self._drop([*messages[place + 1 :], *self._waiting])
                self._waiting.clear()
                self._is_broken = True
        if rest:
            self._waiting.extendleft(reversed(rest))
            loop = asyncio.get_running_loop()
            self._pause = loop.call_later(_PAUSE_SECONDS, self._resume)

    def _answer_in_order(self) -> None:
        """Write the answers up to the first message without one."""
        while self._messages and (answer := self._messages[0].answer) is not None:
            del self._messages[0]
            if isinstance(answer, RefusedError):
                self._end(answer)
                return
            self._answer(answer)


def _outcomes_in(reply: Reply) -> list[WriteOutcome]:
    """Return the outcomes in a reply of the writer; none if they cannot be read."""
    try:
        return list(unpack_outcomes(reply.payload))
    except FrameError:
        return []


def _refusal(message: bytes, error: RefusedError) -> bytes | RefusedError:
    """Return an error as the answer to a message, or itself if the message cannot be parsed."""
    try:
        number = writes_pb2.WriteStreamRequest.FromString(message).correlation_id
    except DecodeError:
        return error
    answer = writes_pb2.WriteStreamResponse(correlation_id=number, error=error.status)
    return answer.SerializeToString()
