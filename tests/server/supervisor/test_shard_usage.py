"""What shard servers of the same machine use."""

import os
import subprocess
import sys

import pytest

from divgrpc_server.supervisor import shard_usage
from divgrpc_server.supervisor.proc_files import Usage, read_descendants
from divgrpc_server.supervisor.shard_usage import ShardUsage

# A program that starts another one in a thread, and says when it runs.
_PARENT = """
import subprocess, sys, threading, time
def start():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    print(child.pid, flush=True)
    time.sleep(1000)
threading.Thread(target=start, daemon=True).start()
input()
"""


def test_descendants_are_those_of_all_threads() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        grandchild = int(parent.stdout.readline())
        assert read_descendants(parent.pid) == [grandchild]
        assert {parent.pid, grandchild} <= {*read_descendants(os.getpid())}
        parent.kill()
    assert read_descendants(parent.pid) == []


def test_processor_time_never_falls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if processes end, and if another one has the id of one that ended."""
    seconds: dict[int, float] = {}
    monkeypatch.setattr(shard_usage, "read_descendants", lambda _: [*seconds])
    monkeypatch.setattr(shard_usage, "read_usage", lambda pid: Usage(100, 10, seconds[pid], 7, 2))
    usage = ShardUsage()
    totals = []
    for now in ({}, {5: 1.0, 6: 2.0}, {5: 1.5, 6: 2.0}, {5: 1.5}, {5: 0.25, 7: 1.0}):
        seconds = now
        series = usage.read([1])
        totals.append(series["divgrpc_cpu_seconds_total", "shard_server"][0])
        assert series.get(("divgrpc_processes", "shard_server"), [0]) == [len(now)]
    assert totals == [0.0, 3.0, 3.5, 3.5, 4.75]
    assert series["divgrpc_resident_memory_bytes", "shard_server", "private"] == [200]
    assert usage.read([]) == {("divgrpc_cpu_seconds_total", "shard_server"): [4.75]}
