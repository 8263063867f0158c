"""What the failure of a call to a shard server says."""

from typing import Final

from google.protobuf.message import DecodeError
from google.rpc import code_pb2, status_pb2
from grpc import aio

from divgrpc.sharding.messages import MESSAGE_FIELD
from divgrpc_server.front.refusals import RefusedError
from divgrpc_server.front.standard_services import DETAILS_KEY

# Another replica may answer what one answers with one of these codes.
ELSEWHERE: Final = (code_pb2.UNAVAILABLE, code_pb2.RESOURCE_EXHAUSTED, code_pb2.DATA_LOSS)

# Codes of a server that understands a call and lets it in.
_ANSWERS: Final = (
    *ELSEWHERE, code_pb2.NOT_FOUND, code_pb2.ABORTED, code_pb2.INTERNAL, code_pb2.INVALID_ARGUMENT,
)  # fmt: skip

# Fragments of gRPC's messages about a connection, and what they mean for the operator.
_CAUSES: Final = (
    ("WRONG_VERSION_NUMBER", "it does not speak TLS: start it with --tls-cert and --tls-key"),
    (
        "Hostname Verification Check failed",
        "its certificate is for another name: give that as --cluster-name, or make a certificate"
        " for the address",
    ),
    ("CERTIFICATE_VERIFY_FAILED", "its certificate is not from an authority in --cluster-ca"),
    (
        "Socket closed",
        "it closes the connection: it may speak TLS, which needs --cluster-ca, or demand the"
        " certificate of this server, --tls-cert",
    ),
)


def status_of_call(error: aio.AioRpcError) -> status_pb2.Status:
    """Return the status of a failed call; without details unless the server has sent some."""
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            try:
                return status_pb2.Status.FromString(value)
            except DecodeError:
                break
    return status_pb2.Status(code=error.code().value[0], message=error.details() or "")


def describe_call(error: aio.AioRpcError) -> str:
    """Return the code and the message of a failed call."""
    return f"{error.code().name}: {status_of_call(error).message}"


def advice_on(error: aio.AioRpcError) -> str:
    """Return what to change after a call that met no server, "" if that is not known."""
    detail = error.details() or ""
    return next((text for sign, text in _CAUSES if sign in detail), "")


def is_answer(status: status_pb2.Status) -> bool:
    """Return whether a server has understood a call.

    If it names the field of a message, the message is malformed. Any other field is one of the
    request, whose filter the index may not know.
    """
    if not status.details or status.code not in _ANSWERS:
        return False
    is_malformed = RefusedError(status.SerializeToString()).field == MESSAGE_FIELD
    return status.code != code_pb2.INVALID_ARGUMENT or not is_malformed


def refusal_in(error: aio.AioRpcError) -> str | None:
    """Return why a server refuses a call, "" if it answers, None if that is not known."""
    status = status_of_call(error)
    if is_answer(status):
        return ""
    if status.code in (code_pb2.DEADLINE_EXCEEDED, code_pb2.CANCELLED, *ELSEWHERE):
        return None
    return describe_call(error)


def is_unreachable(error: aio.AioRpcError) -> bool:
    """Return whether gRPC says so: nothing listens there, or the connection was lost."""
    status = status_of_call(error)
    return status.code == code_pb2.UNAVAILABLE and not status.details
