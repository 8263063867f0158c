"""A soak finds lost calls and leaks; `make soak` makes a long one."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest

from divgrpc_client.load import Settings, constant
from divgrpc_client.load.record import SAMPLE, Run
from support.loads import soak
from support.loads.slopes import SAMPLES_MIN, TOLERANCES, Slope, Usage
from support.loads.soak import Disturbances
from support.processes.running_server import tied

SECONDS = 8.0
UNAVAILABLE, EXHAUSTED, INTERNAL = (
    code.value[0]
    for code in (
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.INTERNAL,
    )
)
# A process that leaks a descriptor, a mapping, a thread and 2 MiB each time, or nothing at all.
LEAK = """
import mmap, os, sys, threading, time
kept, leaks = [], sys.argv[1] == "leak"
print("begins", flush=True)
while True:
    block = bytearray(os.urandom(64)) * (2**21 // 64)
    if leaks:
        kept += [block, os.dup(0), mmap.mmap(-1, 4096)]
        kept[-1][0] = 1
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    time.sleep(0.02)
"""


def test_a_soak_of_some_seconds_loses_no_call(tmp_path: Path) -> None:
    outcome = soak.run(SECONDS, tmp_path)
    print(soak.report(outcome))  # noqa: T201  # of a test that fails
    assert outcome.lost == []
    assert len(outcome.run.samples) > SECONDS
    assert {"cancellations", "builds"} <= outcome.events.keys()


@contextmanager
def process(word: str) -> Iterator[int]:
    command = tied([sys.executable, "-c", LEAK, word])
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "begins\n"
        yield running.pid
        running.kill()


@pytest.mark.parametrize("word", ["leak", "none"])
def test_leaks_of_a_process_are_seen(word: str) -> None:
    usage = Usage()
    with process(word) as pid:
        for _ in range(3 * SAMPLES_MIN):
            usage.sample(time.monotonic(), "worker", [pid])
            time.sleep(0.1)
    slopes = {slope.measure: slope for slope in usage.slopes(warm_up=0.5)}
    assert slopes.keys() == TOLERANCES.keys() - {"temporary files"}
    assert {slope.is_rising for slope in slopes.values()} == {word == "leak"}
    assert all(("RISING" in str(slope)) == slope.is_rising for slope in slopes.values())


def fitted(measure: str, values: np.ndarray) -> Slope:
    usage = Usage()
    for number, value in enumerate(values):
        usage.add(2.0 * number, "worker", 1, {measure: float(value)})
    (slope,) = usage.slopes(warm_up=100)
    return slope


@pytest.mark.parametrize("measure", TOLERANCES)
def test_noise_is_not_a_leak(measure: str) -> None:
    """A measure that falls again, as after a merge, and jumps for a moment, does not rise."""
    rng, numbers = np.random.default_rng(3), np.arange(400)
    size = TOLERANCES[measure].number
    flat = 40 + size * (numbers % 25) / 10 + rng.normal(0, size / 2, 400)
    flat[rng.random(400) < 0.05] += 10 * size
    flat[:50] = 0  # the warm-up
    assert not fitted(measure, flat).is_rising
    assert fitted(measure, flat + numbers * 4 * size / 400).is_rising


def test_a_process_that_lived_for_moments_has_no_slope() -> None:
    usage = Usage()
    for number in range(SAMPLES_MIN - 1):
        usage.add(number, "worker", 1, {"threads": 100.0 * number})
    assert usage.slopes(warm_up=0) == []
    usage.add(SAMPLES_MIN, "worker", 1, {"threads": 100.0 * SAMPLES_MIN})
    assert usage.slopes(warm_up=0)[0].is_rising


@pytest.mark.parametrize("code", [UNAVAILABLE, EXHAUSTED, INTERNAL, 255])
def test_only_writes_may_fail_while_the_writer_is_down(code: int) -> None:
    calls, now = soak.mix(), 1_000.0
    rows = [(now, now, now + 0.1, kind, code) for kind in range(len(calls))]
    settings, schedule = Settings(), constant(1, 1)
    samples, begin = np.array(rows, SAMPLE), now
    load = Run("", calls, settings, None, schedule, 0, begin, now + 1, samples, ())
    disturbances = Disturbances(None, None, None)  # type: ignore[arg-type]  # not used
    assert len(soak._lost(load, disturbances)) == len(calls)
    disturbances.writer_kills.append(now + 0.05)
    assert len(soak._lost(load, disturbances)) == len(calls) - 2 * (
        code in (UNAVAILABLE, EXHAUSTED)
    )
    disturbances.writer_kills[:] = [now + 0.2]
    assert len(soak._lost(load, disturbances)) == len(calls)
