"""Indexes for the tests of the doctor."""

import os
from pathlib import Path

import pytest

from divgrpc.writes import log as log_module
from support.data.damaged_indexes import LAST, MERGED, MODELS, requested_index, write
from support.data.written_points import a_collection


@pytest.fixture(autouse=True)
def no_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out syncs, and let a file of the log hold the writes of a test, but few more."""
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)
    monkeypatch.setattr(os, "fdatasync", lambda _descriptor: None)
    monkeypatch.setattr(log_module, "FILE_BYTES", 1 << 16)


@pytest.fixture
def index(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Return the folder of an index with writes; see `requested_index`."""
    return requested_index(tmp_path, request)


@pytest.fixture
def index_with_short_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of such an index, whose log lacks the records that are merged.

    The first record after the merge has a file of its own.
    """
    path = tmp_path / "data" / "points"
    with a_collection(path, MODELS[0]) as collection:
        for number in range(1, LAST + 1):
            size = 64 if number <= MERGED + 1 else 1 << 16
            monkeypatch.setattr(log_module, "FILE_BYTES", size)
            write(collection, number)
            if number == MERGED:
                collection.compact()
    (path / "1" / "writes" / "log" / f"{MERGED:020d}.wal").unlink()
    return path
