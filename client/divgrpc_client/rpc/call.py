"""The deadline and the metadata of one call, and its failure as an `RpcError`."""

import math
import random
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, cast

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from divgrpc_client.messages import arguments
from divgrpc_client.rpc.causes import explain_unreachable
from divgrpc_client.rpc.errors import Failure, RpcError, rpc_error
from divgrpc_client.rpc.security import Metadata, Peer
from divgrpc_client.rpc.trace_context import current_traceparent

REQUEST_ID_KEY: Final = "x-request-id"
_TRACE_KEY: Final = "traceparent"
_STATUS_KEY: Final = "grpc-status-details-bin"
_NO_STATUS: Final = status_pb2.Status()
# Reason of an error for an expired deadline, the same as the server's.
_LATE: Final = "LATE"
# Reason of an error for a call that the server, or this client, has no room for.
_OVERLOADED: Final = "OVERLOADED"
_OVERLOADED_RETRY_SECONDS: Final = 0.1
# A call does not wait in the client for longer than this share of the time to its deadline. The
# server does not let it wait for longer than this share of the rest either.
_WAIT_SHARE_MAX: Final = 0.5
# The details of gRPC when a call was cancelled at this end.
_CANCELLED_HERE: Final = ("Locally cancelled by application!", "Channel closed!")
# Reason of an error for a server whose health service reports that it does not serve queries.
_NOT_SERVING: Final = "NOT_SERVING"
# Timeouts of about three years and more mean no deadline. With a timeout of some centuries, gRPC's
# clock would overflow and the call would end at once.
_ENDLESS_SECONDS: Final = 1e8
# A refused call is sent again after a random time, up to this multiple of the time that the server
# says. So callers that were refused at once do not return at once.
_PAUSE_MAX: Final = 2.0
# Status codes by their number in a google.rpc.Status.
CODES: Final = {code.value[0]: code for code in grpc.StatusCode}


class RpcCall:
    """A call that begins when this object is made.

    `peer` is the server. `timeout` is the maximum duration in seconds, including retries and all
    messages of a batch. Infinity or None means no deadline. Raises `InvalidArgumentError` for a
    wrong timeout, request id or file of a token.
    """

    __slots__ = ("_deadline", "_peer", "_request_id", "_started", "metadata", "method")

    def __init__(
        self, method: str, peer: Peer, *, timeout: float | None, request_id: str | None
    ) -> None:
        self.method = method
        self._peer = peer
        self._request_id = arguments.request_id(request_id)
        self._started = time.monotonic()
        seconds = math.inf if timeout is None else arguments.seconds("timeout", timeout)
        self._deadline = self._started + seconds if seconds < _ENDLESS_SECONDS else math.inf
        pairs = ((REQUEST_ID_KEY, self._request_id), (_TRACE_KEY, current_traceparent()))
        metadata = tuple((key, value) for key, value in pairs if value)
        self.metadata: Metadata | None = (*metadata, *peer.metadata()) or None

    @property
    def is_late(self) -> bool:
        """Whether the deadline has passed."""
        return time.monotonic() >= self._deadline

    def seconds_left(self) -> float | None:
        """Return the seconds until the deadline, or None without a deadline.

        Raises `RpcError` if the deadline has passed, because gRPC might still send such a call.
        """
        if self._deadline == math.inf:
            return None
        remaining = self._deadline - time.monotonic()
        if remaining <= 0:
            detail = "the deadline passed before the call was sent"
            raise self._error(grpc.StatusCode.DEADLINE_EXCEEDED, _LATE, detail)
        return remaining

    def seconds_or_unready(self, obstacle: RpcError) -> float | None:
        """Return `seconds_left`, or raise the error for a server that was not ready in time.

        `obstacle` says why the server was not ready, and becomes the cause of the error.
        """
        try:
            return self.seconds_left()
        except RpcError:
            detail = f"nothing answered at {self._peer.target}"
            if obstacle.reason == _NOT_SERVING:
                detail = f"the server at {self._peer.target} is not ready"
            if obstacle.code is grpc.StatusCode.UNAVAILABLE:
                detail = f"{detail}: {obstacle.detail}"
            unavailable = grpc.StatusCode.UNAVAILABLE
            raise self._error(unavailable, unavailable.name, detail) from obstacle

    def start(self, method: Callable[..., Any], request: object) -> Any:  # noqa: ANN401  # either stack's call
        """Call a method of a stub with a request or an iterator of requests."""
        return method(request, timeout=self.seconds_left(), metadata=self.metadata)

    def seconds_to_wait(self) -> float | None:
        """Return the seconds that the call may wait for its turn; None without a deadline.

        Raises as `seconds_left`.
        """
        remaining = self.seconds_left()
        return None if remaining is None else _WAIT_SHARE_MAX * remaining

    def pause_after(self, failure: RpcError) -> float | None:
        """Return the seconds after which the server may have room for a call that it has refused.

        Returns None if the server does not say so, or if the deadline is earlier.
        """
        is_full = failure.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        is_full &= failure.reason != _OVERLOADED  # gRPC repeats such calls, with a budget
        if not is_full or failure.retry_after is None:
            return None
        seconds = failure.retry_after * random.uniform(1, _PAUSE_MAX)  # noqa: S311  # no secret
        return seconds if time.monotonic() + seconds < self._deadline else None

    def failed(self, error: grpc.RpcError, has_begun: bool = False) -> RpcError:
        """Convert an error of either gRPC stack and its trailers to an `RpcError`.

        `has_begun` says that the index accepted an earlier part of the same call. If it now refuses
        a part as FAILED_PRECONDITION, it must have been replaced.
        """
        if has_begun and error.code() is grpc.StatusCode.FAILED_PRECONDITION:
            return self.unsettled()
        status = status_pb2.Status()
        trailers = cast("Iterable[tuple[str, bytes]]", error.trailing_metadata() or ())
        try:
            # Without iter(), dict() would treat the trailers of grpc.aio 1.76 as a mapping.
            status.ParseFromString(dict(iter(trailers)).get(_STATUS_KEY, b""))
        except DecodeError:
            # Another program, such as a proxy, wrote these details. The code and the message are
            # still valid.
            status.Clear()
        code = error.code()
        reason = _LATE if code is grpc.StatusCode.DEADLINE_EXCEEDED else ""
        detail = error.details() or code.name.lower()
        is_bare = code is grpc.StatusCode.CANCELLED and not status.details
        if is_bare and detail not in _CANCELLED_HERE:
            return self.overloaded("the server ended the call, because it has too much to do")
        if code is grpc.StatusCode.UNAVAILABLE and not status.details:
            detail = explain_unreachable(self._peer, detail)
        return self._error(code, reason, detail, status)

    def refused(self, status: status_pb2.Status) -> RpcError:
        """Convert a status that was sent inside a message to an `RpcError`."""
        code = CODES.get(status.code, grpc.StatusCode.UNKNOWN)
        return self._error(code, "", status.message, status)

    def overloaded(self, detail: str) -> RpcError:
        """Return the error for a call that nobody has room for."""
        return self._error(
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            _OVERLOADED,
            f"{detail}; try again shortly",
            retry_after=_OVERLOADED_RETRY_SECONDS,
        )

    def stalled(self, seconds: float) -> RpcError:
        """Return the error for a stream without any message for `seconds`."""
        detail = f"nothing moved for {seconds:g} s"
        return self._error(grpc.StatusCode.DEADLINE_EXCEEDED, "STALLED", detail)

    def not_serving(self) -> RpcError:
        """Return the error for a server that answers, but does not serve queries yet."""
        detail = "it still compiles its kernels, which is done once, or none of its workers runs"
        return self._error(grpc.StatusCode.UNAVAILABLE, _NOT_SERVING, detail)

    def broken(self, detail: str) -> RpcError:
        """Return the error for an answer that violates the API."""
        return self._error(grpc.StatusCode.INTERNAL, "BAD_ANSWER", detail)

    def unsettled(self) -> RpcError:
        """Return the error for a batch that no single generation answered."""
        detail = "the index was replaced again and again while parts of a batch were answered"
        return self._error(grpc.StatusCode.ABORTED, "GENERATION_CHANGED", detail)

    def _error(
        self,
        code: grpc.StatusCode,
        reason: str,
        detail: str,
        status: status_pb2.Status = _NO_STATUS,
        retry_after: float | None = None,
    ) -> RpcError:
        """Return an error; the details of the server's `status`, if any, take precedence."""
        info = error_details_pb2.ErrorInfo()
        bad_request = error_details_pb2.BadRequest()
        retry = error_details_pb2.RetryInfo()
        for detail_message in status.details:
            detail_message.Unpack(info)
            detail_message.Unpack(bad_request)
            if detail_message.Unpack(retry):
                retry_after = retry.retry_delay.ToTimedelta().total_seconds()
        return rpc_error(
            Failure(
                code=code,
                reason=info.reason or reason or code.name,
                detail=detail,
                method=self.method,
                target=self._peer.target,
                elapsed=time.monotonic() - self._started,
                request_id=info.metadata.get("request_id", self._request_id),
                field_violations=tuple(
                    (v.field, v.description) for v in bad_request.field_violations
                ),
                retry_after=retry_after,
            )
        )
