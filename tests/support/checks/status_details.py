"""The details of a failed call: reason, fields, metadata and retry delay."""

from collections.abc import Callable
from typing import NamedTuple

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status


class Details(NamedTuple):
    """The parts of a google.rpc.Status; `retry_after` is in seconds, None without a delay."""

    code: grpc.StatusCode
    message: str
    reason: str
    domain: str
    metadata: dict[str, str]
    fields: tuple[str, ...]
    retry_after: float | None


def failure(call: Callable[..., object], *arguments: object, **options: object) -> Details:
    """Make a call that must fail with an ErrorInfo, and return the details."""
    with pytest.raises(grpc.RpcError) as error_info:
        call(*arguments, **options)
    status = rpc_status.from_call(error_info.value)
    assert status is not None, f"no details: {error_info.value}"
    return details_of_status(error_info.value.code(), status)


def code_of_failure(
    call: Callable[..., object], *arguments: object, **options: object
) -> grpc.StatusCode:
    """Make a call that must fail, with or without details, and return the status code."""
    with pytest.raises(grpc.RpcError) as error_info:
        call(*arguments, **options)
    return error_info.value.code()


def details_of_status(code: grpc.StatusCode, status: object) -> Details:
    """Return the details of a google.rpc.Status."""
    info = error_details_pb2.ErrorInfo()
    request = error_details_pb2.BadRequest()
    retry = error_details_pb2.RetryInfo()
    kinds = {
        type(detail).__name__
        for item in status.details  # type: ignore[attr-defined]  # googleapis ships no types
        for detail in (info, request, retry)
        if item.Unpack(detail)
    }
    assert "ErrorInfo" in kinds
    seconds = retry.retry_delay.ToNanoseconds() / 1e9 if "RetryInfo" in kinds else None
    fields = tuple(violation.field for violation in request.field_violations)
    message = status.message  # type: ignore[attr-defined]  # as above
    return Details(code, message, info.reason, info.domain, dict(info.metadata), fields, seconds)
