"""Calls whose requests and answers are bytes, for messages that no stub would send."""

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import grpc

SERVICE = "/divgrpc.v1.DiverseIndex/"


def unary(channel: grpc.Channel, method: str) -> Callable[..., bytes]:
    """Return a callable of a unary method, from bytes to bytes."""
    call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(SERVICE + method)
    return call


def unary_stream(channel: grpc.Channel, method: str) -> Callable[..., Iterable[bytes]]:
    """Return a callable of a method that streams its answers, as bytes."""
    call: grpc.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(SERVICE + method)
    return call


class Answers(Protocol):
    """The answers of a stream of bytes, and the call, which may be cancelled."""

    def __iter__(self) -> Iterator[bytes]:
        """Return the iterator itself."""

    def __next__(self) -> bytes:
        """Wait for the next message."""

    def cancel(self) -> bool:
        """Cancel the call."""


def stream(channel: grpc.Channel, method: str, messages: Iterator[bytes]) -> Answers:
    """Call a streaming method with bytes, and return its answers as bytes."""
    call: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(SERVICE + method)
    return call(messages, timeout=30)
