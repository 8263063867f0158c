"""A server that an experiment starts does not outlive the experiment."""

import signal
import socket
import subprocess
import sys
from contextlib import closing

import pytest

from support.processes.running_server import eventually

_EXPERIMENT = """
import time
from divgrpc_lab.server_process import running_server
with running_server("--workers", "1") as address:
    print(address, flush=True)
    time.sleep(600)
"""


def is_listening(address: str) -> bool:
    host, port = address.split(":")
    with closing(socket.socket()) as connection:
        return connection.connect_ex((host, int(port))) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone ends a process with its parent")
def test_a_server_ends_with_an_experiment_that_was_killed() -> None:
    command = [sys.executable, "-c", _EXPERIMENT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as experiment:
        assert experiment.stdout is not None
        address = experiment.stdout.readline().strip()
        assert is_listening(address)
        experiment.send_signal(signal.SIGKILL)
    eventually(lambda: not is_listening(address))
