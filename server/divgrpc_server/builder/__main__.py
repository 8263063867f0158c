"""The process of one build: takes an upload from a front, makes a generation of it, ends.

Theory of operation. The main thread reads the upload, writes rows to a staging folder and computes.
A second thread does nothing but wait for the front or the supervisor to hang up, which is how a
cancelled call, a lost connection and a passed deadline look from here. It then ends the process at
once, whatever the first is building. That is safe at any moment, because storage publishes by one
rename and survives a crash anywhere; what lies in the staging folder is removed by the supervisor,
which is told of our end by the kernel. Only the last words, a log line and the outcome, are waited
for: a process that ends in the middle of a write to the log leaves half a line.
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
    from divgrpc.build.builder import IndexBuilder

_PROGRESS_SECONDS: Final = 0.1
# What a builder whose work is done gets for its last words once nobody listens.
_LAST_WORDS_SECONDS: Final = 1.0


class Upload:
    """The messages of one Build call: a header, label chunks, chunks, a commit, nothing else.

    The one message of a BuildOnce call stands for all of them.
    """

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        # What was read and is still to be looked at; None is the end.
        self._ahead: list[index_pb2.BuildRequest | None] = []

    def header(self) -> index_pb2.BuildHeader:
        """Return the first message; raises `InvalidArgumentError` where it is no header."""
        request = self._next()
        if request is None or request.WhichOneof("step") != "header":
            raise InvalidArgumentError("header", "the first message must be a header")
        return request.header

    def label_chunks(self) -> Iterator[labels_pb2.LabelChunk]:
        """Yield what is told of labels, up to the first message of another kind."""
        while (request := self._next()) is not None:
            if request.WhichOneof("step") != "label_chunk":
                break
            yield request.label_chunk
        self._ahead.append(request)

    def chunks(self) -> Iterator[index_pb2.BuildChunk]:
        """Yield the chunks up to the commit, whose count of rows must be theirs."""
        rows = 0
        while (request := self._next()) is not None:
            step = request.WhichOneof("step")
            if step == "chunk":
                yield request.chunk
                rows += _rows(request.chunk)
            elif step == "commit":
                self._end(request.commit, rows)
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
        if self._ahead:
            return self._ahead.pop()
        part, payload = build_frames.receive(self._link)
        if part == Part.END:
            return None
        if part == Part.ONCE:
            self._ahead.extend(reversed(_steps(index_pb2.BuildOnceRequest.FromString(payload))))
            return self._ahead.pop()
        return index_pb2.BuildRequest.FromString(payload)

    def _end(self, commit: index_pb2.BuildCommit, rows: int) -> None:
        if commit.rows != rows:
            raise InvalidArgumentError(
                "commit.rows", f"commit.rows must be the {rows} rows sent, got {commit.rows}"
            )
        build_frames.send(self._link, Part.COMMITTED)

    def offer(self, whole: Whole) -> None:
        """Offer a generation and wait until it may serve; nothing may have followed the commit."""
        build_frames.send(self._link, Part.WHOLE, whole.pack())
        while (part := build_frames.receive(self._link)[0]) != Part.PUBLISH:
            if part != Part.END:
                raise InvalidArgumentError("step", "nothing may follow the commit")


class Events:
    """What the caller hears while the build goes on."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._stage = ""
        self._sent = 0.0

    def accepted(self) -> None:
        """Say that chunks may come."""
        accepted = index_pb2.BuildAccepted(chunk_bytes=LIMITS["chunk_bytes"])
        self._send(Part.EVENT, index_pb2.BuildResponse(accepted=accepted))

    def progress(self, progress: Progress) -> None:
        """Say how far the build has come; left out where the last word is recent or unread."""
        now = time.monotonic()
        if progress.stage == self._stage and now - self._sent < _PROGRESS_SECONDS:
            return
        if not select.select([], [self._link], [], 0)[1]:
            return
        self._stage, self._sent = progress.stage, now
        self._send(Part.EVENT, index_pb2.BuildResponse(progress=results.pack_progress(progress)))

    def done(self, info: IndexInfo) -> None:
        """Say that the index serves."""
        self._send(Part.DONE, index_pb2.BuildResponse(done=results.pack_info(info)))

    def _send(self, part: Part, response: index_pb2.BuildResponse) -> None:
        build_frames.send(self._link, part, response.SerializeToString())


def build(link: socket.socket, me: control.Self) -> IndexInfo:
    """Take the upload and publish a generation; returns its description."""
    upload, events = Upload(link), Events(link)
    header = upload.header()
    name = check_index_name(header.index)
    parameters = results.parse_build_parameters(header.parameters)
    expected = header.expected_rows if header.HasField("expected_rows") else None
    with staging(me.root / name, replace=header.replace) as stage:
        stage.on_whole = lambda folder: upload.offer(Whole(name, folder.name))
        events.accepted()
        # Loading the compiler takes longer than all of the above, and the first chunks meanwhile
        # fill the socket.
        from divgrpc.build.builder import IndexBuilder
        from divgrpc_server.builder.labels import LabelPieces

        with LabelPieces(header, stage.folder) as pieces:
            for piece in upload.label_chunks():
                pieces.add(piece)
            plan = pieces.plan()
        builder = IndexBuilder(
            stage,
            parameters,
            expected_rows=expected,
            on_progress=events.progress,
            labels=plan,
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
    """What all chunks of an upload have in common."""

    kind: str | None
    cols: int


def _append(
    builder: "IndexBuilder", chunk: index_pb2.BuildChunk, before: _Layout | None
) -> _Layout:
    """Hand a chunk on; returns its layout, which must be that of the chunks before."""
    from divgrpc_server.builder import labels
    from divgrpc_server.codec import requests  # as late as the compiler that they load

    vectors = requests.parse_vectors("vectors", chunk.vectors)
    found = _Layout(chunk.vectors.WhichOneof("kind"), int(vectors.shape[1]))
    # Of chunks without rows the core hears nothing.
    if before is not None and found.kind != before.kind:
        raise InvalidArgumentError(
            "vectors", f"vectors must be {before.kind} in every chunk, got {found.kind} ones"
        )
    if before is not None and found.cols != before.cols:
        raise InvalidArgumentError(
            "vectors", f"vectors must have {before.cols} columns, got {found.cols}"
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
        _check_no_labels(chunk)
    return found


def _check_no_labels(chunk: index_pb2.BuildChunk) -> None:
    """Refuse labels that come without rows."""
    for field in ("ids", "categories", "subtopics"):
        count = len(getattr(chunk, field))
        if count:
            raise InvalidArgumentError(field, f"{field} must be one per row, got {count} for none")
    if chunk.labels.ids:
        raise InvalidArgumentError("labels.ids", "labels.ids must be of rows, got some for none")


def _steps(once: index_pb2.BuildOnceRequest) -> list[index_pb2.BuildRequest]:
    """Return the messages of the Build that makes the same index."""
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
    """Wait until one of those we work for is gone, then end the process.

    `ending` is for whichever thread ends the process and is never released.
    """
    poller = select.poll()
    poller.register(link, select.POLLRDHUP)
    poller.register(channel, select.POLLIN)
    poller.poll()
    if ending.acquire(blocking=False):
        os._exit(1)
    time.sleep(_LAST_WORDS_SECONDS)
    os._exit(0)


def serve(me: control.Self, log: logs.Logger) -> None:
    """Serve the one call this process is for.

    Raises OSError where the front hangs up on the last words.
    """
    received = me.channel.receive()
    if received is None or received[1] < 0:
        return
    message, descriptor = received
    ending = threading.Lock()
    with packets.adopt(descriptor) as link:
        threading.Thread(target=_watch, args=(link, me.channel, ending), daemon=True).start()
        try:
            info = build(link, me)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return  # the front hung up on us; the staging folder is gone already
        except Exception as error:  # noqa: BLE001  # the edge of the process: the caller hears of it
            ending.acquire()
            status = explain(error, message.text, log)
            build_frames.send(link, Part.STATUS, status.SerializeToString())
        else:
            ending.acquire()
            # Before the outcome, upon which the front hangs up.
            log.info("built", index=info.name, generation=info.generation, rows=info.rows)
            Events(link).done(info)


def main() -> None:
    """Run a builder; started by the supervisor alone."""
    me = control.enter()
    with contextlib.suppress(OSError):
        serve(me, logs.configure(me.config, "builder", me.serial))
    # Taking a compiler apart in good order takes longer than many a build.
    os._exit(0)


if __name__ == "__main__":
    main()
