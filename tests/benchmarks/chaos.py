"""python -m benchmarks.chaos: kill random workers under load and count the calls that fail.

A server with two workers, callers without retries, and every few seconds `kill -9` for a worker
drawn by the seed. The promise is that no call fails. Exit code 1 where one did.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from benchmarks.tables import facts, show
from divgrpc import Index
from divgrpc_client import Client
from divgrpc_client.rpc.errors import RpcError
from support.running_server import RunningServer
from support.served_index import random_points

_ROWS, _DIMS = 20_000, 64
_BATCH_ROWS = 100


class Tally:
    """What became of the calls of all callers."""

    def __init__(self) -> None:
        self.calls = 0
        self.failures: Counter[str] = Counter()
        self.slowest = 0.0
        self._lock = threading.Lock()

    def note(self, seconds: float, failure: str | None) -> None:
        """Count a call."""
        with self._lock:
            self.calls += 1
            self.slowest = max(self.slowest, seconds)
            if failure is not None:
                self.failures[failure] += 1


def ask(target: str, stop: threading.Event, tally: Tally, seed: int) -> None:
    """Query until told to stop, every tenth time with a batch; never tries again."""
    rng = np.random.default_rng(seed)
    with Client(target, timeout=30, retries=False) as client:
        while not stop.is_set():
            rows = _BATCH_ROWS if rng.integers(10) == 0 else 1
            queries = rng.standard_normal((rows, _DIMS))
            begun, failure = time.monotonic(), None
            try:
                client.query("chaos", queries)
            except RpcError as error:
                failure = f"{error.code.name} {error.reason}"
            tally.note(time.monotonic() - begun, failure)


def run(arguments: argparse.Namespace) -> Tally:
    """Kill workers at even intervals while callers ask."""
    tally, stop, draw = Tally(), threading.Event(), random.Random(arguments.seed)
    with tempfile.TemporaryDirectory(prefix="divgrpc-chaos-") as temporary:
        folder = Path(temporary)
        Index.build(random_points(_ROWS, dims=_DIMS), path=folder / "data" / "chaos")
        options = ("--data-dir", str(folder / "data"), "--workers", "2")
        with RunningServer(folder, *options) as server, ThreadPoolExecutor() as callers:
            asking = [
                callers.submit(ask, server.target, stop, tally, seed)
                for seed in range(arguments.callers)
            ]
            for _ in range(arguments.kills):
                # Not a wait for anything: the time between kills is what is asked for.
                stop.wait(arguments.seconds / arguments.kills)
                os.kill(draw.choice(server.pids("worker")), signal.SIGKILL)
            stop.set()
            for future in asking:
                future.result()
    return tally


def main() -> None:
    """Run and report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=20, help="(default 20)")
    parser.add_argument("--seconds", type=float, default=60.0, help="in all (default 60)")
    parser.add_argument("--callers", type=int, default=4, help="at a time (default 4)")
    parser.add_argument("--seed", type=int, default=0, help="of the draws (default 0)")
    arguments = parser.parse_args()
    tally = run(arguments)
    failed = sum(tally.failures.values())
    show(
        facts(
            {
                "kills": str(arguments.kills),
                "calls": f"{tally.calls:,}",
                "slowest": f"{tally.slowest * 1e3:.0f} ms",
                "failed": ", ".join(f"{n} {what}" for what, n in tally.failures.items()) or "0",
            }
        )
    )
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
