"""How a batch is cut into slices, by the time that rows took."""

import time

import numpy as np
import pytest

from divgrpc_server.worker.batches import Pace


@pytest.mark.parametrize(("seconds", "ends"), [(0.0, True), (0.05, False)])
def test_a_last_slice_is_short_where_rows_before_it_were(seconds: float, *, ends: bool) -> None:
    """Before any row was answered nobody knows; of slow rows one alone is not short."""
    rows = 10
    pace = Pace(np.zeros((rows, 4), np.float32), "greedy")
    assert not pace.ends_soon
    stop = 0
    while stop < rows - 1 and not pace.ends_soon:
        with pace.step() as stop:
            time.sleep(seconds)
    assert pace.stop() == rows
    assert pace.ends_soon == ends


def test_a_batch_of_one_slice_does_not_end_soon_unseen() -> None:
    """It may be its last, and take any time."""
    pace = Pace(np.zeros((3, 4), np.float32), "greedy")
    assert pace.stop() == 3
    assert not pace.ends_soon


def test_rows_searched_together_are_cut_into_no_fewer() -> None:
    """However slow they are: fewer of them would cost more each."""
    pace, stops = Pace(np.zeros((30, 4), np.float32), "greedy"), [0]
    pace.set_shared_rows(16)
    while stops[-1] < 30:
        with pace.step() as stop:
            time.sleep(0.02)
        stops.append(stop)
    assert stops == [0, 8, 16, 24, 30]
