"""Faults at failpoints: errors, short writes, delays, the death of a process, a loss of power."""

import errno
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar, get_args

from simulation.scheduler import Scheduler

# Error: the call fails, and half of what was to be written may be there. Short: half is written,
# and the call says so; other calls fail. Delay: other tasks run. Before, after, half: the process
# ends, or the power.
Kind = Literal["error", "short", "delay", "before", "after", "half"]
KINDS: Final = get_args(Kind)
_ENDS: Final[tuple[Kind, ...]] = ("before", "after", "half")
_WRITES: Final = ("write", "pwrite")
# At which call of a failpoint a fault happens.
_NAMED_COUNTS: Final = (1, 1, 1, 2, 3, 4)
_ERRORS_OF_A_BAD_DISK: Final = 12
_SYNC_OF_FOLDER: Final = "sync_folder"
# Among so many of the first syncs of folders, those of a bad disk fail.
_SYNCS_OF_FOLDERS: Final = (60, 240)
_RENAME: Final = ":os.rename"
_APPEND: Final = "writes.log:LogWriter.append:write_at"
_APPENDS_MAX: Final = 12
# Shares of the faults that are at any call, at a rename, and at an append to the log.
_ANYWHERE_SHARE: Final = 0.35
_RENAME_SHARE: Final = 0.2
_APPEND_SHARE: Final = 0.1
_DELAYS_SECONDS: Final = (0.001, 0.03, 0.2)
_ERRORS: Final = {
    "fsync": (errno.EIO, errno.ENOSPC),
    "fdatasync": (errno.EIO, errno.ENOSPC),
    "write": (errno.ENOSPC, errno.EIO),
    "pwrite": (errno.ENOSPC, errno.EIO),
    "posix_fallocate": (errno.ENOSPC,),
    "open": (errno.ENOSPC, errno.EMFILE, errno.EIO),
    "mkdir": (errno.ENOSPC, errno.EIO),
    "link": (errno.EPERM, errno.EIO),
}


@dataclass
class Fault:
    """A fault that happens once.

    count: at which call: of the failpoint `name`, or of all failpoints that call the function
        `name`, or of all failpoints if it is "".
    takes_power: whether the power is lost where a process would end.
    """

    kind: Kind
    count: int
    name: str = ""
    takes_power: bool = False
    half: bool = False
    choice: int = 0

    def __str__(self) -> str:
        return f"{self.kind}{' of power' * self.takes_power} at {self.name or 'any'} {self.count}"


_K = TypeVar("_K", bound=str)


class Focus(NamedTuple, Generic[_K]):
    """Where each seed of a past defect has one more fault.

    place: how the names of some failpoints begin. One of them has the fault.
    kinds: the kinds that it may have; an end is the one of a process.
    count_max: the greatest number of the call at which it happens.
    """

    place: str
    kinds: tuple[_K, ...]
    count_max: int = 1

    def draw(self, rng: random.Random, names: list[str]) -> tuple[str, _K, int]:
        """Return the name of a failpoint, a kind, and the number of a call."""
        name = rng.choice([name for name in names if name.startswith(self.place)])
        return name, rng.choice(self.kinds), rng.randint(1, self.count_max)


class Faults:
    """The faults of one run.

    log: the faults that have happened.
    lose_power: ends all processes.
    """

    def __init__(self, scheduler: Scheduler, faults: list[Fault]) -> None:
        self._scheduler, self.waiting = scheduler, faults
        self.log: list[str] = []
        self.lose_power: Callable[[], None] = lambda: None

    def call(
        self, name: str, call: str, function: Callable[..., Any], arguments: tuple[Any, ...]
    ) -> Any:  # noqa: ANN401  # as of `function`
        """Call a function of the system, unless a fault happens."""
        fault = self._fault_at(name)
        if fault is None:
            return function(*arguments)
        task = self._scheduler.task
        assert task is not None
        self.log.append(f"{fault.kind} {name} {call} in {task.process.name}, {task.name}")
        if fault.kind == "delay" or (call == "store" and fault.kind in ("error", "short")):
            # A store to memory does not fail.
            self._scheduler.sleep(_DELAYS_SECONDS[fault.choice % len(_DELAYS_SECONDS)])
            return function(*arguments)
        if fault.kind in ("short", "error") or (fault.kind == "half" and call in _WRITES):
            return self._fail(fault, call, function, arguments)
        if fault.kind == "after":
            function(*arguments)
        return self._end(fault)

    def _fail(
        self, fault: Fault, call: str, function: Callable[..., Any], arguments: tuple[Any, ...]
    ) -> Any:  # noqa: ANN401  # as of `function`
        """Write half, or nothing; then return, raise an error, or end."""
        count = None
        if call in _WRITES and (fault.kind != "error" or fault.half):
            descriptor, data, *rest = arguments
            data = bytes(data)
            if len(data) > 1:
                count = function(descriptor, data[: len(data) // 2], *rest)
        if fault.kind == "half":
            return self._end(fault)
        if fault.kind == "short" and call in _WRITES:
            return function(*arguments) if count is None else count
        numbers = _ERRORS.get(call, (errno.EIO,))
        number = numbers[fault.choice % len(numbers)]
        raise OSError(number, os.strerror(number))

    def _end(self, fault: Fault) -> None:
        if fault.takes_power:
            self.lose_power()
        task = self._scheduler.task
        assert task is not None
        self._scheduler.kill(task.process)

    def _fault_at(self, name: str) -> Fault | None:
        callee = name.rpartition(":")[2].partition("#")[0]
        for fault in self.waiting:
            if fault.name in ("", name, callee):
                fault.count -= 1
                if fault.count == 0:
                    self.waiting.remove(fault)
                    return fault
        return None


def draw_faults(rng: random.Random, names: list[str], *, power: bool) -> list[Fault]:
    """Return some faults: at any call, or at a failpoint, rare ones as often as others.

    Many are right after a rename, when it may not be on the disk yet, and at an append to the log,
    when earlier records may not be there either.
    """
    faults, renames = [], [name for name in names if name.endswith(_RENAME)]
    for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 4))):
        kind: Kind = rng.choice(KINDS)
        name, count, power_share = rng.choice(names), rng.choice(_NAMED_COUNTS), 0.7
        place = rng.random()
        if place < _ANYWHERE_SHARE:
            name, count = "", rng.randint(1, 600)
        elif place < _ANYWHERE_SHARE + _RENAME_SHARE:
            name, kind, power_share = rng.choice(renames), rng.choice((kind, "after")), 0.4
        elif place < _ANYWHERE_SHARE + _RENAME_SHARE + _APPEND_SHARE:
            name, kind, count = _APPEND, rng.choice(_ENDS), rng.randint(1, _APPENDS_MAX)
        takes_power = power and kind in _ENDS and rng.random() < power_share
        fault = Fault(kind, count, name, takes_power, rng.random() < 0.5, rng.randrange(6))
        faults.append(fault)
    return faults


def draw_focused(rng: random.Random, names: list[str], focus: Focus[Kind]) -> Fault:
    """Return the fault of a focus."""
    name, kind, count = focus.draw(rng, names)
    return Fault(kind, count, name, half=rng.random() < 0.5, choice=rng.randrange(6))


def draw_errors(rng: random.Random, names: list[str]) -> list[Fault]:
    """Return the faults of a disk that fails often: errors at failpoints, soon in the run."""
    return [
        Fault("error", rng.choice(_NAMED_COUNTS), name, half=True, choice=rng.randrange(6))
        for name in rng.sample(names, _ERRORS_OF_A_BAD_DISK)
    ]


def draw_errors_of_syncs(rng: random.Random) -> list[Fault]:
    """Return the faults of a disk that often fails to sync a folder: renames may be lost."""
    counts = rng.sample(range(1, rng.choice(_SYNCS_OF_FOLDERS)), _ERRORS_OF_A_BAD_DISK)
    return [Fault("error", count, _SYNC_OF_FOLDER, choice=rng.randrange(6)) for count in counts]
