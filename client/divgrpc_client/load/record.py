"""Records of the calls of a run, and the figures computed from the records."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import grpc
import numpy as np
import numpy.typing as npt

from divgrpc_client.load.calls import Call
from divgrpc_client.load.schedule import Schedule
from divgrpc_client.load.settings import Settings
from divgrpc_client.messages.responses import ServerInfo

# Record of one call. `due`, `sent` and `done` are in seconds of the monotonic clock, which all
# processes share. `kind` is the index of the kind of call in the mix. `code` is the gRPC status, or
# `NOT_SENT`.
SAMPLE: Final = np.dtype(
    [("due", "f8"), ("sent", "f8"), ("done", "f8"), ("kind", "u2"), ("code", "u1")]
)
# Value of `code` for a call that was not sent because `max_in_flight` calls were in flight.
NOT_SENT: Final = 255
OK: Final = grpc.StatusCode.OK.value[0]
_DEADLINE_EXCEEDED: Final = grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
_NAMES: Final = {code.value[0]: code.name for code in grpc.StatusCode} | {NOT_SENT: "NOT_SENT"}
# The generator is the bottleneck if it records less than this share of the calls that were due.
_SENT_SHARE_MIN: Final = 0.98
_PERCENTILES: Final = (50.0, 90.0, 95.0, 99.0, 99.9, 99.99)

Samples = npt.NDArray[Any]
Times = npt.NDArray[np.float64]


@dataclass(slots=True)
class Run:
    """One run: its settings, and the calls that were recorded.

    `samples` is an array of `SAMPLE` with the calls that were due from `begin` to `end`, in
    monotonic seconds. `begin` is the end of the warm-up. `busy` has for each process the share of
    the time, 0 to 1, for which its sending thread ran or waited for a core.
    """

    target: str
    calls: Sequence[Call]
    settings: Settings
    server: ServerInfo | None
    schedule: Schedule
    closed: int
    begin: float
    end: float
    samples: Samples
    busy: Sequence[float]
    interrupted: bool = False

    @property
    def seconds(self) -> float:
        """Duration of the counted part of the run, in seconds."""
        return self.end - self.begin

    def rate(self) -> float:
        """Return the number of calls per second that were answered OK before the end."""
        in_time = (self.samples["code"] == OK) & (self.samples["done"] < self.end)
        return float(in_time.sum()) / self.seconds if self.seconds else 0.0

    def all_sent(self) -> bool:
        """Tell whether about 98 % or more of the calls that were due were recorded.

        A recorded call may be `NOT_SENT`. The result is always true for a closed loop and for an
        interrupted run.
        """
        # The number of calls in a Poisson schedule is random. By chance it is practically never
        # more than four standard deviations below the mean.
        due = self.schedule.calls
        deviation = 4 * math.sqrt(due) if self.settings.poisson else 1
        calls_min = due * _SENT_SHARE_MIN - deviation
        return bool(self.closed or self.interrupted or len(self.samples) >= calls_min)


def counted(parts: Sequence[bytes], begin: float, end: float) -> Samples:
    """Return an array of `SAMPLE` with the calls of all `parts` that were due in a span of time."""
    samples = np.frombuffer(b"".join(parts), SAMPLE)
    return samples[(samples["due"] >= begin) & (samples["due"] < end)]


def latencies(samples: Samples) -> Times:
    """Return the latencies (calls,) in microseconds, from when calls were due.

    Only calls that were answered OK and calls that missed their deadline are included. A refusal is
    immediate, so refused calls would make a server look fast.
    """
    calls = samples[np.isin(samples["code"], (OK, _DEADLINE_EXCEEDED))]
    return np.asarray((calls["done"] - calls["due"]) * 1e6)


def lateness(samples: Samples) -> Times:
    """Return the delay (calls,) in microseconds between the due time and the sending of calls."""
    return np.asarray((samples["sent"] - samples["due"]) * 1e6)


def percentile(times: Times, percent: float) -> float | None:
    """Return a nearest-rank percentile of `times` (n,), or None if there are no times."""
    if not len(times):
        return None
    return float(np.percentile(times, percent, method="inverted_cdf").round(1))


def figures(times: Times) -> dict[str, float | None]:
    """Return percentiles, mean and maximum of `times` (n,) by name, None if there are no times."""
    percentiles = {f"p{percent:g}": percentile(times, percent) for percent in _PERCENTILES}
    mean = round(float(times.mean()), 1) if len(times) else None
    return percentiles | {"mean": mean, "max": percentile(times, 100)}


def summary(samples: Samples) -> dict[str, Any]:
    """Return the number, the share of errors, the statuses and the latency figures of calls.

    Statuses are in the order of their frequency.
    """
    counts = Counter(samples["code"].tolist()).most_common()
    return {
        "calls": len(samples),
        "errors": float((samples["code"] != OK).mean()) if len(samples) else 0.0,
        "codes": {_NAMES.get(code, str(code)): count for code, count in counts},
        "latency": figures(latencies(samples)),
    }


def by_second(run: Run) -> list[dict[str, float | None]]:
    """Return the figures of each second of a run.

    `answered` counts the calls that ended OK in that second. All other figures are of the calls
    that were due in that second.
    """
    samples = run.samples
    due = np.floor(samples["due"] - run.begin).astype(np.int64)
    seconds_done = np.floor(samples["done"] - run.begin)[samples["code"] == OK]
    rows: list[dict[str, float | None]] = []
    for second in range(int(np.ceil(run.seconds))):
        calls = samples[due == second]
        times = latencies(calls)
        row = {
            "second": second,
            "due": len(calls),
            "answered": int((seconds_done == second).sum()),
            "failed": int((calls["code"] != OK).sum()),
        }
        rows.append(row | {f"p{percent}": percentile(times, percent) for percent in (50, 99)})
    return rows
