"""A scripted server with both clients, and the command line with a real server."""

from collections.abc import Iterator

import pytest

from divgrpc_client.cli import main
from support.processes.both_clients import Stack
from support.processes.command_line import Ran, Run
from support.processes.running_server import RunningServer
from support.processes.scripted_server import ScriptedIndex, serving


@pytest.fixture
def script() -> ScriptedIndex:
    """Return a scripted server, whose answers the test sets."""
    return ScriptedIndex()


@pytest.fixture
def target(script: ScriptedIndex) -> Iterator[str]:
    """Serve the scripted server on a free port, and yield its address."""
    with serving(script) as address:
        yield address


@pytest.fixture(params=["sync", "aio"])
def call(request: pytest.FixtureRequest, target: str) -> Stack:
    """Return each of the two clients, connected to the scripted server."""
    return Stack(target, is_async=request.param == "aio")


@pytest.fixture
def run(server: RunningServer, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command on the session's server, and return its exit code and output.

    The first argument is the command, such as "ls" or "attributes add".
    """

    def run(*arguments: object) -> Ran:
        verb, *rest = map(str, arguments)
        try:
            common = ["--target", server.target, "--timeout", "30"]
            code = main.main([*verb.split(), *common, *rest])
        except SystemExit as end:
            code = int(end.code or 0)
        return Ran(code, *capsys.readouterr())

    return run
