"""Collections whose index is deleted while they are open."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from divgrpc import Collection
from divgrpc.errors import IndexChangedError, IndexNotFoundError
from divgrpc.storage.generations import IndexFolder
from divgrpc.storage.layouts import LayoutInfo
from divgrpc.writes import layout
from support.data.written_points import Model, a_collection, drawn_points, upsert

POINTS = drawn_points(60, 3)
OLD: Model = dict(enumerate(POINTS[:40]))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "points"


def test_an_index_that_was_deleted_and_built_again_is_not_written_to(path: Path) -> None:
    """Its generation has the same number."""
    collection = a_collection(path, OLD)
    upsert(collection, {1: POINTS[50]})
    IndexFolder(path).delete()
    with a_collection(path, OLD) as again:
        assert again.generation == collection.generation
        with pytest.raises(IndexChangedError, match="was replaced; open it again"):
            upsert(collection, {2: POINTS[51]})
        assert upsert(again, {3: POINTS[52]}) == 1
    collection.close()


def test_an_index_that_is_deleted_during_a_merge_stays_deleted(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection = a_collection(path, OLD)
    upsert(collection, {1: POINTS[50]})
    write_layout = layout.WritesFolder.merge

    def late(*arguments: Any) -> LayoutInfo:  # noqa: ANN401  # those of `merge`
        IndexFolder(path).delete()
        return write_layout(*arguments)

    monkeypatch.setattr(layout.WritesFolder, "merge", late)
    with pytest.raises(IndexNotFoundError, match="there is no index 'points'"):
        collection.compact()
    collection.close()
    assert list(path.parent.iterdir()) == []


def test_an_index_is_renamed_before_its_files_are_removed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a writer cannot add files meanwhile."""
    a_collection(path, OLD).close()
    remove_folder = shutil.rmtree

    def late(folder: Path, *, ignore_errors: bool) -> None:
        assert not path.exists()
        remove_folder(folder, ignore_errors=ignore_errors)

    monkeypatch.setattr(shutil, "rmtree", late)
    IndexFolder(path).delete()
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("is_retrained", [False, True])
def test_nothing_is_written_to_a_deleted_index(path: Path, *, is_retrained: bool) -> None:
    """Neither a collection that was just opened nor one that was just retrained has written yet."""
    a_collection(path, OLD).close()
    with Collection.open(path) as collection:
        upsert(collection, {1: POINTS[50]})
    with Collection.open(path) as collection:
        assert not is_retrained or collection.retrain()
        IndexFolder(path).delete()
        calls: list[Callable[[], object]] = [
            lambda: upsert(collection, {1: POINTS[51]}),
            collection.compact,
            lambda: collection.compact(vacuum=True),
            collection.retrain,
        ]
        for call in calls:
            with pytest.raises(IndexNotFoundError):
                call()
        assert not path.exists()
