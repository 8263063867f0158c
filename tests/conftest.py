"""Fixtures that every part of the suite shares."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from divgrpc_client import Client
from support import documentation, toolchains
from support.running_server import RunningServer
from support.timeouts import alarm

_NEEDS_DATA = "needs DIVGRPC_DATA"


# The same examples in every run, however slow the machine is; some draw an index.
settings.register_profile(
    "suite", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("suite")


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Return the folder of the data sets; tests that ask for it skip where none is named."""
    folder = os.environ.get("DIVGRPC_DATA")
    if not folder:
        pytest.skip(f"{_NEEDS_DATA}, the folder of the data sets")
    return Path(folder)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Run a server with two workers for the whole session; its indexes are in `folder`/data."""
    folder = tmp_path_factory.mktemp("server")
    with RunningServer(folder, "--data-dir", str(folder / "data"), "--workers", "2") as running:
        yield running


@pytest.fixture(scope="session")
def client(server: RunningServer) -> Iterator[Client]:
    """Return a client of the session's server, with time enough for a busy machine."""
    with Client(server.target, timeout=30) as connected:
        yield connected


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Iterator[None]:
    """Bound what the fixtures of a test wait for."""
    with alarm():
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """Bound what a test waits for."""
    with alarm():
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """Bound what the end of a test waits for."""
    with alarm():
        yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """Say as the very last lines how many tests were skipped for want of tools and data sets."""
    yield
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return
    skipped = reporter.stats.get("skipped", [])
    reasons = [str(report.longrepr) for report in skipped]
    reporter.write_line(toolchains.summary(reasons))
    reporter.write_line(documentation.summary(reasons))
    count = sum(_NEEDS_DATA in reason for reason in reasons)
    reporter.write_line(f"{count} tests skipped for want of DIVGRPC_DATA")
