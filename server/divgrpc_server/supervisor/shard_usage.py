"""What the shard servers use that a server has started on its own machine.

Shard servers export no metrics: they would listen at free ports, which nobody knows. The process of
the engine has started theirs.
"""

from collections.abc import Iterable
from typing import Final

from divgrpc_server.monitoring.page import Key, Values
from divgrpc_server.supervisor.proc_files import read_descendants, read_usage
from divgrpc_server.supervisor.tally import add_usage

# The role of all their processes, also of their workers and fronts.
_ROLE: Final = "shard_server"


class ShardUsage:
    """Adds up the usage of all processes of shard servers. One thread at a time may use it."""

    def __init__(self) -> None:
        # The processor time of each process at the last scrape, and of all that there have been.
        self._seconds: dict[int, float] = {}
        self._total_seconds = 0.0

    def read(self, engines: Iterable[int]) -> dict[Key, Values]:
        """Return the series of the processes below those with the ids `engines`.

        The processor time never falls. It lacks what a process has used after the last scrape
        before its end.
        """
        series: dict[Key, Values] = {}
        seconds: dict[int, float] = {}
        for pid in (pid for engine in engines for pid in read_descendants(engine)):
            if (usage := read_usage(pid)) is not None:
                add_usage(series, _ROLE, usage)
                seconds[pid] = usage.cpu_seconds
        for pid, now in seconds.items():
            before = self._seconds.get(pid, 0.0)
            # Another process may have got the id of one that ended.
            self._total_seconds += now - before if now >= before else now
        self._seconds = seconds
        series[("divgrpc_cpu_seconds_total", _ROLE)] = [self._total_seconds]
        return series
