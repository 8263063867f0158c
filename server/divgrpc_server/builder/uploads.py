"""The protocol of an upload: requests from the caller, and responses to it.

A caller sends a header, then chunks, then a commit. If messages arrive in another order, methods
raise `InvalidArgumentError`, which names the field. If the front closes the connection, methods
raise EOFError.
"""

import select
import socket
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, Final

from google.protobuf.message import Message

from divgrpc.errors import InvalidArgumentError, invalid
from divgrpc.parameters import LIMITS
from divgrpc.types import Progress
from divgrpc_protos.v1 import attributes_pb2, index_pb2, labels_pb2
from divgrpc_server.ipc import job_frames
from divgrpc_server.ipc.job_frames import Frame, StagedGeneration
from divgrpc_server.ipc.progress import ProgressEvents

_PREPARING_SECONDS: Final = 3.0


class Upload(ABC):
    """The messages of one call; a subclass sets the types of its requests and responses."""

    request_type: ClassVar[type[Message]]
    response_type: ClassVar[type[Message]]
    # The steps that a request may hold.
    steps: ClassVar[str]

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        # A stack of messages that were received but not yet returned. None marks the end of the
        # upload.
        self._pending: list[Any] = []
        # Reports the progress to the caller.
        self.report = ProgressEvents(link, self.response_type).report

    def header(self) -> Any:  # noqa: ANN401  # a message of the call
        """Return the first message, which must be a header."""
        request = self._next()
        if request is None or request.WhichOneof("step") != "header":
            raise InvalidArgumentError("header", "the first message must be a header")
        return request.header

    def accept(self) -> None:
        """Tell the caller that it may send chunks."""
        self._send(accepted=index_pb2.BuildAccepted(chunk_bytes=LIMITS["chunk_bytes"]))

    def chunks(self) -> Iterator[Any]:
        """Yield the chunks up to the commit; raise if the commit states a wrong number of rows."""
        rows = 0
        while (request := self._next()) is not None:
            step = request.WhichOneof("step")
            if step == "chunk":
                yield request.chunk
                rows += self.rows_of(request.chunk)
            elif step == "commit":
                if request.commit.rows != rows:
                    raise invalid(
                        "commit.rows", f"must be the {rows} rows sent, got {request.commit.rows}"
                    )
                job_frames.send(self._link, Frame.COMMIT)
                return
            else:
                self._refuse(step)
        raise InvalidArgumentError("commit", "the upload must end with a commit")

    def offer(self, generation: StagedGeneration) -> None:
        """Announce a complete generation, and wait until the front asks to publish it.

        Workers and shard servers open it meanwhile, which is reported if it takes long. Raises
        `InvalidArgumentError` if a message follows the commit.
        """
        job_frames.send(self._link, Frame.STAGED, generation.pack())
        waiter = select.poll()
        waiter.register(self._link, select.POLLIN)
        while True:
            while not waiter.poll(1000 * _PREPARING_SECONDS):
                self.report(Progress("preparing", 0, 0, None))
            kind, _ = job_frames.receive(self._link)
            if kind == Frame.PUBLISH:
                return
            check_end(kind)

    @staticmethod
    @abstractmethod
    def rows_of(chunk: Any) -> int:  # noqa: ANN401  # a message of the call
        """Return the number of rows of a chunk."""

    def _refuse(self, step: str | None) -> None:
        """Raise the error for a message that may not come among the chunks."""
        if step == "header":
            raise InvalidArgumentError("header", "there must be one header, got a second")
        raise InvalidArgumentError("step", f"a message must hold one of {self.steps}")

    def _next(self) -> Any:  # noqa: ANN401  # a message of the call, or None
        if self._pending:
            return self._pending.pop()
        kind, payload = job_frames.receive(self._link)
        return None if kind == Frame.END else self._parsed(kind, payload)

    def _parsed(self, _: Frame, payload: bytes) -> Any:  # noqa: ANN401  # a message of the call
        return self.request_type.FromString(payload)

    def _send(self, **event: Message) -> None:
        response = self.response_type(**event)
        job_frames.send(self._link, Frame.EVENT, response.SerializeToString())


class BuildUpload(Upload):
    """The messages of one Build call, which sends label chunks between the header and the chunks.

    The caller of BuildOnce sends a single message, which is split into the same messages.
    """

    request_type = index_pb2.BuildRequest
    response_type = index_pb2.BuildResponse
    steps = "header, label_chunk, chunk and commit"

    def label_chunks(self) -> Iterator[labels_pb2.LabelChunk]:
        """Yield the label chunks, and stop at the first message of another kind."""
        while (request := self._next()) is not None:
            if request.WhichOneof("step") != "label_chunk":
                break
            yield request.label_chunk
        self._pending.append(request)

    @staticmethod
    def rows_of(chunk: index_pb2.BuildChunk) -> int:
        """Return the number of rows of a chunk."""
        vectors, absent = chunk.vectors, len(chunk.rows_without_vector)
        is_sparse = vectors.WhichOneof("kind") == "sparse"
        return absent + (vectors.sparse.rows if is_sparse else vectors.dense.rows)

    def _refuse(self, step: str | None) -> None:
        if step == "label_chunk":
            raise InvalidArgumentError("label_chunk", "label chunks must come before any rows")
        super()._refuse(step)

    def _parsed(self, kind: Frame, payload: bytes) -> Any:  # noqa: ANN401  # as in the base
        if kind != Frame.ONCE:
            return super()._parsed(kind, payload)
        self._pending.extend(reversed(_steps(index_pb2.BuildOnceRequest.FromString(payload))))
        return self._pending.pop()


class AttributeUpload(Upload):
    """The messages of one AddAttributes call."""

    request_type = attributes_pb2.AddAttributesRequest
    response_type = attributes_pb2.AddAttributesResponse
    steps = "header, chunk and commit"

    @staticmethod
    def rows_of(chunk: attributes_pb2.AddAttributesChunk) -> int:
        """Return the number of points of a chunk: of its ids, or of entries of its first column."""
        if chunk.ids or chunk.string_ids:
            return max(len(chunk.ids), len(chunk.string_ids))
        for column in chunk.attributes:
            numbers, flags = len(column.numbers), len(column.flags)
            values = max(len(column.keywords), len(column.integers), numbers, flags)
            return len(column.ends) or values
        return 0


def check_end(kind: Frame) -> None:
    """Raise `InvalidArgumentError` if a frame that follows the commit is not the end."""
    if kind != Frame.END:
        raise InvalidArgumentError("step", "nothing may follow the commit")


def _steps(once: index_pb2.BuildOnceRequest) -> list[index_pb2.BuildRequest]:
    """Split the message of a BuildOnce call into the messages of an equivalent Build call."""
    fields = {field.name: value for field, value in once.ListFields()}
    chunk_fields = index_pb2.BuildChunk.DESCRIPTOR.fields_by_name.keys() & fields.keys()
    chunk = index_pb2.BuildChunk(**{name: fields[name] for name in chunk_fields})
    header = index_pb2.BuildHeader(
        index=once.index,
        parameters=once.parameters,
        replace=once.replace,
        labels=fields.get("label_plan"),
        declarations=once.declarations,
    )
    steps = [index_pb2.BuildRequest(header=header)]
    if once.HasField("label_chunk"):
        steps.append(index_pb2.BuildRequest(label_chunk=once.label_chunk))
    commit = index_pb2.BuildCommit(rows=BuildUpload.rows_of(chunk))
    return [*steps, index_pb2.BuildRequest(chunk=chunk), index_pb2.BuildRequest(commit=commit)]
