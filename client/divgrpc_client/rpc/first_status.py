"""The status that a server ended a stream with, kept from being written over.

When a server refuses a stream while the client is still writing, grpc.aio receives the status, then
fails a write, and puts INTERNAL in the status's place (grpc issue 36066). Its done-callbacks run
before that, so what the server said is taken down there.
"""

from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

import grpc
import grpc.aio

ResultT = TypeVar("ResultT")
RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")


class FirstStatus(Generic[RequestT, ResponseT]):
    """Watches one call of grpc.aio."""

    def __init__(self, call: "grpc.aio.StreamStreamCall[RequestT, ResponseT]") -> None:
        self._error: grpc.aio.AioRpcError | None = None
        call.add_done_callback(self._note)

    def of(self, error: grpc.RpcError) -> grpc.RpcError:
        """Return what the server said, or `error` if it said nothing that explains it."""
        return self._error or error

    def _note(self, call: Any) -> None:  # noqa: ANN401  # the call, which is Any to its callbacks
        code = _at_once(call.code())
        if code in (None, grpc.StatusCode.OK) or self._error is not None:
            return
        trailers = _at_once(call.trailing_metadata()) or grpc.aio.Metadata()
        details = _at_once(call.details())
        self._error = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailers, details)


def _at_once(value: Coroutine[Any, Any, ResultT]) -> ResultT | None:
    # The status is there when callbacks run, so these coroutines end without waiting; and waiting
    # is what must not be done, since the status would be gone afterwards.
    try:
        value.send(None)
    except StopIteration as end:
        result: ResultT = end.value
        return result
    value.close()
    return None
