"""What all processes of a run saw, put together: one record a call, and figures of them."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
import numpy as np
import numpy.typing as npt

# One call: times by the monotonic clock that all processes share, in seconds; `kind` is its place
# in the mix, `code` the gRPC status.
SAMPLE: Final = np.dtype(
    [("due", "f8"), ("sent", "f8"), ("done", "f8"), ("kind", "u2"), ("code", "u1")]
)
# In place of a status: the call was due while too many were under way, and was not sent.
NOT_SENT: Final = 255
OK: Final = grpc.StatusCode.OK.value[0]
_LATE: Final = grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
_NAMES: Final = {code.value[0]: code.name for code in grpc.StatusCode} | {NOT_SENT: "NOT_SENT"}
_PERCENTILES: Final = (50.0, 90.0, 95.0, 99.0, 99.9, 99.99)

Samples = npt.NDArray[Any]
Times = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Part:
    """What a process saw since its last part.

    `samples` are the bytes of SAMPLEs, `replies` (kind, message, reply), `lags` seconds that its
    event loop came too late, `busy` seconds that it ran or waited for a core.
    """

    samples: bytes
    retries: int
    replies: list[tuple[int, int, bytes]]
    in_flight: int
    lags: list[float]
    busy: float


@dataclass(slots=True)
class Recorder:
    """All calls due from `begin`, which is after the warm-up, to `end`; monotonic seconds.

    It keeps 27 bytes a call.
    """

    begin: float
    end: float
    processes: int = 1
    retries: int = 0
    replies: list[tuple[int, int, bytes]] = field(default_factory=list)
    lags: list[float] = field(default_factory=list)
    busy: list[float] = field(init=False)
    in_flight: list[int] = field(init=False)
    _parts: list[Samples] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.busy, self.in_flight = [0.0] * self.processes, [0] * self.processes

    def add(self, place: int, part: Part, now: float) -> None:
        """Add what process `place` reports at the time `now`."""
        samples = np.frombuffer(part.samples, SAMPLE)
        self._parts.append(samples[(samples["due"] >= self.begin) & (samples["due"] < self.end)])
        self.in_flight[place] = part.in_flight
        if self.begin <= now < self.end:
            self.busy[place] += part.busy
            self.lags += part.lags
        if now >= self.begin:
            self.retries += part.retries
            self.replies += part.replies

    def end_at(self, now: float) -> None:
        """Count nothing from now on: the run was interrupted."""
        self.end = min(self.end, max(self.begin, now))

    @property
    def seconds(self) -> float:
        """How long calls were counted."""
        return self.end - self.begin

    def samples(self) -> Samples:
        """Return a record (calls,) for each call so far."""
        if len(self._parts) > 1:
            self._parts = [np.concatenate(self._parts)]
        whole = self._parts[0] if self._parts else np.zeros(0, SAMPLE)
        return np.asarray(whole[whole["due"] < self.end])

    def in_time(self) -> Samples:
        """Return the calls answered OK before the end: answers after it are no throughput."""
        samples = self.samples()
        return np.asarray(samples[(samples["code"] == OK) & (samples["done"] < self.end)])

    def rate(self) -> float:
        """Return the calls a second that were answered OK before the end."""
        return len(self.in_time()) / self.seconds if self.seconds else 0.0


def latencies(samples: Samples, since: str = "due") -> Times:
    """Return times (calls,) in microseconds since calls were `due` or `sent`.

    They are of calls answered OK and of calls that missed their deadline. Without the latter the
    slowest would be missing; refusals come at once, and would make a server look fast.
    """
    timed = samples[np.isin(samples["code"], (OK, _LATE))]
    return np.asarray((timed["done"] - timed[since]) * 1e6)


def percentile(times: Times, percent: float) -> float | None:
    """Return a percentile of times (n,) by the nearest rank; None of no times."""
    if not len(times):
        return None
    return float(np.percentile(times, percent, method="inverted_cdf").round(1))


def figures(times: Times) -> dict[str, float | None]:
    """Return percentiles, mean and maximum of times (n,) by name; None of no times."""
    shown = {f"p{percent:g}": percentile(times, percent) for percent in _PERCENTILES}
    ends = (times.mean(), times.max()) if len(times) else (None, None)
    rounded = (None if end is None else round(float(end), 1) for end in ends)
    return shown | dict(zip(("mean", "max"), rounded, strict=True))


def curve(times: Times) -> list[tuple[float, float]]:
    """Return (percentile, microseconds), ten points for each further nine the count bears."""
    percents = 100 * (1 - 10 ** -(np.arange(61) / 10))
    percents = percents[len(times) * (1 - percents / 100) >= 1]
    if not len(percents):
        return []
    values = np.percentile(times, percents, method="inverted_cdf")
    return list(zip(percents.round(6).tolist(), values.round(1).tolist(), strict=True))


def codes(samples: Samples) -> dict[str, int]:
    """Count calls by the name of their status, the most frequent first."""
    counts = Counter(samples["code"].tolist())
    return {_NAMES.get(code, str(code)): count for code, count in counts.most_common()}


def errors(samples: Samples) -> float:
    """Return the share of calls not answered OK; 0 of no calls."""
    return float((samples["code"] != OK).mean()) if len(samples) else 0.0


def by_second(recorder: Recorder) -> list[dict[str, float | None]]:
    """Return figures of each second: of the calls due in it, but `answered` of those done in it."""
    samples = recorder.samples()
    seconds = int(np.ceil(recorder.seconds))
    due = np.floor(samples["due"] - recorder.begin).astype(np.int64)
    done = np.floor(samples["done"] - recorder.begin)[samples["code"] == OK]
    rows: list[dict[str, float | None]] = []
    for second in range(seconds):
        in_second = samples[due == second]
        times = latencies(in_second)
        late = (in_second["sent"] - in_second["due"]) * 1e6
        rows.append(
            {
                "second": second,
                "due": len(in_second),
                "answered": int((done == second).sum()),
                "failed": int((in_second["code"] != OK).sum()),
                **{name: figures(times)[name] for name in ("p50", "p90", "p99", "max")},
                "late": float(late.max().round(1)) if len(in_second) else 0.0,
            }
        )
    return rows
