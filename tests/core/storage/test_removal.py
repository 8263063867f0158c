"""What was replaced stays readable under another name, where a data folder retains it."""

from pathlib import Path

import numpy as np
import pytest

from divgrpc import Collection, Index
from divgrpc.doctor import check_folder
from divgrpc.storage.generations import ROOT_LOCK, IndexFolder, sweep
from divgrpc.storage.removal import RETIRED, remove

POINTS = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)


@pytest.mark.parametrize("retains", [True, False])
def test_files_that_are_replaced_are_retired_or_removed(tmp_path: Path, *, retains: bool) -> None:
    """Merges, builds and deletions replace files. The inode is what NFS knows a file by."""
    retired, path = tmp_path / RETIRED, tmp_path / "points"
    if retains:
        retired.mkdir()
    with Collection.build(POINTS, path=path) as collection:
        collection.delete([0])
        collection.compact()
        (layout,) = (path / "1" / "writes" / "layouts").glob("2")
        inodes = {layout.stat().st_ino, (path / "1").stat().st_ino}
        collection.delete([1])
        collection.compact()
        assert not layout.exists()
    Index.build(POINTS, path=path, replace=True)
    assert not (path / "1").exists()
    inodes.add(path.stat().st_ino)
    IndexFolder(path).delete()
    assert not path.exists()
    inodes_left = {entry.stat().st_ino for entry in retired.iterdir()} if retains else set()
    assert inodes <= inodes_left if retains else not inodes_left
    # Neither the doctor nor a sweep takes the folder for an index.
    (tmp_path / ROOT_LOCK).touch()
    assert sweep(tmp_path) == []
    assert check_folder(tmp_path) == []
    names = sorted(entry.name for entry in tmp_path.iterdir())
    assert names == [ROOT_LOCK, *[RETIRED] * retains]


def test_what_is_gone_already_is_no_error(tmp_path: Path) -> None:
    (tmp_path / RETIRED).mkdir()
    remove(tmp_path / "gone", tmp_path)
    remove(tmp_path / "gone")
    assert list((tmp_path / RETIRED).iterdir()) == []
