"""The builder process: it reads an upload from a front, builds a generation, and exits.

Rows are written to a staging folder as they arrive. If the caller leaves, the process exits
immediately. The supervisor notices the exit and removes the staging folder.
"""

import os
import select
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from divgrpc.errors import InvalidArgumentError, invalid
from divgrpc.parameters import LIMITS, check_index_name
from divgrpc.storage.generations import staging
from divgrpc.types import IndexInfo, Progress
from divgrpc.types.records import Attribute
from divgrpc_protos.records import to_message
from divgrpc_protos.v1 import index_pb2, labels_pb2
from divgrpc_server.codec import points, results
from divgrpc_server.codec.statuses import explain
from divgrpc_server.ipc import control, job_calls, job_frames
from divgrpc_server.ipc.job_frames import Frame, StagedGeneration
from divgrpc_server.logging import logs

if TYPE_CHECKING:
    from divgrpc.builder.builder import IndexBuilder

_PROGRESS_SECONDS: Final = 0.1


class Upload:
    """The messages of one Build call: requests from the caller, and responses to it.

    The caller of Build sends a header, label chunks, chunks of rows and a commit, in this order.
    The caller of BuildOnce sends a single message, which is split into the same messages. If
    messages arrive in another order, methods raise `InvalidArgumentError`, which names the field.
    If the front closes the connection, methods raise EOFError.
    """

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        # A stack of messages that were received but not yet returned. None marks the end of the
        # upload.
        self._pending: list[index_pb2.BuildRequest | None] = []
        self._stage = ""
        self._progress_seconds = 0.0

    def header(self) -> index_pb2.BuildHeader:
        """Return the first message, which must be a header."""
        request = self._next()
        if request is None or request.WhichOneof("step") != "header":
            raise InvalidArgumentError("header", "the first message must be a header")
        return request.header

    def accept(self) -> None:
        """Tell the caller that it may send chunks."""
        reply = index_pb2.BuildAccepted(chunk_bytes=LIMITS["chunk_bytes"])
        self._send(index_pb2.BuildResponse(accepted=reply))

    def label_chunks(self) -> Iterator[labels_pb2.LabelChunk]:
        """Yield the label chunks, and stop at the first message of another kind."""
        while (request := self._next()) is not None:
            if request.WhichOneof("step") != "label_chunk":
                break
            yield request.label_chunk
        self._pending.append(request)

    def chunks(self) -> Iterator[index_pb2.BuildChunk]:
        """Yield the chunks up to the commit; raise if the commit states a wrong number of rows."""
        rows = 0
        while (request := self._next()) is not None:
            step = request.WhichOneof("step")
            if step == "chunk":
                yield request.chunk
                rows += _rows(request.chunk)
            elif step == "commit":
                if request.commit.rows != rows:
                    raise invalid(
                        "commit.rows", f"must be the {rows} rows sent, got {request.commit.rows}"
                    )
                job_frames.send(self._link, Frame.COMMIT)
                return
            elif step == "header":
                raise InvalidArgumentError("header", "there must be one header, got a second")
            elif step == "label_chunk":
                raise InvalidArgumentError("label_chunk", "label chunks must come before any rows")
            else:
                raise InvalidArgumentError(
                    "step", "a message must hold one of header, label_chunk, chunk and commit"
                )
        raise InvalidArgumentError("commit", "the upload must end with a commit")

    def report(self, progress: Progress) -> None:
        """Send the progress, unless progress was sent recently or the socket's buffer is full."""
        now = time.monotonic()
        if progress.stage == self._stage and now - self._progress_seconds < _PROGRESS_SECONDS:
            return
        if not select.select([], [self._link], [], 0)[1]:
            return
        self._stage, self._progress_seconds = progress.stage, now
        self._send(index_pb2.BuildResponse(progress=to_message(progress, index_pb2.BuildProgress)))

    def offer(self, generation: StagedGeneration) -> None:
        """Announce a complete generation, and wait until the front asks to publish it.

        Raises `InvalidArgumentError` if a message follows the commit.
        """
        job_frames.send(self._link, Frame.STAGED, generation.pack())
        while (kind := job_frames.receive(self._link)[0]) != Frame.PUBLISH:
            if kind != Frame.END:
                raise InvalidArgumentError("step", "nothing may follow the commit")

    def _next(self) -> index_pb2.BuildRequest | None:
        if self._pending:
            return self._pending.pop()
        kind, payload = job_frames.receive(self._link)
        if kind == Frame.END:
            return None
        if kind == Frame.ONCE:
            self._pending.extend(reversed(_steps(index_pb2.BuildOnceRequest.FromString(payload))))
            return self._pending.pop()
        return index_pb2.BuildRequest.FromString(payload)

    def _send(self, response: index_pb2.BuildResponse) -> None:
        job_frames.send(self._link, Frame.EVENT, response.SerializeToString())


def build(link: socket.socket, process: control.Process) -> IndexInfo:
    """Read the upload from `link`, publish the generation, and return its description."""
    upload = Upload(link)
    header = upload.header()
    name = check_index_name(header.index)
    parameters = results.parse_build_parameters(header.parameters)
    declared = points.parse_declarations(header.declarations)
    expected_rows = header.expected_rows if header.HasField("expected_rows") else None
    with staging(process.root / name, replace=header.replace) as stage:
        stage.on_whole = lambda folder: upload.offer(StagedGeneration(name, folder.name))
        upload.accept()
        # Import the compiler after the header is accepted, because importing it is slow. Meanwhile
        # the first chunks arrive in the socket's buffer.
        from divgrpc.builder.builder import IndexBuilder
        from divgrpc_server.builder.labels import LabelUpload

        with closing(LabelUpload(header, stage.folder)) as label_upload:
            for label_chunk in upload.label_chunks():
                label_upload.add(label_chunk)
            label_inputs = label_upload.inputs()
        builder = IndexBuilder(
            stage,
            parameters,
            expected_rows=expected_rows,
            on_progress=upload.report,
            labels=label_inputs,
            attributes=declared,
        )
        rows, layout = 0, None
        for chunk in upload.chunks():
            layout = _append(builder, chunk, layout, declared)
            rows += _rows(chunk)
        if expected_rows not in (None, rows):
            raise invalid("header.expected_rows", f"was {expected_rows}, and {rows} rows came")
        return builder.build().manifest.info(name)


class _Layout(NamedTuple):
    """The properties that must be the same in all chunks of an upload."""

    kind: str | None
    cols: int


def _append(
    builder: "IndexBuilder",
    chunk: index_pb2.BuildChunk,
    first: _Layout | None,
    declared: Sequence[Attribute],
) -> _Layout:
    """Append a chunk and return its layout; raise if the layout differs from `first`."""
    from divgrpc_server.builder import labels
    from divgrpc_server.codec import requests  # late, because they load the compiler

    vectors = requests.parse_vectors("vectors", chunk.vectors)
    layout = _Layout(chunk.vectors.WhichOneof("kind"), int(vectors.shape[1]))
    # Check the layout here, because a chunk without rows is not passed to the core.
    if first is not None and layout.kind != first.kind:
        raise invalid("vectors", f"must be {first.kind} in every chunk, got {layout.kind} ones")
    if first is not None and layout.cols != first.cols:
        raise invalid("vectors", f"must have {first.cols} columns, got {layout.cols}")
    if len(vectors):
        builder.append(
            vectors,
            ids=points.chunk_ids(chunk),
            categories=np.array(chunk.categories, np.int32) if chunk.categories else None,
            subtopics=np.array(chunk.subtopics, np.int32) if chunk.subtopics else None,
            labels=labels.parse_label_sets(chunk, len(vectors)),
            columns=points.parse_columns(chunk.attributes, declared),
            payloads=list(chunk.payloads) if chunk.payloads else None,
        )
    else:
        _check_no_columns(chunk)
    return layout


def _check_no_columns(chunk: index_pb2.BuildChunk) -> None:
    """Raise if a chunk without rows has ids or other columns."""
    for field in ("ids", "categories", "subtopics", "string_ids", "attributes", "payloads"):
        if count := len(getattr(chunk, field)):
            raise invalid(field, f"must be empty if no rows come, got {count}")
    if chunk.labels.ids:
        raise invalid("labels.ids", "must be empty if no rows come")


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
    commit = index_pb2.BuildCommit(rows=_rows(chunk))
    return [*steps, index_pb2.BuildRequest(chunk=chunk), index_pb2.BuildRequest(commit=commit)]


def _rows(chunk: index_pb2.BuildChunk) -> int:
    vectors = chunk.vectors
    return vectors.sparse.rows if vectors.WhichOneof("kind") == "sparse" else vectors.dense.rows


def serve(process: control.Process, log: logs.Logger) -> None:
    """Serve the one call of this process."""

    def pack_result(info: IndexInfo) -> bytes:
        log.info("built", index=info.name, generation=info.generation, rows=info.rows)
        message = to_message(info, index_pb2.IndexInfo)
        return index_pb2.BuildResponse(done=message).SerializeToString()

    job_calls.serve_call(
        process,
        lambda link: build(link, process),
        pack_result=pack_result,
        pack_error=lambda error, tag: explain(error, tag, log).SerializeToString(),
    )


def main() -> None:
    """Run a builder process, which the supervisor has started."""
    process = control.enter()
    log = logs.configure(process.config, "builder", process.serial)
    with logs.edge(log):
        serve(process, log)
    # Skip a normal exit, because unloading the compiler takes longer than a small build.
    os._exit(0)


if __name__ == "__main__":
    main()
