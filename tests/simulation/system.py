"""The calls of the system that a task makes: each is a place where tasks take turns or fail.

`System.patch` replaces functions of `os`, `io.open` and `fcntl.flock`, so that a call of a task
comes here first. Files and folders are real ones in memory; only a call of a process that was
killed has no effect. What a call changes on the disk can fail as `simulation.faults` says.
"""

import fcntl
import io
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from divgrpc.storage import published
from simulation.failpoints import STORES, FailpointMap
from simulation.faults import Faults
from simulation.scheduler import Process, Scheduler

# Calls that change the disk.
CHANGES: Final = (
    *("mkdir", "rename", "replace", "link", "unlink", "rmdir", "write", "pwrite", "utime", "chown"),
    *("posix_fallocate", "ftruncate", "truncate", "fsync", "fdatasync"),
)
# Calls that read it, at which other tasks may run.
READS: Final = ("stat", "pread", "scandir", "listdir")
# The probability that a read lets another task run, as a share of that of a change.
_READ_SHARE: Final = 0.3
_SYNCS: Final = ("fsync", "fdatasync")
_BUFFER_BYTES: Final = 8_192
_OPEN: Final = os.open
_FLOCK: Final = fcntl.flock


class System:
    """The calls of the system in one run.

    counts: how often each failpoint was reached.
    unnamed: calls that change the disk, and that no failpoint has made.
    slow_syncs: the probability that a sync takes time before it has an effect, and the same for
        after it; and the mean of this time in seconds.
    """

    slow_syncs: tuple[float, float] = (0, 0)

    def __init__(
        self, scheduler: Scheduler, faults: Faults, failpoints: FailpointMap, folder: Path
    ) -> None:
        """Take the folder of the run, below which are all files that concern it."""
        self._folder = str(folder)
        self._scheduler, self._faults, self._failpoints = scheduler, faults, failpoints
        self.counts: dict[str, int] = {}
        self.unnamed: set[str] = set()
        # Locked files, which the end of their process frees.
        self._locks: dict[int, Process] = {}
        self._is_inside = False
        # Called with the failpoint and the call after each rename, and each removal of a folder.
        self.on_change: Callable[[str, str], None] = lambda _name, _call: None
        scheduler.on_kill = self._free_locks

    def patch(self, patch: pytest.MonkeyPatch) -> None:
        """Replace the functions until `patch` is undone."""
        for name in CHANGES:
            patch.setattr(os, name, self._changing(name, getattr(os, name)))
        for name in READS:
            patch.setattr(os, name, self._reading(getattr(os, name)))
        patch.setattr(os, "open", self._opening(os.open))
        patch.setattr(os, "close", self._closing(os.close))
        patch.setattr(io, "open", self._opening_files(io.open))
        patch.setattr(fcntl, "flock", self._locking(fcntl.flock))
        patch.setattr(published, "Published", self._published(published.Published))

    @property
    def is_dead(self) -> bool:
        """Whether the process of the task that calls was killed."""
        task = self._scheduler.task
        return task is not None and not task.process.is_alive

    @property
    def _is_simulated(self) -> bool:
        """Whether a call comes from a task, and not from the recorder of the disk."""
        return self._scheduler.task is not None and not self._is_inside

    def store(self, function: Callable[[], None]) -> None:
        """Store a number in mapped memory."""
        if self._is_simulated:
            self._call(STORES[0], "store", function, ())
        else:
            function()

    def _change(self, call: str, function: Callable[..., Any], arguments: Any, options: Any) -> Any:  # noqa: ANN401  # of any call
        """Make a call that changes the disk, or let it fail."""
        name = self._failpoints.name_of(sys._getframe(2))
        if name is None:
            self.unnamed.add(f"{call} {sys._getframe(2).f_code.co_qualname}")
            name = "elsewhere"
        return self._call(name, call, partial(function, **options), arguments)

    def _call(self, name: str, call: str, function: Callable[..., Any], arguments: Any) -> Any:  # noqa: ANN401  # as of `function`
        self.counts[name] = self.counts.get(name, 0) + 1
        self._scheduler.pause()
        if call in _SYNCS:
            self._scheduler.stall(*self.slow_syncs)

        def run(*values: Any) -> Any:  # noqa: ANN401  # as of `function`
            self._is_inside = True
            try:
                return function(*values)
            finally:
                self._is_inside = False

        result = self._faults.call(name, call, run, arguments)
        if call in ("rename", "rmdir"):
            self.on_change(name, call)
        if call in _SYNCS:
            # Something may be written between a sync and what follows it.
            self._scheduler.pause()
            self._scheduler.stall(*self.slow_syncs)
        return result

    def _changing(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401  # those of `function`
            if not self._is_simulated:
                return function(*arguments, **options)
            return self._change(name, function, arguments, options)

        return call

    def _is_in_folder(self, path: Any) -> bool:  # noqa: ANN401  # a path or a descriptor
        """Tell whether a path is in the folder of the run; imports and caches read others."""
        return isinstance(path, int) or os.fspath(path).startswith(self._folder)

    def _reading(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401  # those of `function`
            if self._is_simulated and self._is_in_folder(path):
                self._scheduler.pause(self._scheduler.share * _READ_SHARE)
            return function(path, *arguments, **options)

        return call

    def _opening(self, function: Callable[..., int]) -> Callable[..., int]:
        # Files that are only read do not concern the recorder of the disk.
        reading = self._reading(_OPEN)

        def call(path: Any, flags: int, *arguments: Any, **options: Any) -> int:  # noqa: ANN401  # those of `function`
            if not (self._is_simulated and flags & os.O_CREAT and self._is_in_folder(path)):
                return int(reading(path, flags, *arguments, **options))
            return int(self._change("open", function, (path, flags, *arguments), options))

        return call

    def _closing(self, function: Callable[[int], None]) -> Callable[[int], None]:
        def close(descriptor: int) -> None:
            self._locks.pop(descriptor, None)
            function(descriptor)

        return close

    def _opening_files(self, function: Callable[..., Any]) -> Callable[..., Any]:
        reading = self._reading(function)

        def call(path: Any, mode: str = "r", buffering: int = -1, *rest: Any) -> Any:  # noqa: ANN401  # as of `open`
            if not self._is_simulated or mode in ("r", "rb"):
                return reading(path, mode, buffering, *rest)
            return File(self, path, mode, is_buffered=buffering != 0)

        return call

    def _locking(self, function: Callable[..., None]) -> Callable[..., None]:
        def flock(file: Any, operation: int) -> None:  # noqa: ANN401  # a file or a descriptor
            task = self._scheduler.task
            if task is not None:
                self._scheduler.pause()
                descriptor = file if isinstance(file, int) else file.fileno()
                function(descriptor, operation)
                self._locks[descriptor] = task.process
            else:
                function(file, operation)

        return flock

    def _free_locks(self, process: Process) -> None:
        for descriptor in [d for d, owner in self._locks.items() if owner is process]:
            del self._locks[descriptor]
            _FLOCK(descriptor, fcntl.LOCK_UN)

    def _published(self, original: Any) -> Any:  # noqa: ANN401  # a class
        system = self

        class Published(original):  # type: ignore[misc]  # the base is not known to mypy
            def __init__(self, folder: Path, *, writable: bool = False) -> None:
                super().__init__(folder, writable=writable)
                self._numbers: Any = _Numbers(system, self._numbers)

        return Published


class _Numbers:
    """Mapped numbers; each store is a failpoint."""

    def __init__(self, system: System, numbers: memoryview) -> None:
        self._system, self._numbers = system, numbers

    def __getitem__(self, place: int) -> int:
        return int(self._numbers[place])

    def __setitem__(self, place: int, value: int) -> None:
        self._system.store(partial(self._numbers.__setitem__, place, value))

    def __iter__(self) -> Iterator[int]:
        return iter(self._numbers.tolist())

    def __len__(self) -> int:
        return len(self._numbers)


class File:
    """A file that is open for writing; it makes its calls by functions of `os`."""

    def __init__(self, system: System, path: Any, mode: str, *, is_buffered: bool) -> None:  # noqa: ANN401  # a path or a descriptor
        self._system, self._is_text, self._is_buffered = system, "b" not in mode, is_buffered
        flags = os.O_RDWR if "+" in mode else os.O_WRONLY
        flags |= {"w": os.O_CREAT | os.O_TRUNC, "x": os.O_CREAT | os.O_EXCL}.get(mode[0], 0)
        flags |= os.O_CREAT | os.O_APPEND if mode[0] == "a" else 0
        self._descriptor: int = (
            path if isinstance(path, int) else os.open(path, flags | os.O_CLOEXEC, 0o666)
        )
        self._buffer = bytearray()
        self.closed = False

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._descriptor

    def write(self, data: Any) -> int:  # noqa: ANN401  # text or bytes
        """Write data, perhaps to a buffer; without one, return how many bytes were written."""
        if self._is_text:
            data = data.encode()
        if not self._is_buffered:
            return os.write(self._descriptor, data)
        self._buffer += data
        if len(self._buffer) > _BUFFER_BYTES:
            self.flush()
        return len(data)

    def flush(self) -> None:
        """Write the buffer."""
        while self._buffer:
            count = os.write(self._descriptor, bytes(self._buffer))
            del self._buffer[:count]

    def truncate(self, size: int) -> int:
        """Cut the file."""
        self.flush()
        os.ftruncate(self._descriptor, size)
        return size

    def seek(self, offset: int, whence: int = 0) -> int:
        """Continue at another offset."""
        self.flush()
        return os.lseek(self._descriptor, offset, whence)

    def tell(self) -> int:
        """Return the offset."""
        return os.lseek(self._descriptor, 0, os.SEEK_CUR) + len(self._buffer)

    def close(self) -> None:
        """Write the buffer and close the file; the file of a killed process keeps what it has."""
        if self.closed:
            return
        self.closed = True
        try:
            if not self._system.is_dead:
                self.flush()
        finally:
            os.close(self._descriptor)

    def __enter__(self) -> "File":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
