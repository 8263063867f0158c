"""Where a loss of power might break a promise: moments at which the disk seems to have too little.

A run has hundreds of moments, and a recovery at each of them would take too long. So the simulator
reads in a simple way from what is certain on the disk which version a recovery would have, whenever
a version is promised or a folder is synced. It looks first where this version precedes the promised
one, or has writes that nobody has sent yet.
"""

import json
from contextlib import suppress

from divgrpc.errors import IndexDamagedError
from divgrpc.storage.generations import POINTER
from divgrpc.storage.published import LAYOUT, LOG, LOG_SUFFIX, WRITES
from divgrpc.writes.log import entries
from simulation.history import Version
from simulation.world import INDEX, World


def doubtful_events(world: World) -> list[int]:
    """Return the events of the disk at which it seems to lack the version that was promised."""
    assert world.disk is not None
    events = []
    for event in sorted({*(event for event, _ in world.floors), *world.disk.folder_syncs}):
        promised = world.floor_at(event)
        with suppress(KeyError, ValueError, IndexDamagedError):
            disk_version = version_in(world.disk.certain(event))
            lineages = world.history.lineages
            is_same = lineages[disk_version.generation] is lineages[promised.generation]
            has_fewer = is_same and disk_version.sequence < promised.sequence
            has_less = disk_version < promised or has_fewer
            if has_less or _has_more(world, event, disk_version):
                events.append(event)
    return events


def _has_more(world: World, event: int, disk_version: Version) -> bool:
    """Tell whether a version has writes that no caller had sent at an event."""
    numbers = [v for time, v in world.proposals if time <= event]
    is_last = bool(numbers) and numbers[-1].generation == disk_version.generation
    return is_last and disk_version.sequence > numbers[-1].sequence


def version_in(files: dict[str, bytes]) -> Version:
    """Return the version of the index in a folder, whose files are given by their paths in it.

    Raises `KeyError`, `ValueError` and `IndexDamagedError`.
    """
    generation = int(files[f"{INDEX}/{POINTER}"])
    folder = f"{INDEX}/{generation}/{WRITES}"
    layout = files.get(f"{folder}/{LAYOUT}")
    if layout is None:
        return Version(generation, 0)
    sequence = int(json.loads(layout)["sequence"])
    for path in sorted(files):
        if path.startswith(f"{folder}/{LOG}/") and path.endswith(LOG_SUFFIX):
            first = int(path.rpartition("/")[2].removesuffix(LOG_SUFFIX))
            if first > sequence + 1:
                break
            sequence = max(sequence, *(entry.sequence for entry in entries(files[path], first)), 0)
    return Version(generation, sequence)
