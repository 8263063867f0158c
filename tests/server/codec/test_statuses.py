"""The status of each error, and what an internal fault tells the caller."""

import errno
from unittest.mock import Mock

import pytest
from google.protobuf.message import DecodeError
from google.rpc import code_pb2
from grpc import StatusCode

from divgrpc import errors
from divgrpc_protos.arrays import MatrixError
from divgrpc_server.codec import statuses
from support.checks.status_details import details_of_status


def subclasses(kind: type[errors.DivgrpcError]) -> list[type[errors.DivgrpcError]]:
    return [kind, *(below for child in kind.__subclasses__() for below in subclasses(child))]


CORE = [kind for kind in subclasses(errors.DivgrpcError) if kind.__module__ == "divgrpc.errors"]


@pytest.mark.parametrize("kind", CORE, ids=lambda kind: kind.__name__)
def test_every_error_of_the_core_has_a_status(kind: type[errors.DivgrpcError]) -> None:
    """An error that is not in the table would silently get the status of its base class."""
    assert kind in statuses.TABLE


def test_an_error_carries_its_details() -> None:
    """BadRequest names a wrong field, and RetryInfo tells when a retry can help."""
    log = Mock()
    status = statuses.explain(errors.InvalidArgumentError("k", "k must be 1"), "id-1", log)
    details = details_of_status(StatusCode.INVALID_ARGUMENT, status)
    assert status.code == code_pb2.INVALID_ARGUMENT
    assert (details.reason, details.fields) == ("INVALID_ARGUMENT", ("k",))
    assert (details.domain, details.metadata) == ("divgrpc", {"request_id": "id-1"})
    waiting = statuses.explain(statuses.QueueFullError("full"), "id-2", log)
    assert details_of_status(StatusCode.RESOURCE_EXHAUSTED, waiting).retry_after == 0.1
    assert log.mock_calls == []


def test_a_long_message_is_cut() -> None:
    """The message travels in trailers, whose size gRPC limits."""
    addresses = tuple(f"{'x' * 60}-{number}:50061" for number in range(256))
    place = statuses.MissingPlace(0, 1, addresses, addresses)
    for error in (
        errors.InvalidArgumentError("k", "x" * 100_000),
        statuses.ShardsMissingError(range(1_000), [place]),
    ):
        status = statuses.explain(error, "id", Mock())
        # Bytes take a third more in trailers, beside the message.
        assert len(status.SerializeToString()) < 5_000
    metadata = details_of_status(StatusCode.UNAVAILABLE, status).metadata
    assert metadata["addresses"] == ",".join(addresses[:14])
    endless = statuses.MissingPlace(0, 1, ("x" * 2_000,), ())
    assert statuses.ShardsMissingError([0], [endless]).metadata["addresses"] == ""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (DecodeError("bytes"), code_pb2.INVALID_ARGUMENT),
        (MatrixError("dense.data", "short"), code_pb2.INVALID_ARGUMENT),
        (MemoryError(), code_pb2.RESOURCE_EXHAUSTED),
        (
            ImportError("x.so: failed to map segment from shared object"),
            code_pb2.RESOURCE_EXHAUSTED,
        ),
        (OSError(errno.EMFILE, "files"), code_pb2.RESOURCE_EXHAUSTED),
        (OSError(errno.ENOSPC, "disk"), code_pb2.RESOURCE_EXHAUSTED),
        (errors.DivgrpcError("a new kind"), code_pb2.INTERNAL),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_errors_of_callers_and_the_machine_are_not_logged(error: Exception, code: int) -> None:
    """Bad requests and exhausted resources are no faults of the server."""
    log = Mock()
    assert statuses.explain(error, "id", log).code == code
    assert log.mock_calls == []


def test_a_fault_is_logged_and_not_shown() -> None:
    """The caller gets only an error id, and the log has the exception with the same id."""
    log = Mock()
    fault = ValueError("secret /path/to/file")
    status = statuses.explain(fault, "request-9", log)
    assert status.code == code_pb2.INTERNAL
    assert b"secret" not in status.SerializeToString()
    event = log.error.call_args.kwargs
    assert (event["exc_info"], event["request_id"]) == (fault, "request-9")
    assert event["error_id"] in status.message
