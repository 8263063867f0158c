"""Exceptions that divgrpc raises deliberately; all derive from `DivgrpcError`.

The `reason` of a class is the code that gRPC callers receive. The server maps each class to a gRPC
status (`divgrpc_server.codec.statuses`). A message about an argument names the argument and says
what is wrong. Servers send messages to callers, so messages should contain neither paths nor
tracebacks.
"""

from typing import Any, ClassVar


class DivgrpcError(Exception):
    """Base class of all exceptions that divgrpc raises deliberately; `reason` is a stable code."""

    reason: ClassVar[str] = "ERROR"


class InvalidArgumentError(DivgrpcError, ValueError):
    """An argument is invalid, in itself or for this index.

    `field` is the name of the argument, such as ``"diversity"``. Errors of the gRPC clients also
    have the attributes of `divgrpc_client.RpcError`.
    """

    reason = "INVALID_ARGUMENT"
    # The clients set these attributes, even on errors that they detect themselves. Without a
    # client, `code` is None.
    code: Any = None
    detail: str = ""
    field_violations: tuple[tuple[str, str], ...] = ()
    retry_after: float | None = None
    request_id: str = ""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def invalid(field: str, rule: str) -> InvalidArgumentError:
    """Return an error whose message begins with the field: `invalid("k", "must be above 0")`."""
    return InvalidArgumentError(field, f"{field} {rule}")


class UnsupportedError(DivgrpcError):
    """The request is valid, but this version does not implement it.

    `field` is the name of the argument.
    """

    reason = "UNSUPPORTED"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class UnfitIndexError(DivgrpcError):
    """The request is valid, but this index lacks data for it, such as labels.

    `field` is the name of the argument that needs the data.
    """

    reason = "INDEX_UNFIT"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class ConditionFailedError(DivgrpcError):
    """No results meet the quotas, or a write was not made because points are not as it demands.

    `field` is the name of the argument that states the condition.
    """

    reason = "CONDITION_FAILED"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class IndexNotFoundError(DivgrpcError):
    """There is no index with this name or in this folder."""

    reason = "INDEX_NOT_FOUND"


class IndexExistsError(DivgrpcError):
    """An index with this name exists, and the build does not replace it."""

    reason = "INDEX_EXISTS"


class BuildUnderWayError(DivgrpcError):
    """Another process is building or changing the same index."""

    reason = "BUILD_UNDER_WAY"


class IndexChangedError(DivgrpcError):
    """The index was replaced during a call that needs one generation throughout."""

    reason = "GENERATION_CHANGED"


class IndexDamagedError(DivgrpcError):
    """Files of an index are missing, unreadable, too short, or changed."""

    reason = "INDEX_DAMAGED"


class OtherFormatError(DivgrpcError):
    """The format of the index is too new or too old for this version to read."""

    reason = "OTHER_FORMAT"


class LimitExceededError(DivgrpcError):
    """A limit is exceeded, such as a limit on rows, bytes, memory or concurrent calls."""

    reason = "LIMIT_EXCEEDED"


class MergesBehindError(LimitExceededError):
    """An index has no room for a write until a merge ends; the same write may succeed later.

    Only a server raises this error. A `divgrpc.Collection` waits for the merge.
    """

    reason = "MERGES_BEHIND"

    def __init__(self, unmerged: str) -> None:
        super().__init__(
            f"{unmerged} were written since the last merge, and there is no room for more until the"
            " next one ends; send the same write again shortly"
        )


class StorageFullError(DivgrpcError):
    """The disk that holds the indexes is full."""

    reason = "STORAGE_FULL"


class StorageInUseError(DivgrpcError):
    """Another process uses this data folder, or has this index open for writing."""

    reason = "STORAGE_IN_USE"


class UnauthenticatedError(DivgrpcError):
    """The server does not know the caller: the token is missing, unknown or has expired."""

    reason = "UNAUTHENTICATED"


class PermissionDeniedError(DivgrpcError):
    """The role of the caller does not permit the call, or its token does not cover the index."""

    reason = "PERMISSION_DENIED"


class UnavailableError(DivgrpcError):
    """No server or worker can answer now; the same call may succeed later."""

    reason = "UNAVAILABLE"
