"""Collects the samples that all processes of a run recorded, and computes figures from them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
import numpy as np
import numpy.typing as npt

from divgrpc_client.load.calls import Call
from divgrpc_client.load.schedule import Schedule
from divgrpc_client.load.settings import Settings
from divgrpc_client.messages.responses import ServerInfo

# Record of one call. `due`, `sent` and `done` are in seconds of the monotonic clock, which all
# processes share. `kind` is the index of the call in the mix, and `code` is its gRPC status.
SAMPLE: Final = np.dtype(
    [("due", "f8"), ("sent", "f8"), ("done", "f8"), ("kind", "u2"), ("code", "u1")]
)
# Value of `code` for a call that was not sent because `max_in_flight` calls were in flight.
NOT_SENT: Final = 255
OK: Final = grpc.StatusCode.OK.value[0]
_DEADLINE_EXCEEDED: Final = grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
_NAMES: Final = {code.value[0]: code.name for code in grpc.StatusCode} | {NOT_SENT: "NOT_SENT"}
_PERCENTILES: Final = (50.0, 90.0, 95.0, 99.0, 99.9, 99.99)

Samples = npt.NDArray[Any]
Times = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Part:
    """The records of one process since its previous part.

    samples: an array of `SAMPLE` as bytes.
    retries: number of retries.
    replies: (index of the kind, index of the message, reply) of some calls.
    in_flight: number of calls in flight.
    lags: seconds by which the event loop woke late, one value for each sleep.
    busy: seconds that the process ran or waited for a core.
    """

    samples: bytes
    retries: int
    replies: list[tuple[int, int, bytes]]
    in_flight: int
    lags: list[float]
    busy: float


@dataclass(slots=True)
class Run:
    """One run: its settings, and the calls that were recorded.

    Only calls that are due from `begin` to `end`, in monotonic seconds, are counted. `begin` is the
    end of the warm-up. A call takes 27 bytes. `ended` is False if a process had to be killed.
    """

    target: str
    calls: Sequence[Call]
    messages: Sequence[Sequence[bytes]]
    settings: Settings
    server: ServerInfo | None
    schedule: Schedule
    closed: int
    begin: float
    end: float
    interrupted: bool = False
    ended: bool = True
    retries: int = 0
    replies: list[tuple[int, int, bytes]] = field(default_factory=list)
    lags: list[float] = field(default_factory=list)
    busy: list[float] = field(init=False)
    in_flight: list[int] = field(init=False)
    _blocks: list[Samples] = field(default_factory=list)

    def __post_init__(self) -> None:
        processes = self.settings.processes
        self.busy, self.in_flight = [0.0] * processes, [0] * processes

    def add(self, place: int, part: Part, now: float) -> None:
        """Add a part that process `place` reported at the time `now`."""
        samples = np.frombuffer(part.samples, SAMPLE)
        self._blocks.append(samples[(samples["due"] >= self.begin) & (samples["due"] < self.end)])
        self.in_flight[place] = part.in_flight
        if self.begin <= now < self.end:
            self.busy[place] += part.busy
            self.lags += part.lags
        if now >= self.begin:
            self.retries += part.retries
            self.replies += part.replies

    def interrupt(self, now: float) -> None:
        """Exclude calls that are due after `now`."""
        self.interrupted = True
        self.end = min(self.end, max(self.begin, now))

    @property
    def seconds(self) -> float:
        """Duration of the counted part of the run, in seconds."""
        return self.end - self.begin

    def samples(self) -> Samples:
        """Return an array of `SAMPLE` with every counted call so far."""
        if len(self._blocks) > 1:
            self._blocks = [np.concatenate(self._blocks)]
        samples = self._blocks[0] if self._blocks else np.zeros(0, SAMPLE)
        return np.asarray(samples[samples["due"] < self.end])

    def in_time(self) -> Samples:
        """Return the calls answered OK before the end; later answers do not count as throughput."""
        samples = self.samples()
        return np.asarray(samples[(samples["code"] == OK) & (samples["done"] < self.end)])

    def rate(self) -> float:
        """Return the number of calls per second that were answered OK before the end."""
        return len(self.in_time()) / self.seconds if self.seconds else 0.0


def latencies(samples: Samples, since: str = "due") -> Times:
    """Return the latencies (calls,) in microseconds, from when calls were `due` or `sent`.

    Only calls that were answered OK and calls that missed their deadline are included. A refusal is
    immediate, so refused calls would make a server look fast.
    """
    calls = samples[np.isin(samples["code"], (OK, _DEADLINE_EXCEEDED))]
    return np.asarray((calls["done"] - calls[since]) * 1e6)


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


def curve(times: Times) -> list[tuple[float, float]]:
    """Return pairs (percentile, microseconds) for a percentile curve.

    The curve has ten points from 0 to 90, ten from 90 to 99, and so on, as long as at least one
    call exceeds the percentile.
    """
    percents = 100 * (1 - 10 ** -(np.arange(61) / 10))
    percents = percents[len(times) * (1 - percents / 100) >= 1]
    if not len(percents):
        return []
    values = np.percentile(times, percents, method="inverted_cdf")
    return list(zip(percents.round(6).tolist(), values.round(1).tolist(), strict=True))


def codes(samples: Samples) -> dict[str, int]:
    """Return the number of calls by the name of their status, the most frequent first."""
    counts = Counter(samples["code"].tolist())
    return {_NAMES.get(code, str(code)): count for code, count in counts.most_common()}


def summary(samples: Samples) -> dict[str, Any]:
    """Return the number, the share of errors, the statuses and the latency figures of calls."""
    return {
        "calls": len(samples),
        "errors": float((samples["code"] != OK).mean()) if len(samples) else 0.0,
        "codes": codes(samples),
        "latency": figures(latencies(samples)),
    }


def by_second(run: Run) -> list[dict[str, float | None]]:
    """Return the figures of each second of a run.

    `answered` counts the calls that ended OK in that second. All other figures are of the calls
    that were due in that second.
    """
    samples = run.samples()
    due = np.floor(samples["due"] - run.begin).astype(np.int64)
    seconds_done = np.floor(samples["done"] - run.begin)[samples["code"] == OK]
    rows: list[dict[str, float | None]] = []
    for second in range(int(np.ceil(run.seconds))):
        calls = samples[due == second]
        times = latencies(calls)
        rows.append(
            {
                "second": second,
                "due": len(calls),
                "answered": int((seconds_done == second).sum()),
                "failed": int((calls["code"] != OK).sum()),
                **{f"p{percent}": percentile(times, percent) for percent in (50, 90, 99)},
                "max": percentile(times, 100),
                "late": percentile(lateness(calls), 100) or 0.0,
            }
        )
    return rows
