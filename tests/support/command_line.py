"""Commands of the command line: how they ended, and how to start one as a program of its own."""

import os
import subprocess
import sys
from typing import Any, NamedTuple

from divgrpc_client.cli import options as verbs
from support.running_server import tied


class Ran(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


def start(target: str, *arguments: object, **options: Any) -> "subprocess.Popen[bytes]":  # noqa: ANN401  # Popen's
    """Start a command as a program of its own."""
    command = [sys.executable, "-m", "divgrpc_client", *map(str, arguments)]
    environment = {**os.environ, verbs.TARGET_VARIABLE: target, "TERM": "xterm"}
    return subprocess.Popen(tied(command), env=environment, **options)


def read_terminal(descriptor: int) -> str:
    """Read what is written to a terminal until its last writer is gone."""
    blocks = []
    try:
        while block := os.read(descriptor, 65536):
            blocks.append(block)
    except OSError:
        pass  # how a terminal ends
    os.close(descriptor)
    return b"".join(blocks).decode()
