"""python -m support.loads.soak: load a server for long, and look for lost calls and for leaks.

The load harness of `divgrpc load` sends queries and writes at a constant rate. Meanwhile an index
is built again and again, another one is merged, vacuumed and retrained, calls are cancelled, and a
worker or the writer is killed. The exit code is 1

- if a call failed, unless it is a write that was under way while the writer was down, and which
  was refused with a time to retry or ended as UNAVAILABLE;
- if memory, descriptors, threads, maps or temporary files rise: `support.loads.slopes`.

One worker is never killed, and the writer is not killed in the second half, so that they live long
enough to show a slope.
"""

import argparse
import itertools
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc
import numpy as np

from divgrpc.errors import UnavailableError
from divgrpc_client import Client
from divgrpc_client.load import Call, Session, Settings, constant
from divgrpc_client.load.record import OK, Run
from divgrpc_protos.arrays import encode_dense
from divgrpc_protos.v1 import query_pb2
from divgrpc_protos.v1.diverse_index_pb2_grpc import DiverseIndexStub
from support.data.served_index import random_points
from support.loads.builds import Builds
from support.loads.slopes import Slope, Usage, file_count
from support.processes.running_server import RunningServer, eventually
from support.requests.manual_uploads import Held, chunk

_NAME: Final = "points"
_ROWS: Final = 4_000
_RATE: Final = 40.0
_PENDING: Final = ("--pending-calls", "20000")
_SAMPLE_SECONDS: Final = 2.0
# A new writer makes writes after at most so many seconds, also on a busy machine.
_WRITER_SECONDS: Final = 30.0
_ROLES: Final = ("front", "worker", "writer", "evaluator", "forkserver")
_WRITES: Final = ("Upsert", "Delete")
# While there is no writer, the queue of writes does not move, so a front refuses further ones.
_EXCUSED: Final = [
    code.value[0] for code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)
]
# The share of the run in which caches fill.
_WARM_UP_SHARE: Final = 0.3


@dataclass
class Outcome:
    """What a run showed: its calls, the calls that were lost, and the slopes."""

    run: Run
    lost: list[str]
    slopes: list[Slope]
    events: dict[str, int]

    @property
    def faults(self) -> list[str]:
        """Sentences about lost calls and rising slopes."""
        rising = [str(slope) for slope in self.slopes if slope.is_rising]
        return self.lost + rising


@dataclass
class Disturbances:
    """What happens to a server during the load, one step after another."""

    server: RunningServer
    client: Client
    stub: DiverseIndexStub
    builds: Builds = field(default_factory=Builds)
    events: dict[str, int] = field(default_factory=dict)
    writer_kills: list[float] = field(default_factory=list)
    draw: random.Random = field(default_factory=lambda: random.Random(1))

    def run(self, seconds: float, end: threading.Event) -> None:
        """Make steps until the end; the writer is not killed in the second half of the time."""
        begin = time.monotonic()
        for number in itertools.count():
            steps = [self._cancel, self._read, self._merge, self._build, self._read]
            steps[number % len(steps)]()
            if number % 12 == 7:
                self._kill_worker()
            if number % 40 == 19:
                self._vacuum()
            if number % 25 == 11 and time.monotonic() - begin < seconds / 2:
                self._kill_writer()
            if end.wait(0.5):
                return

    def _count(self, event: str) -> None:
        self.events[event] = self.events.get(event, 0) + 1

    def _read(self) -> None:
        self.builds.read(self.client, [1, 2, 3])

    def _build(self) -> None:
        self.builds.build(self.client)
        self._count("builds")

    def _merge(self) -> None:
        self._patiently(lambda: self.client.compact(_NAME))
        self._count("merges")

    def _vacuum(self) -> None:
        self._patiently(lambda: self.client.compact(_NAME, vacuum=True))
        self._patiently(lambda: self.client.retrain(_NAME))
        self._count("vacuums and retrainings")

    def _cancel(self) -> None:
        """Cancel a long query, a stream and an upload."""
        batch = query_pb2.QueryRequest(index=_NAME, queries=encode_dense(random_points(2_000)))
        call = self.stub.Query.future(batch, timeout=60)
        messages = itertools.repeat(query_pb2.QueryStreamRequest(query=batch), 3)
        stream = self.stub.QueryStream(messages, timeout=60)
        upload = Held(self.stub, f"cancelled-{self.draw.randrange(3)}")
        upload.send(chunk(np.ones((3, 4), np.float32)))
        time.sleep(self.draw.random() * 0.2)
        for cancelled in (call, stream, upload.call):
            cancelled.cancel()
        upload.send(None)
        self._count("cancellations")

    def _kill_worker(self) -> None:
        """Kill the youngest worker, once all are up."""
        eventually(lambda: self.client.server_info().workers_ready == 2)
        self.server.kill("worker", -1)
        self._count("kills of a worker")

    def _kill_writer(self) -> None:
        for pid in self.server.pids("writer"):
            self.writer_kills.append(time.monotonic())
            os.kill(pid, signal.SIGKILL)
            self._count("kills of the writer")

    def _patiently(self, call: Callable[[], object]) -> None:
        """Make a call of the writer again while the writer is down."""
        while True:
            try:
                call()
            except UnavailableError:
                if not self.is_writer_down(time.monotonic()):
                    raise
                time.sleep(0.2)
            else:
                return

    def is_writer_down(self, seconds: float, begin: float | None = None) -> bool:
        """Tell whether the writer may be down at a time, or between `begin` and this time."""
        first = seconds if begin is None else begin
        return any(k <= seconds and first <= k + _WRITER_SECONDS for k in self.writer_kills)


def mix() -> list[Call]:
    """Return the calls of the load."""
    points = random_points(_ROWS, seed=2)
    diverse: Any = {"k": 10, "diversity": 0.3}
    return [
        Call(_NAME, points, diverse, share=6),
        Call(_NAME, points, {"k": 20, "search": "exact", "selector": "mmr"}, batch=16),
        Call(_NAME, points, {"first_id": 0}, "Upsert", batch=8, share=2),
        Call(_NAME, points[: _ROWS // 8], {"first_id": 0}, "Delete", batch=2, share=0.5),
    ]


def run(seconds: float, folder: Path) -> Outcome:
    """Load a server for so many seconds."""
    data, temporary = folder / "data", folder / "temporary"
    temporary.mkdir()
    # Writes wait while there is no writer. A front must not end other calls for them.
    options = ("--data-dir", str(data), "--workers", "2", "--no-access-log", *_PENDING)
    environment = {"TMPDIR": str(temporary)}
    with (
        RunningServer(folder, *options, environment=environment) as server,
        Client(server.target, timeout=60, retries=False) as client,
        server.channel() as channel,
        ThreadPoolExecutor(2) as threads,
    ):
        disturbances = Disturbances(server, client, DiverseIndexStub(channel))
        client.build(_NAME, random_points(_ROWS, seed=3), ids=np.arange(_ROWS))
        disturbances.builds.build(client)
        usage, end = Usage(), threading.Event()
        settings = Settings(timeout=60, warm_up=0)
        with Session(server.target, mix(), settings) as session:
            watching = threads.submit(_watch, server, usage, (temporary, data), end)
            disturbing = threads.submit(disturbances.run, seconds, end)
            try:
                load = session.run(constant(_RATE, seconds))
            finally:
                end.set()
            for task in (watching, disturbing):
                task.result()
        disturbances.builds.check()
    lost = _lost(load, disturbances)
    slopes = usage.slopes(_WARM_UP_SHARE * seconds)
    return Outcome(load, lost, slopes, disturbances.events)


def _watch(
    server: RunningServer, usage: Usage, folders: tuple[Path, Path], end: threading.Event
) -> None:
    begin = time.monotonic()
    while not end.wait(_SAMPLE_SECONDS):
        seconds = time.monotonic() - begin
        usage.sample(seconds, "supervisor", [server.process.pid])
        for role in _ROLES:
            usage.sample(seconds, role, server.pids(role))
        usage.add(seconds, "server", 0, {"temporary files": file_count(*folders)})


def _lost(load: Run, disturbances: Disturbances) -> list[str]:
    """Return sentences about the calls of the load that failed without an excuse."""
    lost = []
    for sample in load.samples[load.samples["code"] != OK]:
        call, code = load.calls[sample["kind"]], int(sample["code"])
        is_down = disturbances.is_writer_down(float(sample["done"]), float(sample["sent"]))
        if not (call.method in _WRITES and code in _EXCUSED and is_down):
            kills = [f"{sample['done'] - kill:.1f}" for kill in disturbances.writer_kills]
            lost.append(
                f"{call.name}: code {code}, so many seconds after kills of the writer: {kills}"
            )
    return lost


def report(outcome: Outcome) -> str:
    samples = outcome.run.samples
    failed = int((samples["code"] != OK).sum())
    lines = [
        f"{len(samples):,} calls in {outcome.run.seconds:.0f} s, {failed} failed;"
        f" {failed - len(outcome.lost)} of these were writes during a kill of the writer",
        ", ".join(f"{count} {event}" for event, count in outcome.events.items()),
        *map(str, outcome.slopes),
        *outcome.lost[:20],
        f"{len(outcome.lost)} lost calls, {len(outcome.faults) - len(outcome.lost)} rising slopes",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30, help="(default 30)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="divgrpc-soak-") as folder:
        outcome = run(60 * arguments.minutes, Path(folder))
    sys.stdout.write(report(outcome) + "\n")
    sys.exit(1 if outcome.faults else 0)


if __name__ == "__main__":
    main()
