"""A write that waits until the thread that commits takes it."""

from divgrpc.types import WriteResult
from divgrpc.writes.target import Request


class QueueEntry:
    """A request that waits to be committed; at the end it has a result or an error."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.result: WriteResult | None = None
        self.error: Exception | None = None

    @property
    def is_done(self) -> bool:
        """Whether there is a result or an error."""
        return self.result is not None or self.error is not None

    @property
    def outcome(self) -> WriteResult | Exception:
        """The result or the error of a request that is done."""
        outcome = self.error or self.result
        assert outcome is not None  # noqa: S101  # it is done
        return outcome
