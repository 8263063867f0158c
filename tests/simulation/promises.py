"""Where a loss of power might break a promise: moments at which the disk seems to be wrong.

A run has hundreds of moments, and a recovery at each of them would take too long. So the simulator
reads in a simple way which version a recovery would have. It reads what is certain on the disk,
whenever a version is promised or a folder is synced, and what processes see, whenever the log has
got a record. It looks first where something seems to be wrong.
"""

import json
from contextlib import suppress

from divgrpc.errors import IndexDamagedError
from divgrpc.storage.generations import POINTER
from divgrpc.storage.manifest import MANIFEST
from divgrpc.storage.published import LAYOUT, LAYOUTS, LOG, LOG_SUFFIX, WRITES
from divgrpc.writes.log import entries
from simulation.history import Version
from simulation.world import INDEX, World


def doubtful_events(world: World) -> list[tuple[int, float]]:
    """Return the events of the disk at which it seems to be wrong, each with a share.

    The share is the probability that a change which was not synced is there (`Disk.leave`).
    """
    assert world.disk is not None
    events = sorted({*(event for event, _ in world.floors), *world.disk.folder_syncs})
    doubts = [(event, 0.0) for event in events if _seems_lost(world, event)]
    doubts += [(event, 1.0) for event in world.appends if _seems_added(world, event)]
    events = sorted({*world.removals, *world.disk.folder_syncs})
    return doubts + [(event, 0.5) for event in events if _seems_removed(world, event)]


def _seems_lost(world: World, event: int) -> bool:
    """Tell whether what is certain lacks promised writes, or has some that no caller had sent."""
    assert world.disk is not None
    promised = world.floor_at(event)
    files = world.disk.certain(event)
    with suppress(KeyError, ValueError, IndexDamagedError):
        disk_version = version_in(files)
        lineages = world.history.lineages
        is_same = lineages[disk_version.generation] is lineages[promised.generation]
        has_fewer = is_same and disk_version.sequence < promised.sequence
        has_less = disk_version < promised or has_fewer
        is_wrong = _lacks_layout(files, disk_version) or _has_more(world, event, disk_version)
        return has_less or is_wrong
    return False


def _seems_added(world: World, event: int) -> bool:
    """Tell whether the files have writes that no caller had sent."""
    assert world.disk is not None
    with suppress(KeyError, ValueError, IndexDamagedError):
        return _has_more(world, event, version_in(world.disk.latest(event)))
    return False


def _seems_removed(world: World, event: int) -> bool:
    """Tell whether the generation was removed that is certain to be the current one."""
    assert world.disk is not None
    pointer = f"{INDEX}/{POINTER}"
    certain, latest = world.disk.certain(event), world.disk.latest(event)
    manifest = f"{INDEX}/{certain.get(pointer, b'').decode().strip()}/{MANIFEST}"
    return pointer in certain and pointer in latest and manifest not in latest


def _has_more(world: World, event: int, disk_version: Version) -> bool:
    """Tell whether a version has writes that no caller had sent at an event."""
    numbers = [v for time, v in world.proposals if time <= event]
    is_last = bool(numbers) and numbers[-1].generation == disk_version.generation
    return is_last and disk_version.sequence > numbers[-1].sequence


def _lacks_layout(files: dict[str, bytes], version: Version) -> bool:
    """Tell whether the current generation has files of a layout, and no LAYOUT."""
    folder = f"{INDEX}/{version.generation}/{WRITES}"
    later = f"{folder}/{LOG}/", f"{folder}/{LAYOUTS}/2/"
    return f"{folder}/{LAYOUT}" not in files and any(path.startswith(later) for path in files)


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
