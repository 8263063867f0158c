"""Workers killed at random under load: no call may fail.

A server with two workers, callers without retries, and at even intervals `kill -9` for a worker
drawn by the seed. The run ends with an error where a call failed.
"""

import os
import random
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.harness.runner import Option, Options, Output
from divgrpc import Index
from divgrpc_client import Client
from divgrpc_client.rpc.errors import RpcError
from support.running_server import RunningServer
from support.served_index import random_points

OPTIONS: Final = {
    "kills": Option(20, "killed workers"),
    "seconds": Option(60.0, "seconds in all"),
    "callers": Option(4, "callers at a time"),
    "seed": Option(0, "seed of the draws"),
}
_ROWS, _DIMS, _BATCH_ROWS = 20_000, 64, 100
# Seconds of a call, and its failure or "".
_Call = tuple[float, str]


def rows(options: Options) -> Iterator[Output]:
    """Yield one row; raises RuntimeError where a call failed."""
    calls = _calls(options)
    failures = Counter(failure for _, failure in calls if failure)
    yield {
        "kills": options.kills,
        "calls": len(calls),
        "slowest ms": 1e3 * max(seconds for seconds, _ in calls),
        "failed": failures.total(),
    }
    if failures:
        raise RuntimeError(f"{failures.total()} calls failed: {dict(failures)}")


def _calls(options: Options) -> list[_Call]:
    stop, draw = threading.Event(), random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="divgrpc-chaos-") as temporary:
        folder = Path(temporary)
        Index.build(random_points(_ROWS, dims=_DIMS), path=folder / "data" / "chaos")
        arguments = ("--data-dir", str(folder / "data"), "--workers", "2")
        with RunningServer(folder, *arguments) as server, ThreadPoolExecutor() as callers:
            asking = [
                callers.submit(_ask, server.target, stop, seed) for seed in range(options.callers)
            ]
            for _ in range(options.kills):
                stop.wait(options.seconds / options.kills)
                os.kill(draw.choice(server.pids("worker")), signal.SIGKILL)
            stop.set()
            return [call for future in asking for call in future.result()]


def _ask(target: str, stop: threading.Event, seed: int) -> list[_Call]:
    """Query until stopped, every tenth time with a batch."""
    draw, calls = np.random.default_rng(seed), list[_Call]()
    with Client(target, timeout=30, retries=False) as client:
        while not stop.is_set():
            queries = draw.standard_normal((_BATCH_ROWS if draw.integers(10) == 0 else 1, _DIMS))
            started, failure = time.monotonic(), ""
            try:
                client.query("chaos", queries)
            except RpcError as error:
                failure = f"{error.code.name} {error.reason}"
            calls.append((time.monotonic() - started, failure))
    return calls
