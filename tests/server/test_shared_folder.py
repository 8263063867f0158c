"""The check that other machines have the data folder of this one."""

import os
from pathlib import Path

import pytest

from divgrpc_server.engines.shared_folder import fault_of, marker


def test_a_marker_is_seen_where_the_folder_is(tmp_path: Path) -> None:
    """It is removed at the end, and so is one that a killed process has left."""
    (tmp_path / ".nodes-old").touch()
    with marker(tmp_path) as path:
        assert os.listdir(tmp_path) == [path.name]
        assert fault_of(path, 0) == ""
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("name", ["missing", "missing/.nodes-1"])
def test_another_folder_is_a_fault(tmp_path: Path, name: str) -> None:
    assert "has another data folder" in fault_of(tmp_path / name, 0)


def test_a_lock_that_excludes_nobody_is_a_fault(tmp_path: Path) -> None:
    path = tmp_path / ".nodes-1"
    path.touch()
    assert fault_of(path, 0) == "does not see the file locks of other machines"


def test_a_folder_that_cannot_be_read_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert fault_of(tmp_path / "file" / ".nodes-1", 0) == (
        "cannot read the data folder: Not a directory"
    )
