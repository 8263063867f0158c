"""Watches the indexes of a read-only server, which another server changes without telling.

Workers look at an index before each request. A front also lets them look without requests, so that
a worker with little to do opens new generations and merges too, and lets go of old files. A shard
server also lets go of what it has opened of a build that was given up.
"""

import os
from pathlib import Path
from typing import Final

from divgrpc.errors import DivgrpcError
from divgrpc.storage.generations import STAGING_INFIX, IndexFolder, list_indexes
from divgrpc.storage.layouts import layout_stamp
from divgrpc.storage.published import WRITES
from divgrpc_server.data_folder import watch
from divgrpc_server.front.pool import Pool
from divgrpc_server.logging.logs import Logger

_WATCH_SECONDS: Final = 1.0


async def follow(root: Path, pool: Pool, log: Logger) -> None:
    """Tell the workers of each change, until this task is cancelled."""
    stamps: dict[str, object] = {}
    async for latest in watch(root, _stamps, _WATCH_SECONDS, log):
        for name in latest.keys() | stamps.keys():
            if latest.get(name) != stamps.get(name):
                pool.refresh(name)
        stamps = latest


def _stamps(root: Path) -> dict[str, object]:
    """Return a value for each index that changes with its generation, its layout and its builds."""
    builds = _list_builds(root)
    names = {*list_indexes(root), *builds}
    return {name: (_stamp(IndexFolder(root / name)), builds.get(name)) for name in names}


def _stamp(index: IndexFolder) -> object:
    try:
        layout = layout_stamp(index.path / str(index.current()) / WRITES)
        return index.pointer_stamp(), layout
    except (DivgrpcError, OSError):
        return None  # the next request reports the damage, and other indexes go on


def _list_builds(root: Path) -> dict[str, list[str]]:
    """Return the sorted names of the staging folders, by the name of their index."""
    builds: dict[str, list[str]] = {}
    for entry in sorted(os.listdir(root)):
        name, infix, _ = entry.removeprefix(".").partition(STAGING_INFIX)
        if infix:
            builds.setdefault(name, []).append(entry)
    return builds
