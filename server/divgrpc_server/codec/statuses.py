"""The gRPC status of each error: a table of status codes, and the details of a status.

A status is a `google.rpc.Status`, which a front sends at the end of a call. This module does not
import grpc, because workers and builders use it too. An error that is not in the table is a fault
of the server. In this case the traceback is logged with an error id, and the caller receives only
the error id.
"""

import errno
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, NamedTuple, Protocol

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from google.rpc import code_pb2, error_details_pb2, status_pb2

from divgrpc import errors
from divgrpc_protos.arrays import MatrixError
from divgrpc_protos.records import UnknownWordError
from divgrpc_server.ipc.tags import log_fields, request_id_of

DOMAIN: Final = "divgrpc"
# Number of shards or places that an error names.
_NAMES_MAX: Final = 20
# Number of servers whose faults an error names; each takes more than a hundred characters.
_FAULTS_MAX: Final = 3
_MESSAGE_CHARACTERS: Final = 1000  # gRPC ends calls whose trailers are larger than 8 KiB
_METADATA_CHARACTERS: Final = 1000


class QueueFullError(errors.LimitExceededError):
    """The queue of the front is full."""

    reason = "QUEUE_FULL"


class BuildsFullError(errors.LimitExceededError):
    """The limit on concurrent builds is reached."""

    reason = "BUILDS_FULL"

    def __init__(self) -> None:
        super().__init__("the server is running its maximum number of builds; try again later")


class EvaluationsFullError(errors.LimitExceededError):
    """The limit on concurrent evaluations is reached."""

    reason = "EVALUATIONS_FULL"

    def __init__(self) -> None:
        super().__init__("the server is running its maximum number of evaluations; try again")


class ReplyTooLargeError(errors.LimitExceededError):
    """The response would exceed the maximum size of a message."""

    reason = "REPLY_TOO_LARGE"


class MessageTooLargeError(errors.LimitExceededError):
    """The request exceeds the maximum size of a message."""

    reason = "MESSAGE_TOO_LARGE"


class ReadOnlyError(errors.DivgrpcError):
    """The call would change an index, and this server only reads indexes."""

    reason = "READ_ONLY"

    def __init__(self) -> None:
        super().__init__(
            "this server is read-only; send the call to the server that writes to its indexes"
        )


class ReplicaBehindError(errors.UnavailableError):
    """A read-only server has not seen the write that a query must show.

    `metadata` goes into the details of the status.
    """

    reason = "REPLICA_BEHIND"

    def __init__(self, least: int, sequence: int) -> None:
        super().__init__(
            f"min_sequence is {least}, and this read-only server has seen merged writes up to"
            f" {sequence}; run `divgrpc compact` to merge later ones, or ask the server that writes"
        )
        self.metadata = {"sequence": str(sequence)}


class MissingPlace(NamedTuple):
    """A place of shards where no server replies, and the number of all places.

    addresses: those of its servers, host:port, or the last ones if it has none now.
    faults: what is known of these servers, in words.
    """

    number: int
    place_count: int
    addresses: tuple[str, ...]
    faults: tuple[str, ...]


class ShardsMissingError(errors.UnavailableError):
    """No server that has one of `shards` is running.

    `metadata` goes into the details of the status.
    """

    reason = "SHARDS_MISSING"

    def __init__(
        self, shards: Sequence[int], places: Sequence[MissingPlace] = (), remedy: str = ""
    ) -> None:
        """Take the numbers of the shards, and the places that have them if they are known.

        remedy: what else the caller can do, "" for nothing.
        """
        self.shards, self.places = shards, places
        noun = "shards" if len(shards) > 1 else "shard"
        text = f"no server with {noun} {_names(shards)} of the index replies; retry"
        numbers = [place.number for place in places]
        if places:
            where = _describe_places(numbers, places[0].place_count)
            text += f", and if that does not help, check the shard servers at {where}"
        text += f"; {remedy}" if remedy else ""
        super().__init__(text + _describe_faults([*chain(*(place.faults for place in places))]))
        self.metadata = {"shards": _list_of(shards)}
        if places:
            addresses = [*chain(*(place.addresses for place in places))]
            self.metadata |= {"places": _list_of(numbers), "addresses": _list_of(addresses)}

    def with_remedy(self, remedy: str) -> "ShardsMissingError":
        """Return the same error with what else the caller can do."""
        return ShardsMissingError(self.shards, self.places, remedy)

    @classmethod
    def join(cls, errors: Sequence["ShardsMissingError"]) -> "ShardsMissingError":
        """Return an error about the shards and places of several ones."""
        shards = {shard for error in errors for shard in error.shards}
        places = {place.number: place for error in errors for place in error.places}
        return cls(sorted(shards), [places[number] for number in sorted(places)])


class PlacesMissingError(errors.DivgrpcError):
    """Some places of shards have no server, so nobody could answer from an index that is built."""

    reason = "PLACES_MISSING"

    def __init__(self, places: Sequence[int], place_count: int, faults: Sequence[str] = ()) -> None:
        """Take the numbers of the places, and what is known of the servers there."""
        super().__init__(
            f"no shard server serves at {_describe_places(places, place_count)}, so no query on"
            " the index would be answered: start shard servers or nodes, and build again"
            + _describe_faults(faults)
        )


class MemoryMissingError(errors.DivgrpcError):
    """The machines of shard servers lack memory for the shards of a build."""

    reason = "MEMORY_MISSING"

    def __init__(self, shard_bytes: int, room_bytes: int, promised_bytes: int = 0) -> None:
        """Take the bytes of the largest shard, and of the largest for which there is memory.

        promised_bytes: what other builds may take beside that.
        """
        promise, remedy = "", ""
        if promised_bytes:
            promise = f" beside {promised_bytes:,} for builds that run"
            remedy = "wait for these, "
        super().__init__(
            f"a shard needs {shard_bytes:,} bytes of memory, and the shard servers with the least"
            f" memory have {room_bytes:,}{promise}: {remedy}start nodes, delete indexes, or give"
            " `ray start` more --memory, and build again; nothing was built"
        )


class EngineUnreachableError(errors.UnavailableError):
    """What starts shard servers, and keeps memory for their shards, cannot be reached."""

    reason = "ENGINE_UNREACHABLE"

    def __init__(self, fault: str) -> None:
        """Take what is known of it, in words."""
        super().__init__(
            f"{fault}; queries go on, but nothing is built or deleted meanwhile; retry, and if"
            " that does not help, look into the log of the server"
        )


class WorkersEndedError(errors.UnavailableError):
    """Two workers ended while they answered a request."""

    reason = "WORKERS_ENDED"

    def __init__(self) -> None:
        super().__init__("two workers ended while they answered this request")


class OutOfMemoryError(errors.LimitExceededError):
    """The system has no free memory or descriptors."""

    reason = "OUT_OF_MEMORY"


class QuotaError(errors.LimitExceededError):
    """A quota of the caller's token is used up."""

    reason = "QUOTA_EXCEEDED"


class TokenMissingError(errors.UnauthenticatedError):
    """The call has no token."""

    reason = "TOKEN_MISSING"

    def __init__(self) -> None:
        super().__init__("the call has no token; send the metadata authorization: Bearer TOKEN")


class TokenMalformedError(errors.UnauthenticatedError):
    """The metadata of the call is not a token."""

    reason = "TOKEN_MALFORMED"

    def __init__(self) -> None:
        super().__init__("the metadata authorization must be Bearer and one token")


class TokenRefusedError(errors.UnauthenticatedError):
    """The token of the call is not known, or has expired; which of both is not said."""

    reason = "TOKEN_REFUSED"

    def __init__(self) -> None:
        super().__init__("the token is not known or has expired: ask the operator for a new one")


class ClusterTokenRefusedError(errors.UnauthenticatedError):
    """A router has another token than the shard server that it asks."""

    reason = "CLUSTER_TOKEN_REFUSED"

    def __init__(self) -> None:
        super().__init__(
            "this shard server has another cluster token: give all servers of the cluster the same"
            " file as --cluster-token"
        )


class LateError(errors.DivgrpcError):
    """The caller's deadline passed, or an upload made no progress."""

    reason = "LATE"


class WithdrawnError(errors.DivgrpcError):
    """The caller has withdrawn a query of a stream."""

    reason = "WITHDRAWN"

    def __init__(self) -> None:
        super().__init__("the query was withdrawn")


class PoisonError(errors.DivgrpcError):
    """The request recently killed two workers, so it is refused."""

    reason = "ENDS_WORKERS"


class MalformedError(errors.DivgrpcError):
    """The bytes cannot be parsed as the expected message."""

    reason = "MALFORMED_MESSAGE"


@dataclass(frozen=True, slots=True)
class Meaning:
    """The status code of an error, and the seconds that a caller should wait before a retry."""

    code: int
    retry_after: float | None = None


TABLE: Final[dict[type[BaseException], Meaning]] = {
    errors.InvalidArgumentError: Meaning(code_pb2.INVALID_ARGUMENT),
    MalformedError: Meaning(code_pb2.INVALID_ARGUMENT),
    errors.UnsupportedError: Meaning(code_pb2.UNIMPLEMENTED),
    errors.IndexNotFoundError: Meaning(code_pb2.NOT_FOUND),
    errors.IndexExistsError: Meaning(code_pb2.ALREADY_EXISTS),
    errors.BuildUnderWayError: Meaning(code_pb2.ABORTED, retry_after=1.0),
    errors.UnfitIndexError: Meaning(code_pb2.FAILED_PRECONDITION),
    errors.ConditionFailedError: Meaning(code_pb2.FAILED_PRECONDITION),
    errors.IndexChangedError: Meaning(code_pb2.ABORTED, retry_after=1.0),
    errors.IndexDamagedError: Meaning(code_pb2.DATA_LOSS),
    errors.OtherFormatError: Meaning(code_pb2.FAILED_PRECONDITION),
    errors.StorageInUseError: Meaning(code_pb2.FAILED_PRECONDITION),
    ReadOnlyError: Meaning(code_pb2.FAILED_PRECONDITION),
    PlacesMissingError: Meaning(code_pb2.FAILED_PRECONDITION),
    MemoryMissingError: Meaning(code_pb2.FAILED_PRECONDITION),
    errors.LimitExceededError: Meaning(code_pb2.RESOURCE_EXHAUSTED),
    errors.MergesBehindError: Meaning(code_pb2.RESOURCE_EXHAUSTED, retry_after=0.5),
    errors.StorageFullError: Meaning(code_pb2.RESOURCE_EXHAUSTED),
    QueueFullError: Meaning(code_pb2.RESOURCE_EXHAUSTED, retry_after=0.1),
    BuildsFullError: Meaning(code_pb2.RESOURCE_EXHAUSTED, retry_after=5.0),
    EvaluationsFullError: Meaning(code_pb2.RESOURCE_EXHAUSTED, retry_after=5.0),
    OutOfMemoryError: Meaning(code_pb2.RESOURCE_EXHAUSTED, retry_after=1.0),
    errors.UnavailableError: Meaning(code_pb2.UNAVAILABLE, retry_after=1.0),
    errors.UnauthenticatedError: Meaning(code_pb2.UNAUTHENTICATED),
    errors.PermissionDeniedError: Meaning(code_pb2.PERMISSION_DENIED),
    LateError: Meaning(code_pb2.DEADLINE_EXCEEDED),
    WithdrawnError: Meaning(code_pb2.CANCELLED),
    PoisonError: Meaning(code_pb2.INTERNAL),
    errors.DivgrpcError: Meaning(code_pb2.INTERNAL),
}


_WITH_FIELD: Final = (
    errors.InvalidArgumentError,
    errors.UnsupportedError,
    errors.UnfitIndexError,
    errors.ConditionFailedError,
)


class Log(Protocol):
    """The methods of a structlog logger that this module uses."""

    def error(self, event: str, **values: object) -> object:
        """Log an error."""


def explain(error: BaseException, tag: str, log: Log) -> status_pb2.Status:
    """Return the status of any error, and log the error if it is a fault of the server.

    tag: the tag of the call (`ipc.tags`).
    """
    request_id = request_id_of(tag)
    expected_error = expected(error)
    if expected_error is not None:
        return status_of(expected_error, tag)
    error_id = secrets.token_hex(8)
    log.error("fault", error_id=error_id, **log_fields(tag), exc_info=error)
    status = status_pb2.Status(
        code=code_pb2.INTERNAL, message=f"a fault of the server; look for {error_id} in its log"
    )
    _add(
        status,
        error_details_pb2.ErrorInfo(
            reason="FAULT", domain=DOMAIN, metadata={"request_id": request_id, "error_id": error_id}
        ),
    )
    return status


# What glibc says if it has no memory for a library.
_NO_MEMORY: Final = "failed to map segment from shared object"


def expected(error: BaseException) -> errors.DivgrpcError | None:
    """Return `error` as an error of this package, or None if it is a fault of the server."""
    if isinstance(error, errors.DivgrpcError):
        return error
    if isinstance(error, DecodeError):
        return MalformedError("the message is not what the method takes")
    if isinstance(error, MatrixError | UnknownWordError):
        return errors.InvalidArgumentError(error.field, str(error))
    # Modules that a process loads late need memory too.
    if isinstance(error, MemoryError) or (
        isinstance(error, ImportError) and _NO_MEMORY in str(error)
    ):
        return OutOfMemoryError("there is not enough memory for this request")
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        return OutOfMemoryError(
            "there are not enough descriptors (ulimit -n) or memory for this request"
        )
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return errors.StorageFullError("there is no room left where indexes are kept")
    return None


def status_of(error: errors.DivgrpcError, tag: str) -> status_pb2.Status:
    """Return the status of an error of this package, for a call with this tag (`ipc.tags`)."""
    meaning = next(TABLE[kind] for kind in type(error).__mro__ if kind in TABLE)
    message = str(error)[:_MESSAGE_CHARACTERS]
    status = status_pb2.Status(code=meaning.code, message=message)
    metadata = {"request_id": request_id_of(tag)}
    if isinstance(error, ReplicaBehindError | ShardsMissingError):
        metadata |= error.metadata
    _add(
        status,
        error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=metadata),
    )
    if isinstance(error, _WITH_FIELD) and error.field:
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=error.field, description=message, reason=error.reason
        )
        _add(status, error_details_pb2.BadRequest(field_violations=[violation]))
    if meaning.retry_after is not None:
        delay = Duration()
        delay.FromNanoseconds(int(meaning.retry_after * 1e9))
        _add(status, error_details_pb2.RetryInfo(retry_delay=delay))
    return status


def _describe_places(numbers: Sequence[int], place_count: int) -> str:
    noun = "places" if len(numbers) > 1 else "place"
    return f"{noun} {_names(numbers)} of {place_count}, counted from 0"


def _describe_faults(faults: Sequence[str]) -> str:
    """Return what is known of the first of some servers, to end a message."""
    texts = [*faults[:_FAULTS_MAX]]
    if len(faults) > _FAULTS_MAX:
        texts.append(f"and {len(faults) - _FAULTS_MAX} more")
    return "".join(f"; {text}" for text in texts)


def _list_of(values: Sequence[object]) -> str:
    """Return values with commas, without the last ones if they exceed the limit of a text."""
    text = ",".join(map(str, values))
    if len(text) <= _METADATA_CHARACTERS:
        return text
    return text[: _METADATA_CHARACTERS + 1].rpartition(",")[0]


def _names(numbers: Sequence[int]) -> str:
    """Return the first of some numbers as a text, and how many more there are."""
    names = [*map(str, numbers[:_NAMES_MAX])]
    if len(numbers) > _NAMES_MAX:
        names.append(f"{len(numbers) - _NAMES_MAX} more")
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _add(status: status_pb2.Status, detail: object) -> None:
    status.details.add().Pack(detail)
