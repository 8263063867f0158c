"""The last thing in some runs: a file is damaged, and the doctor repairs the index.

The process of the doctor may end at a failpoint, or get an error of the disk. Another repair
follows. After it, the index can be written to, and has all points if the doctor has said so.
"""

import random
from collections.abc import Callable
from typing import Final

from divgrpc import Collection, Index
from divgrpc.doctor import check_folder
from divgrpc.storage.generations import POINTER, IndexFolder
from divgrpc.storage.published import LAYOUT
from divgrpc.writes.layout import WritesFolder
from divgrpc.writes.opening import open_engine
from simulation.faults import Fault, Kind
from simulation.history import Version
from simulation.scheduler import Process
from simulation.world import World
from support.data.stamped_points import stamps_of

_KINDS: Final[tuple[Kind, ...]] = ("before", "after", "half", "error", "short")
_CALLS_MAX: Final = 40
# How often CURRENT, LAYOUT and the log are damaged.
_WEIGHTS: Final = (1, 2, 1)
_DAMAGED_BYTES: Final = 8


def check_repair(world: World, attempt: Callable[[str, Callable[[Process], object]], bool]) -> None:
    """Damage a file, and check what repairs leave.

    attempt: starts a process that may fail after a fault; returns whether it did not.
    """
    rng = random.Random(world.rng.random())
    folder = WritesFolder(world.path / str(IndexFolder(world.path).current()))
    names = {"CURRENT": _lose_pointer, "LAYOUT": _lose_layout, "the log": _damage_log}
    name = rng.choices(sorted(names), _WEIGHTS)[0]
    if not names[name](world, folder, rng):
        return
    world.history.note(f"{name} is damaged")
    verdicts: list[str] = []
    attempt("doctor", lambda _: verdicts.extend(r.verdict for r in check_folder(world.path)))
    world.faults.waiting = [Fault(rng.choice(_KINDS), rng.randint(1, _CALLS_MAX))]
    attempt("repair", lambda _: check_folder(world.path, repair=True, accept_loss=True))
    world.faults.waiting = []
    is_done = attempt("repair", lambda _: check_folder(world.path, repair=True, accept_loss=True))
    world.history.check(is_done, "a repair fails without a fault")
    is_whole = verdicts in (["ok"], ["repairable"])
    attempt("check", lambda _: _check(world, is_whole=is_whole, has_layout=name != "LAYOUT"))


def _lose_pointer(world: World, _folder: WritesFolder, _rng: random.Random) -> bool:
    (world.path / POINTER).unlink()
    return True


def _lose_layout(_world: World, folder: WritesFolder, _rng: random.Random) -> bool:
    path = folder.path / LAYOUT
    is_there = path.exists()
    path.unlink(missing_ok=True)
    return is_there


def _damage_log(_world: World, folder: WritesFolder, rng: random.Random) -> bool:
    """Write zeros over eight bytes of a file that are not zeros."""
    files = [path for _, path in folder.log.files()]
    if not files:
        return False
    path = rng.choice(files)
    data = bytearray(path.read_bytes())
    end = len(data.rstrip(b"\0"))
    start = rng.randrange(max(1, end - _DAMAGED_BYTES))
    data[start : start + _DAMAGED_BYTES] = bytes(_DAMAGED_BYTES)
    path.write_bytes(data)
    return True


def _check(world: World, *, is_whole: bool, has_layout: bool) -> None:
    """Check all points, and that the index can be written to.

    is_whole: whether nothing may be lost.
    has_layout: whether later writes alone may be lost, and no points of Build.
    """
    (report,) = check_folder(world.path)
    damage = f"after a repair, the doctor finds {report.findings}"
    world.history.check(report.verdict == "ok", damage)
    index = Index(open_engine(world.path))
    version, stamps = Version(index.engine.generation, index.engine.sequence), stamps_of(index)
    if is_whole or has_layout:
        floor = world.history.latest if is_whole else Version(version.generation, 0)
        world.history.check_answer(version, stamps, floor, "a reader after a repair")
    with Collection.open(world.path) as collection:
        again = Version(collection.generation, collection.sequence)
        world.history.check(again == version, f"a writer opens {again} after a repair")
        collection.delete([0], write_id="after a repair")
