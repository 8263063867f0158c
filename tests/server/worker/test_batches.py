"""How a batch is cut into slices by the time that earlier rows took."""

import time

import numpy as np
import pytest

from divgrpc_server.worker.batches import Pace


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Replace the monotonic clock by one whose seconds are the only item of the list."""
    seconds = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: seconds[0])
    return seconds


@pytest.mark.parametrize(("seconds", "ends"), [(0.0, True), (0.05, False)])
def test_a_last_slice_is_short_if_earlier_rows_were_fast(
    clock: list[float], seconds: float, *, ends: bool
) -> None:
    """Before the first row is answered, the time per row is unknown."""
    rows = 10
    pace = Pace(np.zeros((rows, 4), np.float32), "greedy")
    assert not pace.ends_soon
    stop = 0
    while stop < rows - 1 and not pace.ends_soon:
        with pace.step() as stop:
            clock[0] += seconds
    assert pace.stop() == rows
    assert pace.ends_soon == ends


def test_the_end_of_a_batch_of_one_slice_is_unknown() -> None:
    """In a batch of one slice no rows come earlier, so the slice's time cannot be estimated."""
    pace = Pace(np.zeros((3, 4), np.float32), "greedy")
    assert pace.stop() == 3
    assert not pace.ends_soon


def test_slices_have_a_minimum_for_rows_searched_together(clock: list[float]) -> None:
    """Even slow slices have 8 rows, because fewer rows would lose the gain of a common search."""
    pace, stops = Pace(np.zeros((30, 4), np.float32), "greedy"), [0]
    pace.set_shared_rows(16)
    while stops[-1] < 30:
        with pace.step() as stop:
            clock[0] += 0.02
        stops.append(stop)
    assert stops == [0, 8, 16, 24, 30]
