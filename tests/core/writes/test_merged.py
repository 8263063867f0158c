"""A reader of merges alone sees the writes that were merged, and never fewer than before."""

from pathlib import Path

import numpy as np
import pytest

from divgrpc import Collection
from divgrpc.storage.generations import IndexFolder
from divgrpc.storage.layouts import read_merged
from divgrpc.types import Points, Progress
from divgrpc.writes.opening import open_engine, open_index
from divgrpc.writes.replica import MergedReplica
from support.data.written_points import (
    Model,
    a_collection,
    drawn_points,
    upsert,
)

pytestmark = pytest.mark.usefixtures("no_syncs")

POINTS = drawn_points(120, 9)
OLD: Model = dict(enumerate(POINTS[:40]))
MERGED: Model = dict(enumerate(POINTS[40:60], 100))
LATER: Model = dict(enumerate(POINTS[60:70], 200))


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_only_merged_writes_are_seen(tmp_path: Path, kind: Points) -> None:
    """The description counts what is seen, as that of the whole collection counts all."""
    path = tmp_path / "points"
    with a_collection(path, OLD, points=kind) as collection:
        upsert(collection, MERGED)
        collection.compact()
        expected = collection.info
        upsert(collection, LATER)
        replica = open_index(path, is_merged=True)
        assert isinstance(replica, MergedReplica)
        assert expected.writes is not None
        assert replica.follow().sequence == expected.writes.sequence
        assert open_engine(path, is_merged=True).rows == 60
        info = IndexFolder(path).read_info(read_merged)
        for field in ("rows", "nonzeros", "rows_without_vector"):
            assert getattr(info, field) == getattr(expected, field)
        assert info.writes is not None
        assert info.writes.sequence == expected.writes.sequence
        collection.compact()
        assert replica.follow().sequence == collection.sequence
        assert IndexFolder(path).read_info(read_merged) == collection.info


def test_points_without_a_vector_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "points"
    vectors = np.eye(4, dtype=np.float32)
    with Collection.build(vectors, path=path, vectors_optional=True) as collection:
        collection.upsert([10, 11], [None, [1.0, 1.0, 0.0, 0.0]])
        collection.delete([0])
        collection.compact()
        info = IndexFolder(path).read_info(read_merged)
        assert info == collection.info
        assert info.rows_without_vector == 1


@pytest.mark.parametrize("method", ["retrain", "compact"])
def test_a_renewal_shows_no_fewer_writes_than_the_merges_before(
    tmp_path: Path, method: str
) -> None:
    """A merge while the new generation is made has writes that its first layout lacks."""
    path = tmp_path / "points"
    with a_collection(path, OLD) as collection:
        upsert(collection, MERGED)
        collection.delete([100])
        is_first = True

        def write(_: Progress) -> None:
            nonlocal is_first
            if is_first:
                is_first = False
                upsert(collection, LATER)
                collection.compact()

        options = {"vacuum": True} if method == "compact" else {}
        assert getattr(collection, method)(write, **options)
        assert collection.generation == 2
        engine = open_engine(path, is_merged=True)
        assert (engine.sequence, engine.rows) == (collection.sequence, 69)
