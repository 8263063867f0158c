"""Queries of load on streams: each is a call of its own."""

import asyncio
import itertools
from collections.abc import AsyncIterator

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from divgrpc_client.rpc.call import CODES
from divgrpc_client.rpc.channels import SERVICE
from divgrpc_protos.v1 import query_pb2


class StreamedQuery:
    """The queries of one connection: sent on one stream, answered in any order.

    It is called as a multicallable of Query is. A stream that ends fails the queries that wait on
    it, and the next query opens another stream.
    """

    def __init__(self, channel: aio.Channel) -> None:
        self._method: aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(
            f"/{SERVICE}/QueryStream"
        )
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._outgoing: asyncio.Queue[tuple[int, bytes] | None] = asyncio.Queue()
        self._reader: asyncio.Task[None] | None = None

    async def __call__(self, request: bytes, *, timeout: float) -> bytes:
        """Return the answer to a QueryStreamRequest without a number; raises `aio.AioRpcError`."""
        number = next(self._numbers)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        self._outgoing.put_nowait((number, request))
        if self._reader is None or self._reader.done():
            self._reader = asyncio.ensure_future(self._read())
        try:
            async with asyncio.timeout(timeout):
                return await answer
        except TimeoutError:
            raise _error(grpc.StatusCode.DEADLINE_EXCEEDED) from None
        finally:
            self._waiting.pop(number, None)

    async def _read(self) -> None:
        """Hand out the answers of one stream until it ends."""
        code = grpc.StatusCode.UNAVAILABLE
        try:
            async for reply in self._method(self._requests()):
                self._take(reply)
        except aio.AioRpcError as error:
            code = error.code()
        self._outgoing.put_nowait(None)
        self._outgoing = asyncio.Queue()
        waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            if not answer.done():
                answer.set_exception(_error(code))

    async def _requests(self) -> AsyncIterator[bytes]:
        outgoing = self._outgoing
        while (item := await outgoing.get()) is not None:
            number, request = item
            if number in self._waiting:
                # Fields of a message may come in pieces: the number goes before the rest.
                head = query_pb2.QueryStreamRequest(correlation_id=number)
                yield head.SerializeToString() + request

    def _take(self, reply: bytes) -> None:
        try:
            response = query_pb2.QueryStreamResponse.FromString(reply)
        except DecodeError:
            return  # its call is unknown, and will miss its deadline
        answer = self._waiting.get(response.correlation_id)
        if answer is None or answer.done():
            return
        if response.HasField("error"):
            code = CODES.get(response.error.code, grpc.StatusCode.UNKNOWN)
            answer.set_exception(_error(code))
        else:
            answer.set_result(reply)


def _error(code: grpc.StatusCode) -> aio.AioRpcError:
    return aio.AioRpcError(code, aio.Metadata(), aio.Metadata())
