"""Where a loss of power might break a promise: moments at which the disk seems to be wrong.

A run has hundreds of moments, and a recovery at each of them would take too long. So the simulator
reads in a simple way which version a recovery would have. It reads what is certain on the disk,
whenever a version is promised or a folder is synced, and what processes see, whenever the log has
got a record. It looks first where something seems to be wrong.
"""

import json
from contextlib import suppress
from typing import Final

from divgrpc.errors import IndexDamagedError
from divgrpc.storage.generations import POINTER
from divgrpc.storage.manifest import MANIFEST
from divgrpc.storage.published import LAYOUT, LAYOUTS, LOG, LOG_SUFFIX, WRITES
from divgrpc.writes.log import entries
from simulation.history import Version
from simulation.world import INDEX, World

POINTER_RENAME: Final = "storage.generations:write_pointer:os.rename"


def doubtful_events(world: World) -> list[tuple[int, float]]:
    """Return the events of the disk at which it seems to be wrong, each with a share.

    The share is the probability that a change which was not synced is there (`Disk.leave`).
    """
    assert world.disk is not None
    events = sorted({*(event for event, _ in world.floors), *world.disk.folder_syncs})
    doubts = [(event, 0.0) for event in events if _seems_lost(world, event)]
    doubts += [(event, 1.0) for event in world.appends if _seems_added(world, event)]
    pointers = world.renames.get(POINTER_RENAME, [])
    events = sorted({*world.removals, *world.disk.folder_syncs, *pointers})
    return doubts + [(event, 0.5) for event in events if _may_lack_generation(world, event)]


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


def _may_lack_generation(world: World, event: int) -> bool:
    """Tell whether a generation is not certain to be there, or was removed, that may be current."""
    assert world.disk is not None
    certain, latest = world.disk.certain(event), world.disk.latest(event)
    pointer = f"{INDEX}/{POINTER}"
    if pointer not in certain or pointer not in latest:
        return False
    numbers = {files[pointer].decode().strip() for files in (certain, latest)}
    manifests = {f"{INDEX}/{number}/{MANIFEST}" for number in numbers}
    return not (manifests <= certain.keys() and manifests <= latest.keys())


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
