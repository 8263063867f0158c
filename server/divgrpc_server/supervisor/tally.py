"""The series of all processes of a server, those that ended included."""

from collections.abc import Iterable
from typing import Final, get_args

import divgrpc
from divgrpc_server.monitoring.page import Key, Values, accumulate, lasting
from divgrpc_server.supervisor.child import Child, Role
from divgrpc_server.supervisor.proc_files import Usage, read_cpu_seconds, read_usage

# Exits by code 0, by another code, and by a signal.
_EXITS: Final = ("clean", "error", "signal")


class Tally:
    """Adds up what processes count. Counters never fall while the server runs."""

    def __init__(self) -> None:
        # The counters of processes that ended, and of what the supervisor counts itself. They begin
        # at 0, because Prometheus cannot see that a series rose to 1 if it was not there before.
        self._kept: dict[Key, Values] = {
            ("divgrpc_processes_ended_total", role, kind): [0.0]
            for role in get_args(Role)
            for kind in _EXITS
        }

    def add_start(self, role: str) -> None:
        """Count the start of a process."""
        self._add(("divgrpc_processes_started_total", role), 1)

    def add_end(self, child: Child, code: int) -> None:
        """Count the end of a process with an exit code, and keep its counters."""
        kind = _EXITS[0 if code == 0 else 1 if code > 0 else 2]
        self._add(("divgrpc_processes_ended_total", child.role, kind), 1)
        self._add(("divgrpc_cpu_seconds_total", child.role), child.cpu_seconds)
        if child.page is not None:
            accumulate(self._kept, lasting(child.page.read()))
            child.page.close()

    def series(self, children: Iterable[Child], supervisor: int) -> dict[Key, Values]:
        """Return the series of all processes; `supervisor` is the id of the supervisor's."""
        series = {key: list(values) for key, values in self._kept.items()}
        series[("divgrpc_version_info", divgrpc.__version__)] = [1]
        if (usage := read_usage(supervisor)) is not None:
            add_usage(series, "supervisor", usage)
        for child in children:
            if child.page is not None:
                accumulate(series, child.page.read())
            usage = None if child.exited.done() else read_usage(child.pid)
            if usage is None:
                # It has ended, and `add_end` was not called yet.
                seconds = child.cpu_seconds or read_cpu_seconds(child.pid)
                accumulate(series, {("divgrpc_cpu_seconds_total", child.role): [seconds]})
            else:
                add_usage(series, child.role, usage)
        return series

    def _add(self, key: Key, amount: float) -> None:
        accumulate(self._kept, {key: [amount]})


def add_usage(series: dict[Key, Values], role: str, usage: Usage) -> None:
    """Add what a process of a role uses to `series`."""
    accumulate(
        series,
        {
            ("divgrpc_processes", role): [1],
            ("divgrpc_resident_memory_bytes", role, "private"): [usage.private_bytes],
            ("divgrpc_resident_memory_bytes", role, "shared"): [usage.shared_bytes],
            ("divgrpc_cpu_seconds_total", role): [usage.cpu_seconds],
            ("divgrpc_open_descriptors", role): [usage.descriptors],
            ("divgrpc_threads", role): [usage.threads],
        },
    )
