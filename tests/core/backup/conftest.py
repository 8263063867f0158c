"""An index with writes that are merged, and with later ones."""

import os
from pathlib import Path

import pytest

from divgrpc.types import HashFamily, Points
from support.data.damaged_indexes import written_index


@pytest.fixture(autouse=True)
def no_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out syncs, which take most of the time of a test."""
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)
    monkeypatch.setattr(os, "fdatasync", lambda _descriptor: None)


@pytest.fixture
def index(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Return the folder of the index.

    The parameter of the fixture, if there is one, is the hash family and the kind of the points.
    """
    default: tuple[HashFamily, Points] = ("cells", "dense")
    family, kind = getattr(request, "param", default)
    return written_index(tmp_path / "data" / "points", family, kind)
