"""What all processes of a run saw, put together: histograms, codes, figures by the second."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import grpc
import numpy as np
import numpy.typing as npt
from hdrh.histogram import HdrHistogram

from divgrpc_client.load.orders import NOT_SENT, SAMPLE, Sent

Samples = npt.NDArray[Any]
Row: TypeAlias = dict[str, float | None]

# An hour, in microseconds, to three digits.
_HIGHEST, _DIGITS = 3_600_000_000, 3
_PERCENTILES: Final = (50.0, 90.0, 95.0, 99.0, 99.9, 99.99)
_OK: Final = grpc.StatusCode.OK.value[0]
_LATE: Final = grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
_NAMES: Final = {code.value[0]: code.name for code in grpc.StatusCode} | {NOT_SENT: "NOT_SENT"}


class Times:
    """A distribution of times, in microseconds; `encoded` is what it was before, as text."""

    def __init__(self, encoded: str = "") -> None:
        self.histogram = HdrHistogram(1, _HIGHEST, _DIGITS)
        if encoded:
            self.histogram.decode_and_add(encoded)

    def add(self, seconds: npt.NDArray[np.float64]) -> None:
        """Record times."""
        whole = np.clip(np.rint(seconds * 1e6), 0, _HIGHEST).astype(np.int64)
        for value, count in zip(*np.unique(whole, return_counts=True), strict=True):
            self.histogram.record_value(int(value), int(count))

    def percentile(self, percent: float) -> float | None:
        """Return a percentile, None of nothing."""
        if not self.histogram.get_total_count():
            return None
        return float(self.histogram.get_value_at_percentile(percent))

    def figures(self) -> dict[str, float | None]:
        """Return the percentiles, mean and greatest, by name; None of nothing."""
        if not self.histogram.get_total_count():
            return dict.fromkeys([*(f"p{p:g}" for p in _PERCENTILES), "mean", "max"])
        return {
            **{f"p{p:g}": self.percentile(p) for p in _PERCENTILES},
            "mean": round(float(self.histogram.get_mean_value()), 1),
            "max": float(self.histogram.get_max_value()),
        }

    def curve(self) -> list[tuple[float, float]]:
        """Return (percentile, value), ten points for every nine that the count bears."""
        count = self.histogram.get_total_count()
        percents = 100 * (1 - 10 ** -(np.arange(61) / 10))
        return [
            (round(float(p), 6), float(self.histogram.get_value_at_percentile(float(p))))
            for p in percents
            if count * (1 - p / 100) >= 1
        ]

    def encoded(self) -> str:
        """Return the histogram as HdrHistogram's own text, which its other tools read."""
        return str(self.histogram.encode().decode())


@dataclass
class Codes:
    """How often calls ended how."""

    counts: Counter[int] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.counts.values())

    @property
    def answered(self) -> int:
        """Those answered OK."""
        return self.counts[_OK]

    @property
    def errors(self) -> float:
        """The share of the others; 0 of nothing."""
        return 1 - self.answered / self.total if self.total else 0.0

    def named(self) -> dict[str, int]:
        """Return them by the names of the codes, the most frequent first."""
        return {_NAMES.get(code, str(code)): n for code, n in self.counts.most_common()}


class Recording:
    """All calls from `begin` on, which is after the warm-up, up to `end`; monotonic seconds.

    A latency is counted from when its call was due, a service time from when it was sent. Both are
    of calls that were answered OK or missed their deadline: leaving those out would leave out the
    slowest, while a refusal that comes at once would make them look fast.
    """

    def __init__(
        self, begin: float, end: float, *, calls: int, processes: int, timeout: float
    ) -> None:
        self._begin, self._end = begin, end
        self.latency, self.service, self.lateness, self.lag = Times(), Times(), Times(), Times()
        self.by_call = [(Times(), Codes()) for _ in range(calls)]
        self.codes = Codes()
        self.retried = Codes()
        self.retried_calls = 0
        self.replies: list[tuple[int, int, bytes]] = []
        self.busy = [0.0] * processes
        self.in_flight = [0] * processes
        self.in_time_by_call = [0] * calls
        self._seconds = _Seconds(timeout)

    def add(self, place: int, sent: Sent, now: float) -> None:
        """Add what a process tells at the time `now`."""
        samples = np.frombuffer(sent.samples, SAMPLE)
        samples = samples[(samples["due"] >= self._begin) & (samples["due"] < self._end)]
        self.in_flight[place] = sent.in_flight
        if self._begin <= now < self._end:
            self.busy[place] += sent.busy
            self.lag.add(np.array(sent.lags))
        if now >= self._begin:
            self.retried.counts.update(sent.retried)
            self.replies += sent.replies
        if len(samples):
            self._add(samples)

    def _add(self, samples: Samples) -> None:
        in_time = (samples["code"] == _OK) & (samples["done"] < self._end)
        self.retried_calls += int(np.count_nonzero(samples["retries"]))
        self._seconds.add(samples, self._begin)
        self.lateness.add(samples["sent"] - samples["due"])
        timed = samples[np.isin(samples["code"], (_OK, _LATE))]
        self.latency.add(timed["done"] - timed["due"])
        self.service.add(timed["done"] - timed["sent"])
        for kind, (times, codes) in enumerate(self.by_call):
            own = timed[timed["call"] == kind]
            times.add(own["done"] - own["due"])
            codes.counts.update(samples["code"][samples["call"] == kind].tolist())
            self.in_time_by_call[kind] += int(np.count_nonzero(samples["call"][in_time] == kind))
        self.codes.counts.update(samples["code"].tolist())

    def end_at(self, now: float) -> None:
        """Count nothing from now on: the run was interrupted."""
        self._end = min(self._end, max(self._begin, now))

    @property
    def seconds(self) -> float:
        """How long calls were counted."""
        return self._end - self._begin

    @property
    def rate(self) -> float:
        """Calls a second that were answered OK, while it lasted: what came later is not in it."""
        return sum(self.in_time_by_call) / self.seconds if self.seconds else 0.0

    def by_second(self) -> list[Row]:
        """Return figures of each second so far: its calls are those that were due in it."""
        return list(self._seconds.rows())


class _Seconds:
    """Figures by the second. A second's samples are kept until no more of it can come."""

    def __init__(self, timeout: float) -> None:
        self._keep = int(timeout) + 2
        self._open: dict[int, list[Samples]] = {}
        self._closed: dict[int, Row] = {}
        self._answered: Counter[int] = Counter()

    def add(self, samples: Samples, begin: float) -> None:
        due = np.floor(samples["due"] - begin).astype(np.int64)
        for second in np.unique(due).tolist():
            self._open.setdefault(second, []).append(samples[due == second])
        done = np.floor((samples["done"] - begin)[samples["code"] == _OK]).astype(np.int64)
        self._answered.update(done.tolist())
        newest = max(self._open)
        for second in [s for s in self._open if s < newest - self._keep]:
            self._closed[second] = _figures(self._open.pop(second))

    def rows(self) -> Iterator[Row]:
        for second in range(max([*self._open, *self._closed, *self._answered], default=-1) + 1):
            own = self._closed.get(second) or _figures(self._open.get(second, []))
            yield {"second": second, "answered": self._answered[second], **own}


def _figures(parts: Sequence[Samples]) -> Row:
    """Return the figures of the calls that were due in one second."""
    samples = np.concatenate(parts) if parts else np.zeros(0, SAMPLE)
    timed = samples[np.isin(samples["code"], (_OK, _LATE))]
    latency = (timed["done"] - timed["due"]) * 1e6
    late = (samples["sent"] - samples["due"]) * 1e6
    found: list[float | None] = [None] * 4
    if len(latency):
        found = np.percentile(latency, (50, 90, 99, 100), method="higher").round().tolist()
    return {
        "due": len(samples),
        "failed": int(np.count_nonzero(samples["code"] != _OK)),
        **dict(zip(("p50", "p90", "p99", "max"), found, strict=True)),
        "late": float(late.max().round()) if len(late) else 0.0,
    }
