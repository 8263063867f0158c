"""The fork server: its processes belong to the supervisor, and the server works without it."""

import errno
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from divgrpc.platforms import count_cores
from divgrpc_client import Client
from divgrpc_protos.v1.diverse_index_pb2_grpc import DiverseIndexStub
from divgrpc_server.config import Config
from divgrpc_server.forkserver.__main__ import fork
from divgrpc_server.ipc import control
from divgrpc_server.ipc.control import Message
from divgrpc_server.supervisor import child as child_module
from divgrpc_server.supervisor import supervisor as supervisor_module
from divgrpc_server.supervisor.child import Child
from divgrpc_server.supervisor.supervisor import Supervisor
from support.processes.running_server import RunningServer, eventually
from support.requests.manual_uploads import Held

POINTS = np.random.default_rng(0).standard_normal((100, 8)).astype(np.float32)


def is_forked(pid: int) -> bool:
    """Return whether a process was forked. It then has the environment of the fork server."""
    with suppress(OSError):  # it has just ended
        return b"SPT_NOENV=1" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return False


def states_of_children(server: RunningServer) -> dict[int, str]:
    """Return the state of each child of the supervisor, as `ps` shows it."""
    parent = server.process.pid
    pids = map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text().split())
    stats = {pid: Path(f"/proc/{pid}/stat").read_text() for pid in pids}
    return {pid: stat.rpartition(")")[2].split()[0] for pid, stat in stats.items()}


def test_processes_are_forked_and_belong_to_the_supervisor(tmp_path: Path) -> None:
    """Each has a session of its own; the fork server itself was started with exec."""
    with RunningServer(tmp_path, "--workers", "2") as server, Client(server.target) as client:
        client.build("points", POINTS)
        client.upsert("points", [1000], POINTS[:1])
        relevant = [[number] for number in range(5)]
        list(client.evaluate("points", POINTS[:5], relevant=relevant))
        # The builder of the first index may not have ended yet.
        eventually(lambda: not server.pids("builder"))
        with server.channel() as channel:
            Held(DiverseIndexStub(channel), "unfinished")
            counts = {"worker": 2, "writer": 1, "builder": 1, "evaluator": 1}
            roles = {role: server.pids(role) for role in counts}
            assert {role: len(pids) for role, pids in roles.items()} == counts
            forked = [pid for pids in roles.values() for pid in pids]
            for pid in forked:
                assert is_forked(pid)
                assert os.getsid(pid) == pid
        eventually(lambda: "Z" not in states_of_children(server).values())
    for pid in forked:
        assert not Path(f"/proc/{pid}").exists()


def test_a_builder_uses_all_cores() -> None:
    """The fork server has loaded all libraries of matrix products, each limited to one core."""
    program = (
        "import divgrpc_server.forkserver.__main__\n"
        "from divgrpc_server.builder.process import use_all_cores\n"
        "from threadpoolctl import threadpool_info\n"
        "import sys\n"
        "def counts():\n"
        "    return {info['num_threads'] for info in threadpool_info()}\n"
        "before = counts()\n"
        "use_all_cores()\n"
        "print(before, counts(), 'scipy.linalg' in sys.modules)"
    )
    outcome = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **dict.fromkeys(child_module._ONE_THREAD, "1")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert outcome.stdout == f"{{1}} {{{count_cores()}}} True\n"


def test_a_server_works_without_its_fork_server(tmp_path: Path) -> None:
    """A killed fork server harms no process, is replaced, and forks again. No zombie is left."""
    with RunningServer(tmp_path, "--workers", "1") as server, Client(server.target) as client:
        client.build("points", POINTS)
        workers = server.pids("worker")
        killed = server.kill("forkserver")
        assert len(client.query("points", POINTS[0], k=3).ids) == 1
        server.kill("worker")
        eventually(lambda: server.pids("worker") not in ([], workers), 30)
        assert len(client.query("points", POINTS[0], k=3, timeout=60).ids) == 1
        assert not is_forked(server.pids("worker")[0])
        eventually(lambda: server.pids("forkserver") not in ([], [killed]), 30)
        eventually(lambda: server.log.count("kernels are warm") >= 4, 60)

        def has_forked_worker() -> bool:
            (pid,) = server.pids("worker") or [0]
            if pid and not is_forked(pid):
                os.kill(pid, signal.SIGKILL)
            return pid > 0 and is_forked(pid)

        eventually(has_forked_worker, 30)
        eventually(lambda: "Z" not in states_of_children(server).values())


def test_workers_start_without_a_fork_server_that_cannot_start(tmp_path: Path) -> None:
    """Tools that are loaded into each process may start threads, and then forks are not safe."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(
        "import sys, threading, time\n"
        "if 'divgrpc_server.forkserver' in sys.orig_argv:\n"
        "    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    )
    environment = {"PYTHONPATH": str(tmp_path / "site")}
    with RunningServer(tmp_path, "--workers", "2", environment=environment) as server:
        assert "workers start without it" in server.log
        assert server.pids("forkserver") == []
        assert [is_forked(pid) for pid in server.pids("worker")] == [False, False]


def test_a_process_that_cannot_be_forked_is_started_with_exec(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A fork server that has just died still seems ready."""
    log, started = Mock(), Mock()
    started.side_effect = [BrokenPipeError(errno.EPIPE, "gone"), Mock(role="worker", serial=8)]
    monkeypatch.setattr(supervisor_module, "Child", started)
    supervisor = Supervisor(Config(), Path("/nowhere"), log)
    fork_server = Mock(role="forkserver", serial=7, ready=True)
    fork_server.exited.done.return_value = False
    supervisor._children[7] = fork_server
    monkeypatch.setattr(supervisor, "_spawn", lambda work: work.close())
    assert supervisor._start("worker").serial == 8
    assert [call.kwargs for call in started.call_args_list] == [
        {"fork_server": fork_server},
        {"secret": ""},
    ]
    assert log.warning.called


@pytest.mark.parametrize(
    ("replies", "code", "is_killed"),
    [([], errno.ETIMEDOUT, True), ([Message("forked", 0)], errno.EAGAIN, False)],
    ids=["no answer", "no room for a process"],
)
def test_a_fork_that_fails_is_an_error_of_the_system(
    monkeypatch: pytest.MonkeyPatch, replies: list[Message], code: int, is_killed: bool
) -> None:
    """A fork server that does not answer is killed: its answer could be taken for another one."""
    monkeypatch.setattr(child_module, "_FORK_MS", 20)
    end, other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    fork_server: Any = Mock(channel=control.Channel(end))
    with end, other_end:
        for reply in replies:
            control.Channel(other_end).send(reply)
        with pytest.raises(OSError, match=rf"^\[Errno {code}\]"):
            Child.fork(fork_server, "worker", 7, other_end)
        assert fork_server.kill.called == is_killed
        assert (fork_server.ready is False) == is_killed
        delivery = control.Channel(other_end).receive()
        assert delivery is not None
        assert delivery[0] == Message("fork", 7, "worker")
        os.close(delivery[1])


def test_orphans_that_ended_are_forgotten() -> None:
    """A process that something else waits for stays, ended or not, and so does one that runs."""
    ended, known, running = (
        subprocess.Popen([sys.executable, "-c", code])
        for code in ("", "", "import time; time.sleep(60)")
    )
    with known, running:
        for process in (ended, known):
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        child_module.reap_orphans([known.pid])
        assert not Path(f"/proc/{ended.pid}").exists()
        assert Path(f"/proc/{known.pid}").exists()
        assert running.poll() is None
        running.kill()
    ended.wait()


def test_a_fork_server_without_room_reports_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on, and keeps no descriptor."""
    monkeypatch.setattr(os, "fork", Mock(side_effect=OSError(errno.EAGAIN, "too many processes")))
    before = os.listdir("/proc/self/fd")
    assert fork(Mock(), Message("fork", 7, "worker"), 0) == 0
    assert len(os.listdir("/proc/self/fd")) == len(before)
