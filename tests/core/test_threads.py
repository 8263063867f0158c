"""Running a function on all cores with `on_all_cores`."""

import os
import threading
import time

import pytest

from divgrpc.parallel import on_all_cores

CORES = len(os.sched_getaffinity(0))


def test_results_come_in_order_and_threads_are_reused() -> None:
    threads: set[threading.Thread] = set()

    def work(item: int) -> int:
        threads.add(threading.current_thread())
        time.sleep(0.001 * (item % 3))
        return item * item

    for _ in range(10):
        assert list(on_all_cores(work, range(40))) == [item * item for item in range(40)]
    assert len(threads) <= CORES


def test_the_first_error_is_raised_and_stops_all_work() -> None:
    items_under_way: list[int] = []
    starts: list[int] = []

    def work(item: int) -> None:
        starts.append(item)
        items_under_way.append(item)
        time.sleep(0.01)
        items_under_way.remove(item)
        if item == 1:
            raise ValueError(item)

    with pytest.raises(ValueError, match="1"):
        list(on_all_cores(work, range(1000)))
    assert not items_under_way
    assert len(starts) < 500
    before = len(starts)
    time.sleep(0.05)
    assert len(starts) == before


def test_nested_calls_do_not_deadlock() -> None:
    """Inner calls complete even though the outer call keeps all threads busy."""

    def outer(item: int) -> int:
        return sum(on_all_cores(lambda inner: inner * item, range(5)))

    assert list(on_all_cores(outer, range(50))) == [10 * item for item in range(50)]


@pytest.mark.skipif(CORES < 2, reason="one core has no threads beside it")
def test_a_forked_process_starts_its_own_threads() -> None:
    """A forked child cannot use the parent's threads, so it starts its own."""
    assert list(on_all_cores(abs, range(5))) == list(range(5))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = int(list(on_all_cores(abs, range(5))) != list(range(5)))
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
