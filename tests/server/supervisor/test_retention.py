"""Replaced files stay for as long as the server that writes retains them."""

import shutil
import time
from pathlib import Path

import pytest

from divgrpc.storage.removal import RETIRED
from divgrpc_server.supervisor import retention


def test_files_go_when_their_time_is_over(tmp_path: Path) -> None:
    """Files of others stay, whatever their names are."""
    retention.begin(tmp_path, 60)
    now = time.time_ns()
    names = [f"{now - seconds * 10**9}-{seconds}" for seconds in (0, 50, 70)]
    for name in names:
        (tmp_path / RETIRED / name).mkdir()
    (tmp_path / RETIRED / f"{now - 80 * 10**9}-file").touch()
    (tmp_path / RETIRED / "notes").touch()
    retention.remove_retired(tmp_path, 60)
    left = {entry.name for entry in (tmp_path / RETIRED).iterdir()}
    assert left == {*names[:2], "notes"}
    # A server that starts with the option keeps them, and one that starts without does not.
    retention.begin(tmp_path, 60)
    assert len(list((tmp_path / RETIRED).iterdir())) == len(left)
    retention.begin(tmp_path, 0)
    assert not (tmp_path / RETIRED).exists()
    retention.begin(tmp_path, 0)


def test_the_oldest_files_go_if_they_take_more_room_than_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise builds would find no room, and a deletion would make none."""
    retention.begin(tmp_path, 60)
    now = time.time_ns()
    names = [f"{now - seconds * 10**9}-{seconds}" for seconds in (1, 2, 3)]
    for name in names:
        (tmp_path / RETIRED / name).mkdir()
        (tmp_path / RETIRED / name / "vectors.npy").write_bytes(bytes(100_000))
    for free, left in ((10**9, 3), (250_000, 2), (120_000, 1), (50_000, 0)):
        usage = shutil.disk_usage(tmp_path)._replace(free=free)
        monkeypatch.setattr(shutil, "disk_usage", lambda _, usage=usage: usage)
        retention.remove_retired(tmp_path, 60)
        monkeypatch.undo()
        assert {entry.name for entry in (tmp_path / RETIRED).iterdir()} == {*names[:left]}
