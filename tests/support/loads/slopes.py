"""What processes use over time, and whether it rises: a leak shows as a slope that never ends."""

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from scipy import stats

from divgrpc_server.supervisor.proc_files import read_usage

_MIB: Final = 2**20
# A process with fewer samples after its warm-up shows no slope.
SAMPLES_MIN: Final = 12


class Tolerance(NamedTuple):
    """How much a measure may grow over the fitted time: a number, or a share of its median."""

    number: float
    share: float = 0.0


# Allocators and caches still grow a little after the warm-up. Growth that goes on exceeds any
# tolerance in a longer run.
TOLERANCES: Final = {
    "private MiB": Tolerance(12.0, 0.08),
    "descriptors": Tolerance(4),
    "threads": Tolerance(2),
    "maps": Tolerance(24, 0.05),
    "temporary files": Tolerance(3),
}


class Slope(NamedTuple):
    """A measure of one process: its median, and its growth over the fitted seconds.

    least: the growth at the lower end of the 95 % interval of the slope.
    """

    role: str
    measure: str
    seconds: float
    median: float
    growth: float
    least: float

    @property
    def is_rising(self) -> bool:
        """Whether it surely grows, and more than the tolerance."""
        number, share = TOLERANCES[self.measure]
        return self.least > 0 and self.growth > max(number, share * self.median)

    def __str__(self) -> str:
        per_hour = self.growth / self.seconds * 3600
        return (
            f"{self.role}, {self.measure}: median {self.median:.1f}, {self.growth:+.1f} in"
            f" {self.seconds:.0f} s, {per_hour:+.1f} an hour{' RISING' if self.is_rising else ''}"
        )


class Usage:
    """Samples of what processes use, by role, process and measure."""

    def __init__(self) -> None:
        self._samples: dict[tuple[str, int, str], list[tuple[float, float]]] = defaultdict(list)

    def add(self, seconds: float, role: str, pid: int, values: Mapping[str, float]) -> None:
        """Add the values of a process at a time."""
        for measure, value in values.items():
            self._samples[role, pid, measure].append((seconds, value))

    def sample(self, seconds: float, role: str, pids: Iterable[int]) -> None:
        """Add what processes use now; those that have ended are left out."""
        for pid in pids:
            usage, maps = read_usage(pid), _map_count(pid)
            if usage is not None and maps:
                values = {
                    "private MiB": usage.private_bytes / _MIB,
                    "descriptors": usage.descriptors,
                    "threads": usage.threads,
                    "maps": maps,
                }
                self.add(seconds, role, pid, values)

    def slopes(self, warm_up: float) -> list[Slope]:
        """Return the slopes of processes that lived long enough.

        warm_up: seconds after the first sample of a process that are left out.
        """
        slopes = []
        for (role, _, measure), pairs in sorted(self._samples.items()):
            times, values = np.array(pairs).T
            is_late = times >= times[0] + warm_up
            if is_late.sum() >= SAMPLES_MIN:
                slopes.append(_fit(role, measure, times[is_late], values[is_late]))
        return slopes


def _fit(role: str, measure: str, times: np.ndarray, values: np.ndarray) -> Slope:
    """Fit by Theil and Sen: the median of the slopes between all pairs ignores outliers."""
    # At most some 300 samples, because a fit takes the square of their number.
    step = -(-len(times) // 300)
    times, values = times[::step], values[::step]
    fit = stats.theilslopes(values, times)
    span = float(times[-1] - times[0])
    growth, least = float(fit.slope) * span, float(fit.low_slope) * span
    return Slope(role, measure, span, float(np.median(values)), growth, least)


def _map_count(pid: int) -> int:
    """Return the number of memory mappings of a process, 0 if it has ended."""
    try:
        return Path(f"/proc/{pid}/maps").read_bytes().count(b"\n")
    except OSError:
        return 0


def file_count(*folders: Path) -> int:
    """Return how many files and folders are in some folders, hidden ones alone in the last one."""
    *whole, data = folders
    hidden = [name for name in os.listdir(data) if name.startswith(".")]
    return sum(len(os.listdir(folder)) for folder in whole) + len(hidden)
