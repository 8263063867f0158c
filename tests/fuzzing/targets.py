"""What is fuzzed: readers of requests, of files, of frames between processes and of other texts.

A target reads bytes. It may refuse them with an error that the caller or the operator understands;
any other error is a defect. Inputs that once led to a defect are kept in `corpus/<target>`.
"""

import json
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import numpy as np

from divgrpc.backup.archive import ArchiveReader, ArchiveWriter, Member
from divgrpc.backup.contents import Contents, SnapshotEntry
from divgrpc.columns.filters import as_filter
from divgrpc.errors import DivgrpcError, IndexDamagedError
from divgrpc.search.page_tokens import decode_token
from divgrpc.storage.layouts import LayoutInfo
from divgrpc.storage.manifest import Manifest
from divgrpc.writes.log import end_of, entries, frame
from divgrpc_client.formats import json_lines, sparse_text
from divgrpc_protos.v1 import diversify_pb2, predict_pb2, query_pb2
from divgrpc_server.codec import requests, subjects
from divgrpc_server.codec.statuses import expected
from divgrpc_server.ipc import job_frames, packets, write_batches
from divgrpc_server.ipc.errors import FrameError
from divgrpc_server.ipc.job_frames import Frame, StagedGeneration
from divgrpc_server.ipc.packets import Op, Outcome, Reply, Request
from divgrpc_server.ipc.tags import parse_traceparent
from divgrpc_server.security import requests as security_requests
from divgrpc_server.security import tokens
from divgrpc_server.security.roles import ROLE_OF_METHOD
from support.requests import golden_diversifications, golden_quotas, golden_requests

_CORPUS: Final = Path(__file__).parent / "corpus"
_GOLDEN: Final = Path(__file__).parents[1] / "golden"


@dataclass(frozen=True, slots=True)
class Target:
    """A reader and valid inputs of it, from which a fuzzer starts.

    is_refusal: tells whether an error is one that the reader may raise.
    """

    read: Callable[[bytes], object]
    seeds: tuple[bytes, ...]
    is_refusal: Callable[[Exception], bool]

    def run(self, data: bytes) -> None:
        """Read bytes; raises the error if it is a defect."""
        try:
            self.read(data)
        except Exception as error:
            if not self.is_refusal(error):
                raise


def corpus_of(name: str) -> list[bytes]:
    """Return the inputs that are kept for a target."""
    return [path.read_bytes() for path in sorted((_CORPUS / name).glob("*"))]


# Requests. An error with a status of its own is not a fault of the server.


def _has_status(error: Exception) -> bool:
    return expected(error) is not None


def _golden(kind: Any) -> tuple[bytes, ...]:  # noqa: ANN401  # a class of messages
    """Return the recorded requests of a kind."""
    modules = (golden_requests, golden_diversifications, golden_quotas)
    lists = [messages for module in modules for _, messages in module.calls().values()]
    return tuple(m.SerializeToString() for ms in lists for m in ms if isinstance(m, kind))


def _query(data: bytes) -> None:
    requests.parse_query(query_pb2.QueryRequest.FromString(data))


def _prediction(data: bytes) -> None:
    requests.parse_prediction(predict_pb2.PredictLabelsRequest.FromString(data))


def _diversification(data: bytes) -> None:
    requests.parse_diversification(diversify_pb2.DiversifyRequest.FromString(data))


def _any_request(data: bytes) -> None:
    """Read what the front reads of a message: the first byte chooses the method."""
    methods = sorted(ROLE_OF_METHOD)
    method, message = methods[data[0] % len(methods) if data else 0], data[1:]
    received = subjects.IncomingMessage(method, message)
    security_requests.read(received)
    subjects.read(received)


def _filter(data: bytes) -> None:
    as_filter(json.loads(data))


def _is_json_error(error: Exception) -> bool:
    return isinstance(error, DivgrpcError | ValueError | RecursionError)


def _traceparent(data: bytes) -> None:
    parse_traceparent(data.decode("latin-1"))


def _page_token(data: bytes) -> None:
    decode_token(data.decode("latin-1"))


def _tokens(data: bytes) -> None:
    tokens.parse(data.decode("utf-8"), Path("tokens.toml"))


def _never(_error: Exception) -> bool:
    return False


def _is_of_divgrpc(error: Exception) -> bool:
    return isinstance(error, DivgrpcError)


def _is_token_error(error: Exception) -> bool:
    return isinstance(error, DivgrpcError | UnicodeDecodeError)


# Frames between processes of a server.


def _requests(data: bytes) -> None:
    packets.unpack_requests(memoryview(data), -1)


def _replies(data: bytes) -> None:
    packets.unpack_credits(memoryview(data))
    packets.unpack_replies(memoryview(data), -1)


def _write_messages(data: bytes) -> None:
    list(write_batches.unpack_messages(data))


def _write_outcomes(data: bytes) -> None:
    list(write_batches.unpack_outcomes(data))


def _job_frames(data: bytes) -> None:
    near, far = job_frames.pair()
    with near, far:
        near.sendall(data)
        near.shutdown(socket.SHUT_WR)
        try:
            while True:
                job_frames.peek(far)
                kind, payload = job_frames.receive(far)
                if kind == Frame.STAGED:
                    StagedGeneration.unpack(payload)
        except EOFError:
            pass  # the end of the data


def _is_frame_error(error: Exception) -> bool:
    return isinstance(error, FrameError)


def _job_seed() -> bytes:
    near, far = job_frames.pair()
    with near, far:
        job_frames.send(near, Frame.MESSAGE, b"message")
        job_frames.send(near, Frame.STAGED, StagedGeneration("name", "folder").pack())
        job_frames.send(near, Frame.PUBLISH)
        return far.recv(1_000)


# Files of an index.


def _log(data: bytes) -> None:
    list(entries(data, 1))
    end_of(data, 1)


def _archive(data: bytes) -> None:
    reader = ArchiveReader(BytesIO(data))
    while (member := reader.read_member()) is not None:
        text = b"".join(reader.read_blocks(member))
        if member.name.endswith("SNAPSHOT.json"):
            Contents.from_json(text)


def _log_seed() -> bytes:
    return b"".join(frame(number, number - 1, b"x" * number) for number in range(1, 5)) + bytes(64)


def _archive_seed() -> bytes:
    stream = BytesIO()
    writer = ArchiveWriter(stream)
    entry = SnapshotEntry("points", 1, 2, 3)
    text = Contents(entry, (Member("1/manifest.json", 3),)).to_json("0.1.0")
    writer.add(Member("points/SNAPSHOT.json", len(text)), [text])
    writer.add(Member("points/1/manifest.json", 3), [b"abc"])
    writer.finish()
    return stream.getvalue()


def _manifest_seeds() -> Iterator[bytes]:
    for path in sorted(_GOLDEN.rglob("manifest.json"))[:4]:
        yield path.read_bytes()


# Files of users.


def _with_file(read: Callable[[Path], object], suffix: str) -> Callable[[bytes], None]:
    def run(data: bytes) -> None:
        with tempfile.NamedTemporaryFile(suffix=suffix) as file:
            file.write(data)
            file.flush()
            read(Path(file.name))

    return run


_JSON_LINES: Final = (
    b'{"id": "a", "vector": [1, 2.5], "attributes": {"colour": "red", "tags": ["x"]}}\n'
    b'{"id": "b", "vector": [2, 3], "attributes": {"colour": null, "tags": []}}\n'
)
_SVMLIGHT: Final = b"1,2 1:0.5 3:2\n0 2:1e3 # note\n"
_TOKENS: Final = (
    b'[[token]]\nname = "shop"\nhash = "sha256:' + b"0" * 64 + b'"\nrole = "reader"\n'
    b'indexes = ["shop-*"]\nexpires = 2027-01-01T00:00:00Z\ncalls = 8\n'
)
_FILTER: Final = json.dumps(
    {
        "must": [{"key": "colour", "match": {"any": ["red"]}}, {"has_id": [1]}],
        "must_not": [{"key": "size", "range": {"gte": 1, "lt": 3.5}}],
    }
).encode()
_QUERY: Final = query_pb2.QueryRequest(index="points", k=3)
_QUERY.queries.dense.rows = 1
_QUERY.queries.dense.cols = 4
_QUERY.queries.dense.data = np.ones(4, np.float32).tobytes()

_REQUESTS: Final = (
    packets.pack_request(Request(1, 2.5, Op.QUERY, "tag", b"query"))
    + packets.pack_request(Request(2, 3.5, Op.WRITES, "", b"")),
    packets.pack_request(Request(3, 0.0, Op.UPSERT, "other", b"large"), in_memfd=True),
)
_REPLIES: Final = (
    packets.pack_credits(1, 0, 1)
    + packets.pack_reply(Reply(1, Outcome.ANSWER, b"answer"))
    + packets.pack_reply(Reply(2, Outcome.PART, b"")),
    packets.pack_credits(0, 1) + packets.pack_reply(Reply(3, 0, b"large"), in_memfd=True),
)
_OUTCOMES: Final = (
    write_batches.pack_outcomes(
        [write_batches.WriteOutcome(kind, b"x" * kind) for kind in write_batches.Kind]
    ),
)
# The targets that read frames between processes.
FRAMES: Final = ("requests", "replies", "write_messages", "write_outcomes", "job_frames")
TARGETS: Final[Mapping[str, Target]] = {
    "query": Target(
        _query, (_QUERY.SerializeToString(), *_golden(query_pb2.QueryRequest)), _has_status
    ),
    "prediction": Target(_prediction, _golden(predict_pb2.PredictLabelsRequest), _has_status),
    "diversification": Target(
        _diversification, _golden(diversify_pb2.DiversifyRequest), _has_status
    ),
    "any_request": Target(_any_request, (b"\0" + _QUERY.SerializeToString(),), _never),
    "filter": Target(_filter, (_FILTER,), _is_json_error),
    "traceparent": Target(
        _traceparent, (b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",), _never
    ),
    "page_token": Target(_page_token, (b"AAAA",), _is_of_divgrpc),
    "tokens": Target(_tokens, (_TOKENS,), _is_token_error),
    "requests": Target(_requests, _REQUESTS, _is_frame_error),
    "replies": Target(_replies, _REPLIES, _is_frame_error),
    "write_messages": Target(
        _write_messages, (write_batches.pack_messages([b"one", b"", b"three"]),), _is_frame_error
    ),
    "write_outcomes": Target(_write_outcomes, _OUTCOMES, _is_frame_error),
    "job_frames": Target(_job_frames, (_job_seed(),), _is_frame_error),
    "log": Target(_log, (_log_seed(),), lambda error: isinstance(error, IndexDamagedError)),
    "archive": Target(_archive, (_archive_seed(),), _is_of_divgrpc),
    "manifest": Target(Manifest.from_json, tuple(_manifest_seeds()), _is_of_divgrpc),
    "layout": Target(LayoutInfo.from_json, (b'{"number": 1}',), _is_of_divgrpc),
    "json_lines": Target(
        _with_file(json_lines.read_points, ".jsonl"), (_JSON_LINES,), _is_of_divgrpc
    ),
    "svmlight": Target(_with_file(sparse_text.read_svmlight, ".svm"), (_SVMLIGHT,), _is_of_divgrpc),
}
