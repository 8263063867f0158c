"""Fixtures that every part of the suite shares."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

_NEEDS_DATA = "needs DIVGRPC_DATA"


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Return the folder of the data sets; tests that ask for it skip where none is named."""
    folder = os.environ.get("DIVGRPC_DATA")
    if not folder:
        pytest.skip(f"{_NEEDS_DATA}, the folder of the data sets")
    return Path(folder)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """Say as the very last line how many tests were skipped for want of the data sets."""
    yield
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return
    skipped = reporter.stats.get("skipped", [])
    count = sum(_NEEDS_DATA in str(report.longrepr) for report in skipped)
    reporter.write_line(f"{count} tests skipped for want of DIVGRPC_DATA")
