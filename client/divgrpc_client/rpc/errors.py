"""Errors of failed calls.

Every failure of a call is an `RpcError`. If the core has an error class for the server's reason,
the `RpcError` is also an instance of that class. So `except IndexNotFoundError` works the same over
gRPC and in process.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, wraps
from typing import Any, Final

import grpc

from divgrpc import errors as core

# Classes for reasons that the core lacks, such as a full queue, and for errors of gRPC itself.
_BY_CODE: Final[dict[grpc.StatusCode, type[core.DivgrpcError]]] = {
    grpc.StatusCode.INVALID_ARGUMENT: core.InvalidArgumentError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: core.LimitExceededError,
    grpc.StatusCode.UNAUTHENTICATED: core.UnauthenticatedError,
    grpc.StatusCode.PERMISSION_DENIED: core.PermissionDeniedError,
    grpc.StatusCode.UNAVAILABLE: core.UnavailableError,
}


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed call.

    `field_violations` are pairs of a field and a description. `retry_after` is the server's advice
    when to retry, in seconds, or None. `elapsed` is the duration of the call in seconds.
    """

    code: grpc.StatusCode
    reason: str
    detail: str
    method: str
    target: str
    elapsed: float
    request_id: str = ""
    field_violations: tuple[tuple[str, str], ...] = ()
    retry_after: float | None = None

    def __str__(self) -> str:
        request = f", request {self.request_id}" if self.request_id else ""
        return (
            f"{self.detail} ({self.code.name} from {self.method} at {self.target} "
            f"after {self.elapsed:.3f} s{request})"
        )


class RpcError(core.DivgrpcError):
    """A call failed.

    code: a `grpc.StatusCode`.
    reason: a stable identifier in upper case, such as INDEX_NOT_FOUND.
    detail: the server's message.
    field_violations: pairs of a field of the request and a description.
    field: the field of the first violation, or empty.
    retry_after: seconds after which to retry, or None.
    request_id: the id of the call in the server's log, or empty.

    The text of the error also has the method, the target and the duration of the call.
    """

    def __init__(self, failure: Failure) -> None:
        # super() would call __init__ of a core error, which takes other arguments.
        Exception.__init__(self, str(failure))
        self.failure = failure
        self.code = failure.code
        self.reason = failure.reason  # type: ignore[misc]  # a class's word, or the server's own
        self.detail = failure.detail
        self.field_violations = failure.field_violations
        self.field = failure.field_violations[0][0] if failure.field_violations else ""
        self.retry_after = failure.retry_after
        self.request_id = failure.request_id

    def __reduce__(self) -> tuple[object, ...]:
        return rpc_error, (self.failure,)


def add_call_attributes(error: BaseException) -> None:
    """Give an argument error of the client the attributes of `RpcError`, with their values.

    The server would have answered with the same code and field. Other errors are left unchanged.
    """
    if isinstance(error, core.InvalidArgumentError) and not isinstance(error, RpcError):
        error.code = grpc.StatusCode.INVALID_ARGUMENT
        error.detail = str(error)
        error.field_violations = ((error.field, error.detail),)


def with_call_attributes(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method whose argument errors have the attributes of `RpcError`."""

    @wraps(method)
    def checked(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401  # any method's
        try:
            return method(*arguments, **options)
        except core.InvalidArgumentError as error:
            add_call_attributes(error)
            raise

    return checked


class StallError(Exception):
    """A stream had no message for too long; the clients convert this error to an `RpcError`."""


class ClientStateError(core.DivgrpcError):
    """The client was closed, or belongs to another process or event loop."""

    reason = "CLIENT_STATE"


def rpc_error(failure: Failure) -> RpcError:
    """Return an `RpcError` that is also an instance of the core's class for its reason or code."""
    return _kind(failure.reason, failure.code)(failure)


@cache
def _kind(reason: str, code: grpc.StatusCode) -> type[RpcError]:
    kind = _core_errors().get(reason) or _BY_CODE.get(code)
    if kind is None:
        return RpcError
    return type(f"Rpc{kind.__name__}", (RpcError, kind), {"__doc__": kind.__doc__})


def _core_errors() -> dict[str, type[core.DivgrpcError]]:
    kinds = (kind for kind in vars(core).values() if isinstance(kind, type))
    our_kinds = (kind for kind in kinds if issubclass(kind, core.DivgrpcError))
    return {kind.reason: kind for kind in our_kinds if kind is not core.DivgrpcError}
