"""Everything divgrpc raises on purpose.

One tree with one root. A class carries the `reason` that the wire shows. The server maps classes
to gRPC statuses (`divgrpc_server.codec.statuses`). Messages name the argument, the fault and the
fix. They never hold a path or a traceback, because callers on the other side of a network read
them.
"""

from typing import ClassVar


class DivgrpcError(Exception):
    """Root of all errors raised on purpose."""

    reason: ClassVar[str] = "ERROR"


class InvalidArgumentError(DivgrpcError, ValueError):
    """An argument is wrong whatever the state of the index.

    `field` is the argument's name as the caller wrote it, such as ``"diversity"``.
    """

    reason = "INVALID_ARGUMENT"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class UnsupportedError(DivgrpcError):
    """The request is well formed and asks for something that is not there yet."""

    reason = "UNSUPPORTED"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class UnfitIndexError(DivgrpcError):
    """The request is well formed, and this index lacks what it needs, such as categories.

    `field` is the argument that needs it.
    """

    reason = "INDEX_UNFIT"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class IndexNotFoundError(DivgrpcError):
    """There is no index of that name, or at that place."""

    reason = "INDEX_NOT_FOUND"


class IndexExistsError(DivgrpcError):
    """An index of that name is there, and the build was not told to replace it."""

    reason = "INDEX_EXISTS"


class BuildUnderWayError(DivgrpcError):
    """Another build of the same index is under way."""

    reason = "BUILD_UNDER_WAY"


class IndexChangedError(DivgrpcError):
    """The index was replaced while something was under way that is of one generation alone."""

    reason = "GENERATION_CHANGED"


class IndexDamagedError(DivgrpcError):
    """The files of an index are short, changed or missing."""

    reason = "INDEX_DAMAGED"


class OtherFormatError(DivgrpcError):
    """The index is of a later format than this version reads, or of one it reads no more."""

    reason = "OTHER_FORMAT"


class LimitExceededError(DivgrpcError):
    """A limit on rows, bytes or builds was reached."""

    reason = "LIMIT_EXCEEDED"


class StorageFullError(DivgrpcError):
    """There is no room left where indexes are kept."""

    reason = "STORAGE_FULL"


class StorageInUseError(DivgrpcError):
    """Another server keeps its indexes in this folder."""

    reason = "STORAGE_IN_USE"


class UnavailableError(DivgrpcError):
    """Nobody can answer just now; the same call may succeed later."""

    reason = "UNAVAILABLE"
