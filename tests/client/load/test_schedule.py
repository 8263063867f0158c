"""When calls are due, and which call of the mix each one is."""

import asyncio
import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from divgrpc_client.load.generator import Generator, Task
from divgrpc_client.load.schedule import Schedule, Step, constant, parse_schedule
from divgrpc_client.load.settings import Settings
from divgrpc_client.rpc.security import Peer
from support.checks.refusals import refused

_RATES = st.floats(0, 2000)
_STEPS = st.builds(Step, _RATES, _RATES, st.floats(0.1, 20))


def times(schedule: Schedule, *, poisson: bool = False, seed: int = 0) -> np.ndarray:
    blocks = list(schedule.arrivals(poisson=poisson, seed=seed))
    return np.concatenate(blocks) if blocks else np.zeros(0)


def expected(schedule: Schedule, until: float) -> float:
    """Return how many calls are due before a time, which is the area below the curve of rates."""
    total = 0.0
    for step in schedule.steps:
        past = min(max(until, 0.0), step.seconds)
        slope = (step.end - step.begin) / step.seconds
        total += step.begin * past + slope * past * past / 2
        until -= step.seconds
    return total


@pytest.mark.parametrize("rate", [1, 3, 7.5, 1000])
def test_a_constant_rate_is_even(rate: float) -> None:
    due = times(constant(rate, 4))
    assert np.allclose(due, np.arange(math.ceil(rate * 4)) / rate)
    assert due[-1] < 4


@settings(deadline=None, derandomize=True, max_examples=40)
@given(st.lists(_STEPS, min_size=1, max_size=4))
def test_even_arrivals_follow_the_rates(steps: list[Step]) -> None:
    schedule = Schedule(tuple(steps))
    due = times(schedule)
    assert abs(len(due) - schedule.calls) <= 1
    assert (np.diff(due) >= -1e-9).all()
    for number in range(0, len(due), max(1, len(due) // 20)):
        assert expected(schedule, due[number]) == pytest.approx(number, abs=1e-4)


def test_a_step_of_no_rate_is_a_pause_and_one_of_no_time_is_left_out() -> None:
    due = times(parse_schedule("10:0s,10:1s,0:5s,10:1s"))
    assert len(due) == 20
    assert due[9] < 1
    assert due[10] >= 6


def test_a_seed_fixes_poisson_arrivals() -> None:
    schedule = constant(500, 20)
    first = times(schedule, poisson=True, seed=3)
    assert (first == times(schedule, poisson=True, seed=3)).all()
    second = times(schedule, poisson=True, seed=4)
    assert len(first) != len(second) or (first != second).any()


@pytest.mark.parametrize("text", ["500:40s", "0..1000/40s", "900..100/40s"])
def test_poisson_arrivals_are_poisson(text: str) -> None:
    """If the area below the rates replaces time, gaps between calls have mean 1 and deviation 1."""
    schedule = parse_schedule(text)
    due = times(schedule, poisson=True, seed=1)
    assert abs(len(due) - schedule.calls) < 4 * math.sqrt(schedule.calls)
    gaps = np.diff([expected(schedule, at) for at in due])
    assert gaps.mean() == pytest.approx(1, abs=0.03)
    assert gaps.std() == pytest.approx(1, abs=0.03)
    assert (gaps > 2).mean() == pytest.approx(math.exp(-2), abs=0.01)


def test_blocks_are_joined() -> None:
    due = times(constant(40_000, 4))
    assert len(due) == 160_000
    assert np.allclose(np.diff(due), 1 / 40_000)


def test_schedules_are_read() -> None:
    assert parse_schedule("100..1000/30s").steps == (Step(100, 1000, 30),)
    assert parse_schedule("100:10s, 200:500ms,7.5:1m").steps == (
        Step(100, 100, 10),
        Step(200, 200, 0.5),
        Step(7.5, 7.5, 60),
    )


def test_the_text_of_a_schedule_can_be_read() -> None:
    schedule = parse_schedule("100..1000/30s,7.5:1m")
    assert str(schedule) == "100..1000/30s,7.5..7.5/60s"
    assert parse_schedule(str(schedule)) == schedule


@pytest.mark.parametrize(
    "text",
    ["", "100", "100:10", "100..:10s", "..100:10s", "-5:10s", "1:10s,,1:10s", "0:10s", "a:1s"],
)
def test_invalid_schedules_are_refused(text: str) -> None:
    with refused("schedule"):
        parse_schedule(text)


@pytest.mark.parametrize("processes", [2, 3])
def test_traffic_does_not_depend_on_the_number_of_processes(processes: int) -> None:
    async def arrivals(place: int, processes: int) -> list[tuple[int, float, tuple[int, int]]]:
        messages = [[b"a"] * 5, [b"b"] * 9]
        load_settings = Settings(processes=processes, channels=1, poisson=True, seed=7)
        kinds = [("Query", 3.0), ("Query", 1.0)]
        task = Task(place, Peer("localhost:1"), kinds, messages, load_settings, constant(300, 10))
        return list(Generator(task).arrivals())

    alone = asyncio.run(arrivals(0, 1))
    together = [
        call for place in range(processes) for call in asyncio.run(arrivals(place, processes))
    ]
    assert sorted(together) == alone
    kinds = np.array([kind for _, _, (kind, _) in alone])
    assert (kinds == 0).mean() == pytest.approx(0.75, abs=0.05)
    assert {message for _, _, (kind, message) in alone if kind} == set(range(9))


class Counting(Generator):
    """A generator that notes the numbers of its first three calls and sends none of them."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.numbers: list[int] = []

    async def _call(self, number: int, due: float, kind: int, message: int) -> None:  # noqa: ARG002
        self.numbers.append(number)
        if len(self.numbers) == 3:
            self.stop()


@pytest.mark.parametrize("closed", [0, 2])
def test_processes_send_different_calls(closed: int) -> None:
    """In both kinds of loop, process i of n sends the calls i, i + n, i + 2n and so on."""

    async def numbers(place: int) -> list[int]:
        load_settings = Settings(processes=2, channels=1)
        kinds, messages = [("Query", 1.0)], [[b"a"]]
        schedule = constant(1000, 10)
        counting = Counting(
            Task(place, Peer("localhost:1"), kinds, messages, load_settings, schedule, closed)
        )
        await counting.run(time.monotonic())
        return counting.numbers

    assert [asyncio.run(numbers(place))[:3] for place in (0, 1)] == [[0, 2, 4], [1, 3, 5]]
