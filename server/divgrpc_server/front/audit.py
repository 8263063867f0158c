"""The audit log: one line on standard error for each call that changes, or would change, an index.

The lines do not depend on the options of access lines and of levels. Like all lines of the server,
they are dropped and counted while nobody reads a full pipe, because a call must not wait for a log.
"""

import json
import time
from collections.abc import Mapping
from typing import Any, Final

from divgrpc_protos.v1 import index_pb2, writes_pb2
from divgrpc_server.codec.subjects import Subject
from divgrpc_server.config import Config
from divgrpc_server.front.gate import Call
from divgrpc_server.logging.logs import wants_json
from divgrpc_server.logging.nonblocking_pipe import LogSink

_STDERR: Final = 2
_NAME_CHARACTERS_MAX: Final = 80
_RESPONSES: Final[Mapping[str, Any]] = {
    "Upsert": writes_pb2.UpsertResponse,
    "Delete": writes_pb2.DeleteResponse,
    "DeleteIndex": index_pb2.DeleteIndexResponse,
}


class AuditLog:
    """Writes the lines."""

    def __init__(self, config: Config, *, descriptor: int = _STDERR) -> None:
        self._in_json = wants_json(config)
        self._sink = LogSink(descriptor, in_json=self._in_json)

    def add(self, **values: object) -> None:
        """Write a line; values that are None or empty are left out."""
        now = time.time()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1e6):06d}Z"
        index = values.get("index")
        if isinstance(index, str):
            values["index"] = index[:_NAME_CHARACTERS_MAX]
        values = {key: value for key, value in values.items() if value not in (None, "")}
        if self._in_json:
            line = {"event": "audit", **values, "level": "info", "timestamp": stamp}
            self._sink.write(f"{json.dumps(line)}\n")
            return
        words = " ".join(f"{key}={json.dumps(value)}" for key, value in values.items())
        self._sink.write(f"{stamp} [info     ] audit {words}\n")

    def add_call(
        self,
        call: Call,
        code: str,
        *,
        request_id: str,
        peer: str,
        subject: Subject,
        answer: object,
    ) -> None:
        """Write the line of a call that has ended or, for a stream, the lines of its indexes."""
        parts: dict[str, int | None] = {**(call.rows_of_indexes or {subject.name: subject.rows})}
        if call.refused_index:
            parts.setdefault(call.refused_index, None)
        if call.result is not None:
            # A caller may cancel a stream as soon as it has the result, and the work is done.
            code, answer = "OK", call.result
        token, certificate = call.caller
        for index, rows in parts.items():
            self.add(
                method=call.method,
                index=index,
                rows=rows,
                code=code,
                token=token,
                certificate=certificate,
                peer=peer,
                request_id=request_id,
                **outcome(call.method, answer),
            )

    def close(self) -> None:
        """Close the sink."""
        self._sink.close()


def outcome(method: str, answer: object) -> dict[str, int]:
    """Return the generation and the sequence number after a call, as far as its answer has them.

    answer: the serialised answer or the last message of the call.
    """
    if isinstance(answer, bytes):
        kind = _RESPONSES.get(method)
        answer = None if kind is None else kind.FromString(answer)
    names = ("generation", "sequence")
    return {name: getattr(answer, name) for name in names if hasattr(answer, name)}
