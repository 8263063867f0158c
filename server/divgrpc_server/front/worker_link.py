"""A front's calls and its workers: what each has before it, and how much more it may have."""

import time
from collections.abc import Callable

from divgrpc_server.front.admission import Kind
from divgrpc_server.ipc import packets
from divgrpc_server.ipc.packets import Reply, Request


class Call:
    """One request on its way through the pool."""

    __slots__ = ("deaths", "deliver", "request", "since", "worker")

    def __init__(self, request: Request, deliver: Callable[[Reply], None]) -> None:
        self.request = request
        self.deliver = deliver
        self.since = time.monotonic()
        self.deaths = 0
        self.worker: Worker | None = None


class Worker:
    """A worker as a front sees it."""

    def __init__(self, serial: int, link: packets.Link) -> None:
        self.serial = serial
        self.link = link
        self.small = packets.SMALL_CREDITS
        # Below zero while one that was lent is spent: the batch before has not ended.
        self.large = packets.LARGE_CREDITS
        # 1 from before the last piece of a batch until its end.
        self.lent = 0
        self.outstanding: dict[int, Call] = {}
        self.heard = time.monotonic()
        self.blocked = False
        self.reported = False

    @property
    def idle(self) -> bool:
        """Whether nothing of ours is before it."""
        return (
            not self.outstanding
            and self.small == packets.SMALL_CREDITS
            and self.large == packets.LARGE_CREDITS
        )

    def room(self, kind: Kind) -> int:
        """Return how many more packets of small or of large requests it takes."""
        return self.large + self.lent if kind == "large" else self.small
