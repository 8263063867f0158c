"""Schedules: the times at which calls are due, at rates that are constant or change linearly.

The expected number of arrivals up to a time is the integral of the rate up to that time. Each
arrival has a number and is due when the integral reaches this number. In an even schedule the
numbers are 0, 1, 2, ... In a Poisson schedule they are cumulative sums of unit exponentials. The
arrivals are then an inhomogeneous Poisson process with exactly the rate of the schedule (time
rescaling; Cinlar, Introduction to Stochastic Processes, 1975, 4.7).
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from divgrpc.errors import invalid

Times = npt.NDArray[np.float64]

# Number of arrivals drawn at a time, so that memory use does not grow with the duration of a run.
_BLOCK: Final = 2**16
_STEP: Final = re.compile(
    r"(?P<begin>{0})(\.\.(?P<end>{0}))?[:/](?P<length>{0})(?P<unit>ms|s|m|h)".format(
        r"\d+(?:\.\d+)?"
    )
)
_UNITS: Final = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_FORM: Final = "steps such as 100:10s and ramps such as 100..1000/30s, separated by commas"


@dataclass(frozen=True, slots=True)
class Step:
    """A rate that changes linearly from `begin` to `end`, in calls per second, over `seconds`."""

    begin: float
    end: float
    seconds: float

    def __post_init__(self) -> None:
        for field, value in (("rate", self.begin), ("rate", self.end), ("duration", self.seconds)):
            if not (math.isfinite(value) and value >= 0):
                raise invalid(field, f"must be at least 0, got {value!r}")

    @property
    def calls(self) -> float:
        """The expected number of arrivals."""
        return (self.begin + self.end) / 2 * self.seconds

    def times(self, numbers: Times) -> Times:
        """Return the times of the arrivals `numbers` (n,), in seconds since the step began."""
        # Solve begin * t + slope * t^2 / 2 = number for t, in a form that allows slope 0.
        slope = (self.end - self.begin) / self.seconds if self.seconds else 0.0
        root = np.sqrt(np.maximum(self.begin**2 + 2 * slope * numbers, 0))
        divisor = self.begin + root
        return np.divide(2 * numbers, divisor, out=np.zeros_like(numbers), where=divisor > 0)


@dataclass(frozen=True, slots=True)
class Schedule:
    """Steps, one after the other; `str` has the form that `parse_schedule` takes."""

    steps: tuple[Step, ...]

    def __str__(self) -> str:
        return ",".join(f"{step.begin:g}..{step.end:g}/{step.seconds:g}s" for step in self.steps)

    @property
    def seconds(self) -> float:
        """Duration of the schedule in seconds."""
        return sum(step.seconds for step in self.steps)

    @property
    def calls(self) -> float:
        """The expected number of arrivals."""
        return sum(step.calls for step in self.steps)

    def times(self, numbers: Times) -> Times:
        """Return the times of the arrivals `numbers` (n,), in seconds from the start.

        Every number must be below `calls`.
        """
        ends = np.cumsum([step.calls for step in self.steps])
        places = np.minimum(np.searchsorted(ends, numbers, side="right"), len(self.steps) - 1)
        times, start = np.zeros_like(numbers), 0.0
        for place, step in enumerate(self.steps):
            in_step = places == place
            times[in_step] = start + step.times(numbers[in_step] - (ends[place] - step.calls))
            start += step.seconds
        return times

    def arrivals(self, *, poisson: bool = False, seed: int = 0) -> Iterator[Times]:
        """Yield the times of all arrivals in ascending order, in blocks.

        The same seed gives the same times.
        """
        draws, start = np.random.default_rng([seed, 0]), 0.0
        # If `calls` should be a whole number, rounding may make it slightly larger. The factor
        # prevents an additional arrival in that case.
        end = self.calls * (1 - 1e-12)
        while start < end:
            if poisson:
                numbers = start + np.cumsum(draws.standard_exponential(_BLOCK))
                start = float(numbers[-1])
            else:
                numbers = np.arange(start, start + _BLOCK)
                start += _BLOCK
            yield self.times(numbers[numbers < end])


def constant(rate: float, seconds: float) -> Schedule:
    """Return the schedule of one rate."""
    return Schedule((Step(rate, rate, seconds),))


def parse_schedule(text: str) -> Schedule:
    """Parse a schedule; raises `InvalidArgumentError` if the text is not a schedule."""
    steps = []
    for part in text.split(","):
        times = _STEP.fullmatch(part.strip())
        if times is None:
            raise invalid("schedule", f"must be {_FORM}; {part.strip()!r} is neither")
        begin, length = float(times["begin"]), float(times["length"])
        end = begin if times["end"] is None else float(times["end"])
        steps.append(Step(begin, end, length * _UNITS[times["unit"]]))
    schedule = Schedule(tuple(steps))
    if schedule.calls < 1:
        raise invalid("schedule", f"{text!r} has not one call in it")
    return schedule
