"""The gauges of indexes, read from their files."""

import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from divgrpc.errors import DivgrpcError, IndexNotFoundError
from divgrpc.storage.generations import IndexFolder, list_indexes, read_manifest
from divgrpc.storage.layouts import read_merged
from divgrpc.storage.published import bytes_below, read_writes
from divgrpc.storage.shards import check_shard_manifest
from divgrpc.types import IndexInfo
from divgrpc_server.monitoring.definitions import DAMAGED
from divgrpc_server.monitoring.page import INDEXES_MAX, OTHER, Key, Values, accumulate

# The size of all files is measured at most this often, because indexes may have many files.
_SIZE_SECONDS: Final = 15.0


class IndexFiles:
    """Reads the gauges of all indexes below a folder. Only one thread may use it at a time."""

    def __init__(self, root: Path, *, is_read_only: bool = False) -> None:
        """Take the folder; a read-only server reads only merged writes."""
        self._root = root
        self._writes_of = read_merged if is_read_only else read_writes
        self._size, self._size_time = 0, -_SIZE_SECONDS
        # The names of the indexes that the last reading has found damaged.
        self.damaged: set[str] = set()

    def read(self, reports: Iterable[str] = ()) -> dict[Key, Values]:
        """Return the gauges; those above `INDEXES_MAX` indexes are added up as `OTHER`.

        reports: the names of the indexes that processes have found damaged. Those that were deleted
            since do not count.
        """
        gauges: dict[Key, Values] = {}
        names = list_indexes(self._root)
        damaged = {*reports} & {*names, OTHER}
        for number, name in enumerate(names):
            folder = IndexFolder(self._root / name)
            try:
                info = folder.read_info(self._writes_of)
                accumulate(gauges, _gauges(name, info) if number < INDEXES_MAX else _sums(info))
                if info.shards:
                    folder.read_current(_check_shards)
            except IndexNotFoundError:
                continue  # deleted meanwhile
            except (DivgrpcError, OSError, ValueError, KeyError, TypeError):
                damaged.add(name)
        self.damaged = damaged
        gauges[(DAMAGED,)] = [len(damaged)]
        gauges[("divgrpc_data_bytes",)] = [self._data_bytes()]
        with suppress(OSError):
            gauges[("divgrpc_free_bytes",)] = [shutil.disk_usage(self._root).free]
        return gauges

    def _data_bytes(self) -> int:
        now = time.monotonic()
        if now - self._size_time >= _SIZE_SECONDS:
            self._size, self._size_time = bytes_below(self._root), now
        return self._size


def _check_shards(generation: Path) -> None:
    """Raise `IndexDamagedError` if the description of a shard cannot be read."""
    manifest = read_manifest(generation)
    for shard in range(len(manifest.shards)):
        check_shard_manifest(generation, manifest, shard)


def divided_indexes(root: Path) -> list[str]:
    """Return the names of the indexes that are divided among shards; damaged ones are left out."""
    names = []
    for name in list_indexes(root):
        folder = IndexFolder(root / name)
        with suppress(DivgrpcError, OSError, ValueError, KeyError, TypeError):
            if read_manifest(folder.path / str(folder.current())).shards:
                names.append(name)
    return names


def _sums(info: IndexInfo) -> dict[Key, Values]:
    """Return the gauges of an index that add up with those of others."""
    no_sums = ("divgrpc_index_generation", "divgrpc_index_sequence")
    return {key: values for key, values in _gauges(OTHER, info).items() if key[0] not in no_sums}


def _gauges(name: str, info: IndexInfo) -> dict[Key, Values]:
    writes = info.writes
    return {
        ("divgrpc_index_generation", name): [info.generation],
        ("divgrpc_index_points", name, "live"): [info.rows],
        ("divgrpc_index_points", name, "delta"): [writes.rows_unmerged if writes else 0],
        ("divgrpc_index_points", name, "dead"): [writes.rows_dead if writes else 0],
        ("divgrpc_index_sequence", name): [writes.sequence if writes else 0],
        ("divgrpc_index_log_bytes", name): [writes.log_bytes if writes else 0],
    }
