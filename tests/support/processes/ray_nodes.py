"""Nodes of a Ray cluster on 127.0.0.1, for tests that kill and stop them.

`RayNodes` starts this module as a program, because Ray starts nodes from the main thread of a
process alone. The program obeys lines of standard input, and answers each with a line of JSON.
"""

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from support.processes.running_server import alive, descendants, eventually, tied

_MIB: Final = 2**20
_NODE_MEMORY_BYTES: Final = 8 * 2**30
_STORE_BYTES: Final = 80 * _MIB
_START_SECONDS: Final = 120
# What Ray takes for a node that is gone: a busy machine must not seem so.
_HEALTH: Final = {
    "health_check_initial_delay_ms": 2_000,
    "health_check_period_ms": 1_000,
    "health_check_timeout_ms": 2_000,
    "health_check_failure_threshold": 4,
}
# Ports that Ray gives to workers; it chooses them at random, and others on this machine too.
_FIRST_PORT: Final = 21_000


def environment_of(token: str) -> dict[str, str]:
    """Return the variables of all processes of a cluster, and of those that join it."""
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": token,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_gcs_rpc_server_reconnect_timeout_s": "3600",
    }


class RayNodes:
    """A head without room for shard servers, and nodes with it; `__enter__` starts them."""

    def __init__(self, nodes: int, *, keeps_state: bool = False) -> None:
        """Take the number of nodes beside the head.

        keeps_state: whether the head remembers the cluster when it is started again.
        """
        # The paths of sockets must be short.
        self.folder = Path(tempfile.mkdtemp(prefix="ray-"))
        self.environment = environment_of(secrets.token_hex(16))
        state = {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(self.folder / "state")}
        self._environment = self.environment | (state if keeps_state else {})
        # A node ends while it starts if its helpers, which are Python, take longer than this.
        self._environment["RAY_raylet_start_wait_time_s"] = str(_START_SECONDS)
        self._environment["RAY_agent_register_timeout_ms"] = str(_START_SECONDS * 1000)
        self._count = nodes
        self._program: subprocess.Popen[str] | None = None
        self.address = ""
        # The processes of each node by their names, at 0 the head.
        self.pids: list[dict[str, list[int]]] = []

    def __enter__(self) -> Self:
        with (self.folder / "log").open("wb") as log:
            self._program = subprocess.Popen(
                tied([sys.executable, "-W", "ignore", "-m", __name__, str(self.folder)]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **self._environment, "PYTHONPATH": os.pathsep.join(sys.path)},
                text=True,
            )
        try:
            for _ in range(1 + self._count):
                self.add()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def log(self) -> str:
        """What the program has written on standard error."""
        return (self.folder / "log").read_text(errors="replace")

    def add(self) -> int:
        """Start a node; return its number."""
        reply = self._command("add")
        self.address = reply["address"]
        self.pids.append(reply["pids"])
        return len(self.pids) - 1

    def processes(self, node: int) -> list[int]:
        """Return all processes of a node, with those that its workers have started."""
        roots = [pid for pids in self.pids[node].values() for pid in pids]
        return [pid for root in roots for pid in (root, *descendants(root))]

    def kill(self, node: int) -> None:
        """Kill all processes of a node at once, as the loss of a machine does."""
        pids = self.processes(node)
        # Its workers must not notice that the raylet is gone and say so.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            send(pids, number)
        self.pids[node] = {}
        eventually(lambda: not any(map(alive, pids)))

    def stop_head_store(self) -> None:
        """Kill the store of the head, which places and restarts actors."""
        send(self.pids[0]["gcs_server"], signal.SIGKILL)

    def start_head_store(self) -> None:
        """Start the store of the head again."""
        self.pids[0] = self._command("store")["pids"]

    def stop(self) -> None:
        """End all nodes."""
        program = self._program
        if program is not None:
            pids = [pid for node in range(len(self.pids)) for pid in self.processes(node)]
            send(pids, signal.SIGKILL)
            program.kill()
            program.wait()
            for stream in (program.stdin, program.stdout):
                if stream is not None:
                    stream.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _command(self, word: str) -> dict[str, Any]:
        program = self._program
        assert program is not None
        assert program.stdin is not None
        assert program.stdout is not None
        program.stdin.write(f"{word}\n")
        program.stdin.flush()
        line = program.stdout.readline()
        if not line:
            raise RuntimeError(f"the nodes did not start:\n{self.log}")
        reply: dict[str, Any] = json.loads(line)
        return reply


def send(pids: list[int], number: int) -> None:
    """Send a signal to processes; those that have ended get none."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def shard_supervisors(pids: list[int], folder: Path) -> list[int]:
    """Return those of some processes that are the supervisors of shard servers of a folder."""
    lines = {pid: command_line(pid) for pid in pids}
    words = b"--role=shard", os.fsencode(f"--data-dir={folder}/")
    return [pid for pid, line in lines.items() if all(word in line for word in words)]


def command_line(pid: int) -> bytes:
    """Return the words of a command, each with a zero byte behind it; none if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def free_port() -> int:
    """Return a port of 127.0.0.1 that is free now, below those that the system chooses."""
    for port in range(_FIRST_PORT + os.getpid() % 5_000, 32_000):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no port is free")


def _node(options: dict[str, Any], common: dict[str, Any], *, is_head: bool) -> Any:  # noqa: ANN401
    from ray._private.node import Node
    from ray._private.parameter import RayParams

    parameters = RayParams(**options, **common)
    return Node(parameters, head=is_head, shutdown_at_exit=False, spawn_reaper=True)


def _restart_store(head: Any) -> None:  # noqa: ANN401
    head.all_processes.pop("gcs_server")
    head._gcs_address = head._gcs_client = None
    head.start_gcs_server()


def _serve(folder: str) -> None:
    """Obey the lines of standard input."""
    answers = os.fdopen(os.dup(1), "w")
    # Ray writes on standard output too.
    os.dup2(2, 1)
    common: dict[str, Any] = {
        "node_ip_address": "127.0.0.1",
        "include_dashboard": False,
        "include_log_monitor": False,
        "object_store_memory": _STORE_BYTES,
        "temp_dir": folder,
        "min_worker_port": 0,
        "max_worker_port": 0,
    }
    # The head has no memory for shard servers.
    head_options = {"num_cpus": 0, "memory": _MIB, "gcs_server_port": free_port()}
    head: Any = None
    for line in sys.stdin:
        if head is None:
            head = node = _node(head_options | {"_system_config": _HEALTH}, common, is_head=True)
        elif line.strip() == "store":
            node = head
            _restart_store(head)
        else:
            options = {"num_cpus": 8, "memory": _NODE_MEMORY_BYTES}
            node = _node(options | {"gcs_address": head.gcs_address}, common, is_head=False)
        pids = {
            name: [process.process.pid for process in processes]
            for name, processes in node.all_processes.items()
        }
        answers.write(json.dumps({"address": head.gcs_address, "pids": pids}) + "\n")
        answers.flush()


if __name__ == "__main__":
    _serve(sys.argv[1])
