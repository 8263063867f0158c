"""Sockets, channels and event descriptors in memory, which stand for those of the system.

A socket pair is two `End` objects with a queue each. An end belongs to the process that made or
adopted it, and closes when this process is killed. Its peer then reads what is queued; only a
control channel reads nothing more if the process had not read everything.

Every call of an end is a failpoint (`simulation.serving.faults`), and lets other tasks run.
"""

import os
import select
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import count
from typing import Any, Final, Protocol

from divgrpc_server.ipc import packets
from divgrpc_server.ipc.control import Message
from simulation.scheduler import Ended, Process, Scheduler
from simulation.serving.faults import Faults

# Numbers of descriptors, greater than those of the system.
_DESCRIPTOR_MIN: Final = 1_000_000
_NO_DESCRIPTOR: Final = -1


class Thing(Protocol):
    """What a descriptor stands for."""

    owner: Process | None

    def is_ready(self, mask: int) -> bool:
        """Tell whether there is what a mask of `select.poll` names."""

    def close(self) -> None:
        """Free the descriptor."""


class Network:
    """All things with descriptors.

    buffer_bytes: how many bytes of packets an end holds that its process has not read.
    """

    def __init__(self, scheduler: Scheduler, faults: Faults, buffer_bytes: int) -> None:
        self.scheduler, self.faults, self.buffer_bytes = scheduler, faults, buffer_bytes
        self.things: dict[int, Thing] = {}
        self._numbers = count(_DESCRIPTOR_MIN)
        scheduler.on_kill = self.close_all

    def pair(self, *, is_stream: bool = False) -> "tuple[End, End]":
        """Return two connected ends, which belong to nobody yet."""
        first, second = End(self, is_stream=is_stream), End(self, is_stream=is_stream)
        first.peer, second.peer = second, first
        return first, second

    def number_of(self, thing: Thing) -> int:
        """Return a new descriptor."""
        number = next(self._numbers)
        self.things[number] = thing
        return number

    def adopt(self, descriptor: int) -> "End":
        """Return the end of a descriptor that a message has brought to this process."""
        end = self.things[descriptor]
        assert isinstance(end, End)
        end.owner, end.is_sent = self.process, False
        return end

    @property
    def process(self) -> Process:
        """The process of the task that calls."""
        task = self.scheduler.task
        assert task is not None
        return task.process

    def close_all(self, process: Process) -> None:
        """Close the ends of a process."""
        for thing in list(self.things.values()):
            if thing.owner is process:
                thing.close()


class Event:
    """Stands for a descriptor of `os.eventfd`."""

    def __init__(self, network: Network) -> None:
        self.owner: Process | None = network.process
        self._network, self.count = network, 0
        self.number = network.number_of(self)

    def is_ready(self, _mask: int) -> bool:
        """Tell whether it was written to."""
        return self.count > 0

    def close(self) -> None:
        """Free the descriptor."""
        self._network.things.pop(self.number, None)


class End:
    """One end of a socket pair, for packets, frames or messages of a control channel."""

    def __init__(self, network: Network, *, is_stream: bool) -> None:
        self._network, self._is_stream = network, is_stream
        self.peer: End
        self.owner: Process | None = None
        self.number = network.number_of(self)
        self.is_open, self.is_reset = True, False
        # Whether it is in a message, so that its sender closes a copy.
        self.is_sent = False
        # What the peer has sent: bytes and a memory file, a frame, or a message and a descriptor.
        self._queue: deque[tuple[Any, Any]] = deque()
        self._bytes = 0
        self._memory = packets.KeptMemory()

    def fileno(self) -> int:
        """Return the descriptor."""
        return self.number

    def setblocking(self, is_blocking: bool) -> None:  # as of a socket
        """Do nothing, because callers say how they wait."""

    def __enter__(self) -> "End":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    @property
    def is_readable(self) -> bool:
        """Whether a packet waits, or the peer is closed."""
        return bool(self._queue) or self.is_reset or not self.peer.is_open

    @property
    def is_writable(self) -> bool:
        """Whether a packet of any size would fit, or the peer is closed."""
        return not self.peer._bytes or not self.peer.is_open

    def is_ready(self, mask: int) -> bool:
        """Tell whether there is what a mask of `select.poll` names."""
        is_hung_up = not self.peer.is_open
        return bool(
            (mask & select.POLLIN and self.is_readable)
            or (mask & select.POLLOUT and self.is_writable)
            or (mask & select.POLLRDHUP and is_hung_up)
        )

    def close(self) -> None:
        """Close this end, and what it has not read."""
        if not self.is_open or self.is_sent:
            return
        self.is_open = False
        self._memory.close()
        self._network.things.pop(self.number, None)
        self.peer.is_reset |= bool(self._queue) and not self._is_stream
        for data, extra in self._queue:
            self._drop(data, extra)
        self._queue.clear()

    def _drop(self, data: object, extra: object) -> None:
        """Close the descriptor of a message that nobody has read."""
        if isinstance(extra, int) and extra >= 0 and isinstance(data, bytes):
            os.close(extra)
        elif isinstance(data, Message) and isinstance(extra, int):
            end = self._network.things.get(extra)
            if isinstance(end, End):
                end.is_sent = False
                end.close()

    # Packets (`divgrpc_server.ipc.packets.Link`).

    def memory_file(self, payload: bytes, *, all_read: bool) -> AbstractContextManager[int]:
        """Yield the descriptor of a memory file."""
        return self._memory.file(payload, all_read=all_read)

    def send(self, packet: bytes, memfd: int = _NO_DESCRIPTOR) -> None:
        """Send a packet without waiting."""
        fault = self._network.faults.call("send")
        if fault == "full" or not self._has_room(len(packet)):
            raise BlockingIOError
        self._put(packet, memfd, len(packet))

    def send_waiting(self, packet: bytes, memfd: int, seconds: float) -> None:
        """Send a packet when it fits."""
        self._network.faults.call("send_waiting")
        self._network.scheduler.wait_until(lambda: self._has_room(len(packet)), seconds)
        if not self._has_room(len(packet)):
            raise TimeoutError
        self._put(packet, memfd, len(packet))

    def receive(self) -> tuple[memoryview, int]:
        """Return a packet and its memory file."""
        fault = self._network.faults.call("receive")
        self._check_open()
        if not (self._queue or self.peer.is_open):
            return memoryview(b""), _NO_DESCRIPTOR
        if not self._queue:
            raise BlockingIOError
        packet, memfd = self._take()
        if fault == "lost" and memfd >= 0:
            os.close(memfd)
            memfd = _NO_DESCRIPTOR
        return memoryview(packet), memfd

    def _has_room(self, size: int) -> bool:
        peer = self.peer
        return (
            not peer.is_open or not peer._bytes or peer._bytes + size <= self._network.buffer_bytes
        )

    def _put(self, packet: bytes, memfd: int, size: int) -> None:
        self._check_open()
        if not self.peer.is_open:
            raise BrokenPipeError
        self.peer._bytes += size
        self.peer._queue.append((packet, os.dup(memfd) if memfd >= 0 else memfd))

    def _take(self) -> tuple[Any, Any]:
        data, extra = self._queue.popleft()
        if isinstance(data, bytes):
            self._bytes -= len(data)
        return data, extra

    def _check_open(self) -> None:
        """Fail if this end is closed; its process may have been killed."""
        if self.owner is not None and not self.owner.is_alive:
            raise Ended
        if not self.is_open:
            raise OSError("the descriptor is closed")

    # Frames (`divgrpc_server.ipc.job_frames`) and messages (`divgrpc_server.ipc.control`).

    def put(self, data: object, extra: object = None) -> None:
        """Send a frame or a message; only a few wait in an end at the same time."""
        self._check_open()
        if not self.peer.is_open:
            raise BrokenPipeError
        self.peer._queue.append((data, extra))

    def get(self, *, is_peek: bool = False) -> tuple[Any, Any] | None:
        """Return a frame or a message that is there; None if the peer is closed."""
        self._check_open()
        if self.is_reset or not self._queue:
            return None
        return self._queue[0] if is_peek else self._take()


class Channel:
    """Stands for `divgrpc_server.ipc.control.Channel`."""

    def __init__(self, end: End) -> None:
        self.end = end

    def fileno(self) -> int:
        """Return the descriptor, -1 once the channel is closed."""
        return self.end.number if self.end.is_open else _NO_DESCRIPTOR

    def close(self) -> None:
        """Close this end."""
        self.end.close()

    def send(self, message: Message, descriptor: int | None = None) -> None:
        """Send a message and perhaps a descriptor."""
        if self.end._network.faults.call("send") == "full":
            raise BlockingIOError
        number = _NO_DESCRIPTOR if descriptor is None else descriptor
        self.end.put(message, number)
        end = self.end._network.things.get(number)
        if isinstance(end, End):
            end.is_sent = True

    def receive(self) -> tuple[Message, int] | None:
        """Wait for a message."""
        network = self.end._network
        network.faults.call("receive")
        network.scheduler.wait_until(lambda: self.end.is_readable)
        return self.end.get()


class Poller:
    """Stands for an object of `select.poll`."""

    def __init__(self, network: Network, before_wait: Callable[[], None] = lambda: None) -> None:
        self._network, self._before_wait = network, before_wait
        self._masks: dict[int, int] = {}

    def register(self, thing: Any, mask: int) -> None:  # noqa: ANN401  # a descriptor or what has one
        """Add a descriptor, and what to wait for."""
        self._masks[thing if isinstance(thing, int) else thing.fileno()] = mask

    def unregister(self, number: int) -> None:
        """Remove a descriptor."""
        del self._masks[number]

    def poll(self, milliseconds: float | None = None) -> list[tuple[int, int]]:
        """Wait until a descriptor is ready, or the time is over."""
        if milliseconds != 0:
            self._before_wait()
        scheduler = self._network.scheduler
        scheduler.pause()
        seconds = float("inf") if milliseconds is None else milliseconds / 1_000
        scheduler.wait_until(lambda: any(self._ready()), seconds)
        return [(number, 1) for number in self._ready()]

    def _ready(self) -> Iterator[int]:
        things = self._network.things
        return (n for n, mask in self._masks.items() if things[n].is_ready(mask))


def frames(network: Network) -> dict[str, Callable[..., Any]]:
    """Return what stands for the functions of `job_frames` that block."""

    def send(link: End, kind: Any, payload: bytes = b"") -> None:  # noqa: ANN401  # a Frame
        network.faults.call("send")
        network.scheduler.wait_until(lambda: link.is_writable)
        link.put(kind, payload)

    def take(link: End, *, is_peek: bool) -> tuple[Any, Any]:
        network.faults.call("receive", depth=1)
        network.scheduler.wait_until(lambda: link.is_readable)
        frame = link.get(is_peek=is_peek)
        if frame is None:
            raise EOFError
        return frame

    return {
        "send": send,
        "receive": lambda link: take(link, is_peek=False),
        "peek": lambda link: take(link, is_peek=True)[0],
    }
