"""Request streams that report their own failures.

gRPC draws requests on a thread or task of its own, where an error of the caller's data would only
be logged. A feed ends the stream instead, keeps the error for the caller, and says each time that
something moved.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Generic, TypeVar

RequestT = TypeVar("RequestT")


class Feed(Generic[RequestT]):
    """For the sync stack."""

    def __init__(self, requests: Iterator[RequestT], moved: Callable[[], None]) -> None:
        self._requests = requests
        self._moved = moved
        self.failure: Exception | None = None

    def __iter__(self) -> Iterator[RequestT]:
        try:
            for request in self._requests:
                self._moved()
                yield request
        except Exception as error:  # noqa: BLE001  # the caller's own data may raise anything
            self.failure = error


class AsyncFeed(Generic[RequestT]):
    """For grpc.aio."""

    def __init__(self, requests: AsyncIterator[RequestT], moved: Callable[[], None]) -> None:
        self._requests = requests
        self._moved = moved
        self.failure: Exception | None = None

    async def __aiter__(self) -> AsyncIterator[RequestT]:
        try:
            async for request in self._requests:
                self._moved()
                yield request
        except Exception as error:  # noqa: BLE001  # as above
            self.failure = error
