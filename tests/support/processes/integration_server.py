"""A pytest plugin with a server for the tests of the integrations.

The environment of an integration has the client alone, so the server runs in that of the project.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from divgrpc_client import Client
from support.processes.running_server import RunningServer

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a server for the whole session, and return its address."""
    folder = tmp_path_factory.mktemp("server")
    options = ("--data-dir", str(folder / "data"), "--workers", "1")
    with RunningServer(folder, *options, python=ROOT / ".venv/bin/python") as running:
        with Client(running.target) as client:
            client.wait_until_ready(timeout=300)
        yield running.target
