"""Fixtures and hooks of the whole test suite."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from divgrpc_client import Client
from support.checks import documentation
from support.checks.timeouts import alarm
from support.processes import toolchains
from support.processes.running_server import RunningServer

_NEEDS_DATA = "needs DIVGRPC_DATA"


# Every run tests the same examples, fewer than by default, because the suite has 180 such tests.
# They have no time limit, because some of them build an index.
settings.register_profile(
    "suite",
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("suite")
# A shell starts background commands with SIGINT ignored. Programs that tests start would inherit
# this, and Ctrl-C would not end them.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Return the folder of the data sets, or skip the test if DIVGRPC_DATA is not set."""
    folder = os.environ.get("DIVGRPC_DATA")
    if not folder:
        pytest.skip(f"{_NEEDS_DATA}, the folder of the data sets")
    return Path(folder)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Run a server with two workers for the whole session; indexes are in `folder`/data."""
    folder = tmp_path_factory.mktemp("server")
    with RunningServer(folder, "--data-dir", str(folder / "data"), "--workers", "2") as running:
        yield running


@pytest.fixture(scope="session")
def client(server: RunningServer) -> Iterator[Client]:
    """Return a client of the session's server, whose timeout allows for a busy machine."""
    with Client(server.target, timeout=30) as session_client:
        yield session_client


@pytest.hookimpl(wrapper=True)
def _limit_time() -> Iterator[None]:
    """Limit the time of a test, of its fixtures or of its teardown."""
    with alarm():
        yield


pytest_runtest_setup = pytest_runtest_call = pytest_runtest_teardown = _limit_time


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """Print at the end of the run how many tests were skipped for missing tools and data sets."""
    yield
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return
    reports = reporter.stats.get("skipped", [])
    reasons = [str(report.longrepr) for report in reports]
    reporter.write_line(toolchains.summary(reasons))
    reporter.write_line(documentation.summary(reasons))
    count = sum(_NEEDS_DATA in reason for reason in reasons)
    reporter.write_line(f"{count} tests skipped for want of DIVGRPC_DATA")
