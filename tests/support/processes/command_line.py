"""Separate processes that tests start: commands of the command line, and Python scripts."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from divgrpc_client.cli import options as verbs
from support.processes.running_server import tied


class Ran(NamedTuple):
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:  # noqa: ANN401  # parsed
        """The output, parsed as JSON."""
        return json.loads(self.out)

    @property
    def error(self) -> dict[str, Any]:
        """The error that a command with --json prints."""
        error: dict[str, Any] = json.loads(self.err)["error"]
        return error

    @property
    def fields(self) -> list[str]:
        """The fields at fault in the error that a command with --json prints."""
        return [violation["field"] for violation in self.error["field_violations"]]


# A function that runs a command with some arguments.
Run: TypeAlias = Callable[..., Ran]


def start(target: str, *arguments: object, **options: Any) -> "subprocess.Popen[bytes]":  # noqa: ANN401  # Popen's
    command = [sys.executable, "-m", "divgrpc_client", *map(str, arguments)]
    environment = {**os.environ, verbs.TARGET_VARIABLE: target, "TERM": "xterm"}
    return subprocess.Popen(tied(command), env=environment, **options)


def read_terminal(descriptor: int) -> str:
    """Read the output of a terminal until all its writers have closed it."""
    blocks = []
    try:
        while block := os.read(descriptor, 65536):
            blocks.append(block)
    except OSError:
        pass  # reading a closed terminal fails on Linux
    os.close(descriptor)
    return b"".join(blocks).decode()


def run_script(script: str, *arguments: object, **environment: str) -> tuple[str, str]:
    """Run a Python script that must succeed; return its standard output and standard error."""
    process = subprocess.run(
        [sys.executable, "-P", "-c", script, *map(str, arguments)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.strip(), process.stderr
