"""Calls with any metadata at the level of bytes, and files of tokens."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from google.rpc import error_details_pb2, status_pb2

from divgrpc_server.security import tokens
from support.requests.named_requests import SERVICE


class Answer(NamedTuple):
    """The end of a call, and the messages before it."""

    code: grpc.StatusCode
    reason: str
    detail: str
    messages: list[bytes]


def call(
    channel: Any,  # noqa: ANN401  # gRPC types no channel of bytes
    method: str,
    request: bytes,
    token: str | None = None,
    timeout: float = 30,
) -> Answer:
    """Make a call of any kind with one request; `token` is the whole value of the metadata."""
    kind = SERVICE.methods_by_name[method]
    metadata = () if token is None else (("authorization", token),)
    path = f"/{SERVICE.full_name}/{method}"
    messages: list[bytes] = []
    try:
        if kind.client_streaming:
            requests: Iterator[bytes] = iter((request,))
            stream = channel.stream_stream(path)(requests, metadata=metadata, timeout=timeout)
            messages += stream
        elif kind.server_streaming:
            messages += channel.unary_stream(path)(request, metadata=metadata, timeout=timeout)
        else:
            answer = channel.unary_unary(path)(request, metadata=metadata, timeout=timeout)
            messages.append(answer)
    except grpc.RpcError as error:
        pairs: Any = error.trailing_metadata() or ()
        trailers = dict(iter(pairs))
        status = status_pb2.Status.FromString(trailers.get("grpc-status-details-bin", b""))
        info = error_details_pb2.ErrorInfo()
        for detail in status.details:
            detail.Unpack(info)
        return Answer(error.code(), info.reason, error.details() or "", messages)
    return Answer(grpc.StatusCode.OK, "", "", messages)


def entry(name: str, secret: str, role: str, indexes: list[str], **more: object) -> str:
    """Return an entry of a file of tokens."""
    lines = [
        "[[token]]",
        f'name = "{name}"',
        f'hash = "sha256:{tokens.digest_of(secret).hex()}"',
        f'role = "{role}"',
        f"indexes = {indexes}",
        *(f"{key} = {value}" for key, value in more.items()),
    ]
    return "\n".join(lines).replace("'", '"') + "\n"


def write(path: Path, *entries: str) -> Path:
    """Replace a file of tokens in one step."""
    draft = path.with_suffix(".draft")
    draft.write_text("\n".join(entries))
    return draft.replace(path)
