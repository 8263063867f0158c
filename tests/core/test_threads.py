"""Running a function on all cores, and matrix products on one."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest
import scipy.linalg
from threadpoolctl import threadpool_info, threadpool_limits

from divgrpc import Index
from divgrpc.parallel import on_all_cores, one_blas_thread
from divgrpc.types import Progress
from support.data.served_index import random_points

CORES = len(os.sched_getaffinity(0))
ROWS = 3_000


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


@pytest.fixture
def two_blas_threads() -> Iterator[None]:
    """Let matrix products of this process use two threads, as on a machine with two cores."""
    # A library that is loaded later would not have the limit.
    scipy.linalg.blas.ddot([1.0], [1.0])
    with threadpool_limits(2, user_api="blas"):
        yield


def blas_threads() -> set[int]:
    """Return how many threads matrix products may use, by each library that computes some."""
    return {
        library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"
    }


@pytest.mark.usefixtures("two_blas_threads")
def test_one_blas_thread_lasts_until_the_last_of_overlapping_blocks_ends() -> None:
    """Two builds of a process overlap, and the first one to begin may be the first to end."""
    first, second = ExitStack(), ExitStack()
    assert blas_threads() == {2}
    first.enter_context(one_blas_thread())
    assert blas_threads() == {1}
    second.enter_context(one_blas_thread())
    first.close()
    assert blas_threads() == {1}
    second.close()
    assert blas_threads() == {2}


@pytest.mark.usefixtures("two_blas_threads")
def test_an_exception_ends_the_block_of_one_blas_thread() -> None:
    with pytest.raises(ZeroDivisionError), one_blas_thread():
        raise ZeroDivisionError
    assert blas_threads() == {2}


@pytest.mark.usefixtures("two_blas_threads")
def test_hash_functions_nearest_points_and_label_models_use_one_blas_thread() -> None:
    """With two, their last digits would depend on the cores of the machine."""
    threads: dict[str, set[int]] = {}

    def note(progress: Progress) -> None:
        threads.setdefault(f"{progress.stage} {progress.rows_done}", set()).update(blas_threads())

    labels = np.arange(ROWS)[:, None] % 5 == np.arange(5)
    Index.build(
        random_points(ROWS), hash_family="cells", labels=labels, label_model="leml", rank=2,
        regularisation=1.0, progress=note,
    )  # fmt: skip
    one_thread = ("components 0", "cells 0", f"training labels {ROWS}")
    assert [threads[report] for report in one_thread] == [{1}] * len(one_thread)
    # The search for the nearest points reports this, and so do later parts of tuning.
    assert threads[f"tuning {ROWS}"] >= {1}
    assert threads[f"writing {ROWS}"] == {2}
