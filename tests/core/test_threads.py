"""Work on all cores."""

import os
import threading
import time

import pytest

from divgrpc.threads import on_all_cores

CORES = len(os.sched_getaffinity(0))


def test_results_come_in_order_and_threads_stay() -> None:
    """Whoever is done first; a second round starts no more threads."""

    def work(item: int) -> int:
        time.sleep(0.002 * (item % 3))
        return item * item

    assert list(on_all_cores(work, range(40))) == [item * item for item in range(40)]
    before = threading.active_count()
    assert list(on_all_cores(work, range(9))) == [item * item for item in range(9)]
    assert threading.active_count() <= max(before, CORES + 1)


def test_the_first_error_is_raised_and_nothing_goes_on_behind_it() -> None:
    """What was not begun is not begun any more, and what was is over."""
    running: list[int] = []

    def work(item: int) -> None:
        running.append(item)
        time.sleep(0.01)
        running.remove(item)
        if item == 1:
            raise ValueError(item)

    with pytest.raises(ValueError, match="1"):
        list(on_all_cores(work, range(1000)))
    assert not running


def test_work_within_work_ends() -> None:
    """All cores are busy then: it waits for none of them."""

    def outer(item: int) -> int:
        return sum(on_all_cores(lambda inner: inner * item, range(5)))

    assert list(on_all_cores(outer, range(50))) == [10 * item for item in range(50)]


@pytest.mark.skipif(CORES < 2, reason="one core has no threads beside it")
def test_a_fork_has_threads_of_its_own() -> None:
    """Those of the process before it are not there."""
    assert list(on_all_cores(abs, range(5))) == list(range(5))
    child = os.fork()
    if child == 0:
        os._exit(0 if list(on_all_cores(abs, range(5))) == list(range(5)) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
