"""Knows which nodes of a cluster have the data folder of this machine."""

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, TypeAlias

from divgrpc_server.config import Config
from divgrpc_server.engines.shared_folder import marker
from divgrpc_server.logging.logs import Logger

# Lets nodes look for a marker for some seconds, and awaits their replies until a time. Yields each
# node and what `shared_folder.fault_of` returns there, None if it does not reply.
AskNodes: TypeAlias = Callable[
    [Path, Iterable[str], float, float], Iterator[tuple[str, str | None]]
]

# NFS looks for a name that is new to it. If that was too early, it takes the file for missing until
# it looks at the folder again, by default after 30 to 60 seconds.
_MARKER_SECONDS_MAX: Final = 30.0
# A node that joins later looks for a new file each time.
_JOIN_LOOK_SECONDS: Final = 5.0
_RETRY_SECONDS: Final = 10.0


class NodeFolders:
    """Looks at the data folder of nodes, and remembers those that have it.

    One thread at a time may use it, because each look removes the markers of others.
    """

    def __init__(self, config: Config, root: Path, ask: AskNodes, log: Logger) -> None:
        """Take the data folder, and what asks nodes.

        A server that is read-only writes no marker, so it takes all nodes for fit.
        """
        self._root, self._ask, self._log = root, ask, log
        self._wait_seconds, self._is_read_only = config.engine_wait, config.read_only
        self._fit_nodes: set[str] = set()
        # What is wrong with other nodes, and when to look again.
        self._faults: dict[str, str] = {}
        self._look_times: dict[str, float] = {}

    def check(self, nodes: Iterable[str], end_time: float) -> Iterator[tuple[str, bool]]:
        """Yield what is wrong with nodes, in words, and whether that is certain.

        The replies of nodes are awaited until `end_time`.
        """
        if self._is_read_only:
            return
        # The other half of the time is for the cluster, which may have to start a process.
        seconds = min(_MARKER_SECONDS_MAX, max(0.0, end_time - time.monotonic()) / 2)
        for node, fault, is_certain in self._look(nodes, seconds, end_time):
            if fault:
                yield fault, is_certain
            else:
                self._fit_nodes.add(node)

    def is_fit(self, node: str) -> bool:
        """Return whether a node has the data folder; look, unless that was done a moment ago."""
        if self._is_read_only or node in self._fit_nodes:
            return True
        if time.monotonic() < self._look_times.get(node, 0.0):
            return False
        end_time = time.monotonic() + self._wait_seconds
        *_, (_, fault, _) = self._look([node], _JOIN_LOOK_SECONDS, end_time)
        self._look_times[node] = time.monotonic() + _RETRY_SECONDS
        if not fault:
            self._fit_nodes.add(node)
        elif fault != self._faults.get(node):
            self._faults[node] = fault
            self._log.warning("a node gets no shard server", node=node, reason=fault)
        return not fault

    def _look(
        self, nodes: Iterable[str], seconds: float, end_time: float
    ) -> Iterator[tuple[str, str, bool]]:
        """Yield each node, what is wrong with its data folder, or "", and whether that is certain.

        If this machine cannot make a marker, yield that once.
        """
        try:
            with marker(self._root) as path:
                for node, fault in self._ask(path, nodes, seconds, end_time):
                    if fault is None:
                        remedy = "does not answer: start it anew, or raise engine_wait"
                        yield node, f"the node {node} {remedy}", False
                        continue
                    remedy = f": all nodes must mount one data folder at {self._root}"
                    yield node, f"the node {node} {fault}{remedy}" if fault else "", True
        except OSError as error:
            yield "", f"cannot make a locked file in {self._root}: {error.strerror}", False
