"""Calls of bytes, for messages that no stub would send."""

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import grpc

SERVICE = "/divgrpc.v1.DiverseIndex/"


def unary(channel: grpc.Channel, method: str) -> Callable[..., bytes]:
    """Return a method of the service that takes and gives bytes."""
    call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(SERVICE + method)
    return call


def unary_stream(channel: grpc.Channel, method: str) -> Callable[..., Iterable[bytes]]:
    """Return a method of the service that gives a stream of bytes."""
    call: grpc.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(SERVICE + method)
    return call


class Answers(Protocol):
    """What comes of a stream, and the call itself."""

    def __iter__(self) -> Iterator[bytes]:
        """Return itself."""

    def __next__(self) -> bytes:
        """Wait for the next message."""

    def cancel(self) -> bool:
        """End the call."""


def stream(channel: grpc.Channel, method: str, messages: Iterator[bytes]) -> Answers:
    """Call a method of the service with a stream of bytes."""
    call: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(SERVICE + method)
    return call(messages, timeout=30)
