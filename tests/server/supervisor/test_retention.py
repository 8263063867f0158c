"""Replaced files stay for as long as the server that writes retains them."""

import time
from pathlib import Path

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
