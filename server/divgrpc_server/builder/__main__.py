"""The process of one build: it reads an upload from a front, makes a generation, and ends.

Theory of operation. The main thread reads the upload, writes rows to a staging folder and builds. A
second thread waits until the front or the supervisor hangs up: a cancelled call, a lost connection
and a passed deadline all look like this here. It then ends the process at once. That is safe at any
moment, because storage publishes by one rename and survives a crash at any point. The kernel tells
the supervisor of the exit, and the supervisor removes the staging folder. The second thread waits
for one thing only, the last log line and the outcome, because a process that ends in the middle of
a write leaves half a line in the log.
"""

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from divgrpc.errors import InvalidArgumentError
from divgrpc.parameters import LIMITS, check_index_name
from divgrpc.storage.generations import staging
from divgrpc.types import IndexInfo, Progress
from divgrpc_protos.v1 import index_pb2, labels_pb2
from divgrpc_server.codec import results
from divgrpc_server.codec.statuses import explain
from divgrpc_server.ipc import build_frames, control, packets
from divgrpc_server.ipc.build_frames import Part, Whole
from divgrpc_server.logging import logs

if TYPE_CHECKING:
    from divgrpc.builder.builder import IndexBuilder

_PROGRESS_SECONDS: Final = 0.1
# Time to write the last log line and the outcome after the front has hung up.
_OUTCOME_SECONDS: Final = 1.0


class Upload:
    """The messages of one Build call: a header, label chunks, chunks, and a commit.

    The one message of a BuildOnce call stands for all of them. Methods raise
    `InvalidArgumentError`, with the field named, for messages in another order, and EOFError if the
    front hangs up.
    """

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        # Stack of messages that were received but not yet returned; None marks the end.
        self._pending: list[index_pb2.BuildRequest | None] = []

    def header(self) -> index_pb2.BuildHeader:
        """Return the first message, which must be a header."""
        request = self._next()
        if request is None or request.WhichOneof("step") != "header":
            raise InvalidArgumentError("header", "the first message must be a header")
        return request.header

    def label_chunks(self) -> Iterator[labels_pb2.LabelChunk]:
        """Yield label chunks up to the first message of another kind."""
        while (request := self._next()) is not None:
            if request.WhichOneof("step") != "label_chunk":
                break
            yield request.label_chunk
        self._pending.append(request)

    def chunks(self) -> Iterator[index_pb2.BuildChunk]:
        """Yield chunks up to the commit, which must count their rows."""
        rows = 0
        while (request := self._next()) is not None:
            step = request.WhichOneof("step")
            if step == "chunk":
                yield request.chunk
                rows += _rows(request.chunk)
            elif step == "commit":
                self._check_commit(request.commit, rows)
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

    def _next(self) -> index_pb2.BuildRequest | None:
        if self._pending:
            return self._pending.pop()
        part, payload = build_frames.receive(self._link)
        if part == Part.END:
            return None
        if part == Part.ONCE:
            self._pending.extend(reversed(_steps(index_pb2.BuildOnceRequest.FromString(payload))))
            return self._pending.pop()
        return index_pb2.BuildRequest.FromString(payload)

    def _check_commit(self, commit: index_pb2.BuildCommit, rows: int) -> None:
        if commit.rows != rows:
            raise InvalidArgumentError(
                "commit.rows", f"commit.rows must be the {rows} rows sent, got {commit.rows}"
            )
        build_frames.send(self._link, Part.COMMITTED)

    def offer(self, whole: Whole) -> None:
        """Offer a generation, and wait until it may serve; no message may follow the commit."""
        build_frames.send(self._link, Part.WHOLE, whole.pack())
        while (part := build_frames.receive(self._link)[0]) != Part.PUBLISH:
            if part != Part.END:
                raise InvalidArgumentError("step", "nothing may follow the commit")


class Events:
    """Responses to the caller during a build."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._stage = ""
        self._sent_seconds = 0.0

    def accepted(self) -> None:
        """Announce that the upload may send chunks."""
        accepted = index_pb2.BuildAccepted(chunk_bytes=LIMITS["chunk_bytes"])
        self._send(Part.EVENT, index_pb2.BuildResponse(accepted=accepted))

    def progress(self, progress: Progress) -> None:
        """Report progress, unless the last report is recent or the socket is full."""
        now = time.monotonic()
        if progress.stage == self._stage and now - self._sent_seconds < _PROGRESS_SECONDS:
            return
        if not select.select([], [self._link], [], 0)[1]:
            return
        self._stage, self._sent_seconds = progress.stage, now
        self._send(Part.EVENT, index_pb2.BuildResponse(progress=results.pack_progress(progress)))

    def done(self, info: IndexInfo) -> None:
        """Report that the index serves."""
        self._send(Part.DONE, index_pb2.BuildResponse(done=results.pack_info(info)))

    def _send(self, part: Part, response: index_pb2.BuildResponse) -> None:
        build_frames.send(self._link, part, response.SerializeToString())


def build(link: socket.socket, process: control.Self) -> IndexInfo:
    """Read the upload on `link`, publish a generation, and return its description."""
    upload, events = Upload(link), Events(link)
    header = upload.header()
    name = check_index_name(header.index)
    parameters = results.parse_build_parameters(header.parameters)
    expected = header.expected_rows if header.HasField("expected_rows") else None
    with staging(process.root / name, replace=header.replace) as stage:
        stage.on_whole = lambda folder: upload.offer(Whole(name, folder.name))
        events.accepted()
        # Loading the compiler takes longer than the steps above. The first chunks fill the socket
        # meanwhile.
        from divgrpc.builder.builder import IndexBuilder
        from divgrpc_server.builder.labels import LabelUpload

        with LabelUpload(header, stage.folder) as label_upload:
            for label_chunk in upload.label_chunks():
                label_upload.add(label_chunk)
            label_inputs = label_upload.inputs()
        builder = IndexBuilder(
            stage,
            parameters,
            expected_rows=expected,
            on_progress=events.progress,
            labels=label_inputs,
        )
        rows, layout = 0, None
        for chunk in upload.chunks():
            layout = _append(builder, chunk, layout)
            rows += _rows(chunk)
        if expected not in (None, rows):
            raise InvalidArgumentError(
                "header.expected_rows", f"header.expected_rows was {expected}, and {rows} rows came"
            )
        return builder.build().manifest.info(name)


class _Layout(NamedTuple):
    """The properties that all chunks of an upload share."""

    kind: str | None
    cols: int


def _append(
    builder: "IndexBuilder", chunk: index_pb2.BuildChunk, expected: _Layout | None
) -> _Layout:
    """Append a chunk to the index; return its layout, which must be the `expected` one."""
    from divgrpc_server.builder import labels
    from divgrpc_server.codec import requests  # late, because they load the compiler

    vectors = requests.parse_vectors("vectors", chunk.vectors)
    layout = _Layout(chunk.vectors.WhichOneof("kind"), int(vectors.shape[1]))
    # The core never sees a chunk without rows, so it cannot check its layout.
    if expected is not None and layout.kind != expected.kind:
        raise InvalidArgumentError(
            "vectors", f"vectors must be {expected.kind} in every chunk, got {layout.kind} ones"
        )
    if expected is not None and layout.cols != expected.cols:
        raise InvalidArgumentError(
            "vectors", f"vectors must have {expected.cols} columns, got {layout.cols}"
        )
    if len(vectors):
        builder.append(
            vectors,
            ids=np.array(chunk.ids, np.int64) if chunk.ids else None,
            categories=np.array(chunk.categories, np.int32) if chunk.categories else None,
            subtopics=np.array(chunk.subtopics, np.int32) if chunk.subtopics else None,
            labels=labels.parse_label_sets(chunk, len(vectors)),
        )
    else:
        _check_no_columns(chunk)
    return layout


def _check_no_columns(chunk: index_pb2.BuildChunk) -> None:
    """Refuse ids, categories, sub-topics and labels of a chunk without rows."""
    for field in ("ids", "categories", "subtopics"):
        count = len(getattr(chunk, field))
        if count:
            raise InvalidArgumentError(field, f"{field} must be empty if no rows come, got {count}")
    if chunk.labels.ids:
        raise InvalidArgumentError("labels.ids", "labels.ids must be empty if no rows come")


def _steps(once: index_pb2.BuildOnceRequest) -> list[index_pb2.BuildRequest]:
    """Return the messages of a Build call that makes the same index."""
    header = index_pb2.BuildHeader(
        index=once.index, parameters=once.parameters, replace=once.replace
    )
    if once.HasField("label_plan"):
        header.labels.CopyFrom(once.label_plan)
    chunk = index_pb2.BuildChunk(
        vectors=once.vectors,
        ids=once.ids,
        categories=once.categories,
        subtopics=once.subtopics,
        labels=once.labels if once.HasField("labels") else None,
    )
    commit = index_pb2.BuildCommit(rows=_rows(chunk))
    steps = [index_pb2.BuildRequest(header=header)]
    if once.HasField("label_chunk"):
        steps.append(index_pb2.BuildRequest(label_chunk=once.label_chunk))
    return [*steps, index_pb2.BuildRequest(chunk=chunk), index_pb2.BuildRequest(commit=commit)]


def _rows(chunk: index_pb2.BuildChunk) -> int:
    vectors = chunk.vectors
    return vectors.sparse.rows if vectors.WhichOneof("kind") == "sparse" else vectors.dense.rows


def _watch(link: socket.socket, channel: control.Channel, ending: threading.Lock) -> None:
    """Wait until the front or the supervisor hangs up, then end the process.

    The thread that ends the process holds the lock `ending`, and never releases it.
    """
    poller = select.poll()
    poller.register(link, select.POLLRDHUP)
    poller.register(channel, select.POLLIN)
    poller.poll()
    if ending.acquire(blocking=False):
        os._exit(1)
    time.sleep(_OUTCOME_SECONDS)
    os._exit(0)


def serve(process: control.Self, log: logs.Logger) -> None:
    """Serve the one call of this process.

    Raises OSError if the front hangs up before it has the outcome.
    """
    received = process.channel.receive()
    if received is None or received[1] < 0:
        return
    message, descriptor = received
    ending = threading.Lock()
    with packets.adopt(descriptor) as link:
        threading.Thread(target=_watch, args=(link, process.channel, ending), daemon=True).start()
        try:
            info = build(link, process)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return  # the front hung up; the staging folder is removed already
        except Exception as error:  # noqa: BLE001  # becomes the status of the call
            ending.acquire()
            status = explain(error, message.text, log)
            build_frames.send(link, Part.STATUS, status.SerializeToString())
        else:
            ending.acquire()
            # Before the outcome, because the front hangs up when it has that.
            log.info("built", index=info.name, generation=info.generation, rows=info.rows)
            Events(link).done(info)


def main() -> None:
    """Run a builder; only the supervisor starts it."""
    process = control.enter()
    with contextlib.suppress(OSError):
        serve(process, logs.configure(process.config, "builder", process.serial))
    # An orderly exit would unload the compiler, which takes longer than a small build.
    os._exit(0)


if __name__ == "__main__":
    main()
