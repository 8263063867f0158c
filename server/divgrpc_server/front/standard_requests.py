"""Requests of the standard services, parsed by us: bytes that are none get a status that says so.

Where gRPC parses them itself it ends such calls with UNKNOWN.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, Protocol, TypeVar

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from divgrpc_server.codec.statuses import MalformedError, status_of

DETAILS_KEY: Final = "grpc-status-details-bin"

_Message = TypeVar("_Message")
_Message_co = TypeVar("_Message_co", covariant=True)
_Answer = TypeVar("_Answer")
_Context = aio.ServicerContext[bytes, _Answer]


class MessageType(Protocol[_Message_co]):
    """A class of messages."""

    def FromString(self, data: bytes) -> _Message_co:  # noqa: N802  # as protobuf spells it
        """Parse a message; raises DecodeError."""


async def _parse(kind: MessageType[_Message], data: bytes, context: _Context[_Answer]) -> _Message:
    """Return the message, or end the call with INVALID_ARGUMENT."""
    try:
        return kind.FromString(data)
    except DecodeError:
        status = status_of(MalformedError("the message is not what the method takes"), "")
    details = ((DETAILS_KEY, status.SerializeToString()),)
    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, status.message, details)
    raise AssertionError("abort raises")


def of_one(
    kind: MessageType[_Message],
    method: Callable[[_Message, _Context[_Answer]], Awaitable[_Answer]],
) -> Callable[[bytes, _Context[_Answer]], Awaitable[_Answer]]:
    """Return a handler of bytes for a method that takes one message."""

    async def handle(data: bytes, context: _Context[_Answer]) -> _Answer:
        return await method(await _parse(kind, data, context), context)

    return handle


def of_many(
    kind: MessageType[_Message],
    method: Callable[[AsyncIterator[_Message], _Context[_Answer]], AsyncIterator[_Answer]],
) -> Callable[[AsyncIterator[bytes], _Context[_Answer]], AsyncIterator[_Answer]]:
    """Return a handler of bytes for a method that takes messages and gives answers."""

    async def handle(
        requests: AsyncIterator[bytes], context: _Context[_Answer]
    ) -> AsyncIterator[_Answer]:
        async def parsed() -> AsyncIterator[_Message]:
            async for data in requests:
                yield await _parse(kind, data, context)

        async for answer in method(parsed(), context):
            yield answer

    return handle
