"""An index with writes that are merged, and with later ones."""

import os
from functools import partial
from pathlib import Path

import pytest

from support.data.damaged_indexes import requested_index
from support.processes.crashing_writer import skip_syncs


@pytest.fixture(autouse=True)
def no_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out syncs, which take most of the time of a test."""
    skip_syncs(partial(monkeypatch.setattr, os))


@pytest.fixture
def index(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Return the folder of the index; see `requested_index`."""
    return requested_index(tmp_path, request)
