"""Fixtures of the core's tests."""

from pathlib import Path

import pytest

from support.data.small_index import publish


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a published index."""
    path = tmp_path / "root" / "digits"
    publish(path)
    return path
