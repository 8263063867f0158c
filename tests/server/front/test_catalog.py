"""What a front reports of an index whose files are damaged."""

import asyncio
import errno
import shutil
from pathlib import Path
from typing import Any, cast

import pytest

from divgrpc import Index
from divgrpc.errors import DivgrpcError, IndexDamagedError
from divgrpc.storage.generations import IndexFolder
from divgrpc.types import IndexInfo
from divgrpc_protos.v1 import index_pb2
from divgrpc_server.codec.statuses import OutOfMemoryError
from divgrpc_server.config import Config
from divgrpc_server.front.catalog import Catalog
from support.data.served_index import random_points

GET_INDEX_REQUEST = index_pb2.GetIndexRequest(index="bad").SerializeToString()


@pytest.mark.parametrize("file", ["1/manifest.json", "CURRENT"])
def test_one_bad_index_hides_no_other(tmp_path: Path, file: str) -> None:
    """An index with a folder in the place of a file is listed with a warning, but DATA_LOSS."""
    Index.build(random_points(50), path=tmp_path / "sound")
    shutil.copytree(tmp_path / "sound", tmp_path / "bad")
    (tmp_path / "bad" / file).unlink()
    (tmp_path / "bad" / file).mkdir()
    catalog = Catalog(Config(), tmp_path, cast("Any", None), lambda: True, lambda: (1, 1))
    answer = asyncio.run(catalog.list_indexes(b"", lambda _: True))
    descriptions = index_pb2.ListIndexesResponse.FromString(answer).indexes
    assert [(info.name, info.rows) for info in descriptions] == [("bad", 0), ("sound", 50)]
    assert descriptions[0].warnings[0].code == "INDEX_DAMAGED"
    with pytest.raises(IndexDamagedError):
        asyncio.run(catalog.get_index(GET_INDEX_REQUEST))


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (PermissionError(), IndexDamagedError),
        (OverflowError(), IndexDamagedError),
        (RecursionError(), IndexDamagedError),
        (OSError(errno.EMFILE, ""), OutOfMemoryError),
        (MemoryError(), OutOfMemoryError),
    ],
)
def test_any_error_of_reading_an_index_is_reported(
    error: Exception, meaning: type[DivgrpcError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error means that the index is damaged, unless memory or descriptors have run out."""

    def fail(_: IndexFolder) -> IndexInfo:
        raise error

    monkeypatch.setattr(IndexFolder, "read_info", fail)
    monkeypatch.setattr("divgrpc_server.front.catalog.list_indexes", lambda _: ["bad"])
    catalog = Catalog(Config(), Path("/nowhere"), cast("Any", None), lambda: True, lambda: (1, 1))
    with pytest.raises(meaning):
        asyncio.run(catalog.get_index(GET_INDEX_REQUEST))
    answer = asyncio.run(catalog.list_indexes(b"", lambda _: True))
    (info,) = index_pb2.ListIndexesResponse.FromString(answer).indexes
    assert (info.name, info.warnings[0].code) == ("bad", meaning.reason)
