"""Tells an engine which indexes are in the data folder, and how large their shards are.

The folder is the truth: servers on other machines may change indexes too, and so does
`divgrpc reshard`. So this process looks at the folder again and again, and no builder has to reach
it.
"""

import asyncio
import contextlib
from pathlib import Path
from typing import Final

from divgrpc.errors import DivgrpcError
from divgrpc.storage.generations import IndexFolder, list_indexes
from divgrpc.storage.mounts import check_mounted
from divgrpc.storage.shard_sizes import current_shard_sizes
from divgrpc_server.data_folder import watch
from divgrpc_server.engines.engine import Engine
from divgrpc_server.engines.memory import bytes_at_places
from divgrpc_server.logging.logs import Logger

_LOOK_SECONDS: Final = 1.0


async def follow_indexes(engine: Engine, root: Path, log: Logger) -> None:
    """Tell the engine of each change of an index in the folder `root`, until it is cancelled."""
    stamps: dict[str, object] = {}
    async for latest in watch(root, _stamps, _LOOK_SECONDS, log):
        await _tell(engine, root, stamps, latest)


def needs_of_indexes(root: Path, places: int) -> list[int]:
    """Return the bytes that all indexes in the folder `root` need at each place."""
    names: list[str] = []
    # A check of the folder says what is wrong with it, and queries what is wrong with an index.
    with contextlib.suppress(OSError):
        names = list_indexes(root)
    needs = [0] * places
    for name in names:
        with contextlib.suppress(DivgrpcError, OSError):
            sizes = current_shard_sizes(IndexFolder(root / name))
            needs = [*map(sum, zip(needs, bytes_at_places(sizes, places), strict=True))]
    return needs


async def _tell(
    engine: Engine, root: Path, stamps: dict[str, object], latest: dict[str, object]
) -> None:
    """Tell the engine what differs from `stamps`, and note it there."""
    for name in stamps.keys() - latest.keys():
        await engine.drop(name)
        del stamps[name]
    for name, stamp in latest.items():
        if stamp is None or stamp == stamps.get(name):
            continue
        # Queries report damage. The memory of an index that is damaged is kept as it was.
        with contextlib.suppress(DivgrpcError, OSError):
            sizes = await asyncio.to_thread(current_shard_sizes, IndexFolder(root / name))
            await engine.place(name, sizes)
            stamps[name] = stamp


def _stamps(root: Path) -> dict[str, object]:
    """Return a value for each index that changes with its generation, None if it is damaged.

    Raises `OSError`.
    """
    names = list_indexes(check_mounted(root))
    return {name: _stamp(IndexFolder(root / name)) for name in names}


def _stamp(index: IndexFolder) -> object:
    with contextlib.suppress(DivgrpcError, OSError):
        return index.pointer_stamp()
    return None
