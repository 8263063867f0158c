"""What generators are told and what they tell: the messages between the processes of a run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from divgrpc_client.load.schedules import Schedule

# What one call saw: times by the monotonic clock, all processes' own, in seconds.
SAMPLE: Final = np.dtype(
    [
        ("due", "f8"),
        ("sent", "f8"),
        ("done", "f8"),
        ("call", "u2"),
        ("code", "u1"),
        ("retries", "u1"),
    ]
)
# Stands for a code: the call was due while too many were under way, and was not sent.
NOT_SENT: Final = 255


@dataclass(frozen=True, slots=True)
class Task:
    """What a generator is for: it is number `place` of `processes`; `messages` by kind of call."""

    target: str
    methods: Sequence[str]
    messages: Sequence[Sequence[bytes]]
    shares: Sequence[float]
    place: int
    processes: int
    channels: int
    timeout: float
    retries: int
    max_in_flight: int
    seed: int


@dataclass(frozen=True, slots=True)
class Trial:
    """Calls to make from `begin` on: by `schedule`, or with so many `closed` loops until its end.

    One call in `sample_every` keeps its reply; none where that is 0.
    """

    begin: float
    schedule: Schedule
    poisson: bool = False
    closed: int = 0
    sample_every: int = 0


@dataclass(frozen=True, slots=True)
class Sent:
    """What happened since the last one: `samples` are the bytes of SAMPLEs, `retried` by code.

    `lags` are how late the loop woke, `busy` the seconds that it ran or waited for a core.
    """

    samples: bytes
    retried: dict[int, int]
    replies: list[tuple[int, int, bytes]]
    in_flight: int
    lags: list[float]
    busy: float


@dataclass(frozen=True, slots=True)
class Ended:
    """A task is ready to be done; or a trial is over, every call of it answered or given up."""
