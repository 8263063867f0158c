"""The writer process, which makes the writes of all callers, one collection after another.

Theory of operation. Fronts send requests in packets, as they do to a worker. All writes of a packet
to one collection are committed with one sync of its log. While the log is synced, requests gather
at the fronts, so a slow disk makes packets larger and not more frequent.

A call of Compact, Retrain or AddAttributes comes as a job: the supervisor connects its front to
this process with a socket of its own. Each job has a thread, while writes go on. So a retraining
that takes hours does not delay other indexes.
"""

import socket
import time
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Final, NoReturn, cast

from divgrpc.types import Durability
from divgrpc_server.codec.statuses import LateError
from divgrpc_server.ipc import control
from divgrpc_server.ipc.packets import Reply, Request
from divgrpc_server.logging import logs
from divgrpc_server.worker.front_link import FrontLink, is_large_packet
from divgrpc_server.worker.process import Worker, run_process
from divgrpc_server.writer.calls import refusal
from divgrpc_server.writer.collections import Collections
from divgrpc_server.writer.meter import WriteMeter
from divgrpc_server.writer.renewals import Renewals

# Seconds between signs of life while writes are made. A large collection takes long to open, to
# merge and to vacuum.
_LIFE_SECONDS: Final = 1.0


class Writer(Worker):
    """Serves the writes of fronts until the supervisor closes the control channel."""

    def __init__(self, process: control.Process, log: logs.Logger) -> None:
        super().__init__(process, log)
        config = process.config
        # Without a data directory, indexes end with the server, so there is nothing to sync.
        durability = config.durability if config.data_dir else "process"
        self._thread = ThreadPoolExecutor(1)
        meter = WriteMeter(process.page)
        self._collections = Collections(process.root, cast(Durability, durability), meter, log)
        self._renewals = Renewals(self._collections, config.max_builds, log, process.page)

    def run(self) -> None:
        """Make writes until the control channel closes."""
        super().run()
        self._collections.close()

    def _connect(self, message: control.Message, end: socket.socket) -> None:
        if message.kind == "call":
            self._renewals.begin(end, message.text)
        else:
            super()._connect(message, end)

    def _refresh(self, name: str) -> None:
        """Close a collection whose index was replaced or deleted."""
        # It may wait for a merge.
        self._thread.submit(self._collections.refresh, name)

    def _serve_packet(self, front: FrontLink, packet: list[Request]) -> bool:
        """Answer the requests of a packet; return whether the packet is large."""
        front.begin_packet()
        self._is_single = len(packet) == 1
        is_large = is_large_packet(packet)
        requests = [r for r in packet if front.pending.pop(r.id, None) is not None]
        late = [request for request in requests if request.deadline < time.monotonic()]
        for request in late:
            error = LateError("the deadline had passed before the write was begun")
            front.reply(refusal(request, error, self._log))
        for reply in self._answer([request for request in requests if request not in late]):
            front.reply(reply)
        if is_large:
            front.owed_large += 1
        else:
            front.owed_small += 1
        front.flush()
        return is_large

    def _answer(self, requests: list[Request]) -> list[Reply]:
        """Make writes in a thread; show the fronts meanwhile that this process is alive."""
        answers = self._thread.submit(self._collections.answer, requests)
        while not wait([answers], _LIFE_SECONDS).done:
            self._take_sockets()
            for front in self._fronts.values():
                front.show_life()
        return answers.result()


def run_writer() -> NoReturn:
    """Run the writer until the control channel closes."""
    run_process("writer", Writer)
