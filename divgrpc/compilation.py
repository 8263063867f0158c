"""All kernels compiled once, ahead of their first use, by other processes; and what is said of it.

A compiler leaves half a gigabyte in the process that ran it, and it runs on one core. So a process
that finds kernels missing has others compile them, one from each end of the list, and loads what
they leave: afterwards it is as small as one that found all kernels there. Where no file can be
kept, it compiles what it needs itself.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Literal

from divgrpc.kernels import cache_files
from divgrpc.platforms import count_cores, lock_exclusively
from divgrpc.unused_kernels import mark_used, remove_unused

# With two cores a cold start on an idle machine took 31 s. One compiler alone took 45 s of CPU.
_SECONDS_ALONE: Final = 45
_SECONDS_TOGETHER: Final = 30
_LOOK_SECONDS: Final = 0.1
# Compilers that have written no file for so long hang.
_STILL_SECONDS_MAX: Final = 600.0
# The folder of this package comes last: whatever else this process found it by goes first.
_COMMAND: Final = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from divgrpc.warmup import compile_kernels; compile_kernels(sys.argv[2], sys.argv[3])"
)
_ENDS: Final = ("first", "last")


@dataclass(frozen=True, slots=True)
class Compilation:
    """How far it is: `ready` of `total` kernels, `seconds` after it began.

    `state`: "begun"; "going on", many times; then "done", or "failed" with its `reason`, where
    kernels are compiled in this process as they are needed. "unkept" alone, with its `reason`,
    where no file can be kept.
    """

    state: Literal["begun", "going on", "done", "failed", "unkept"]
    ready: int
    total: int
    seconds: float
    reason: str = ""


Report = Callable[[Compilation], None]


def expected_seconds() -> int:
    """Return about how long it takes on an idle machine with as many cores."""
    return _SECONDS_ALONE if count_cores() < 2 else _SECONDS_TOGETHER


def tell_standard_error(now: Compilation) -> None:
    """Say in a line or two how far it is, on a terminal as it goes on.

    Nothing is said where DIVGRPC_QUIET is set to anything.
    """
    if os.environ.get("DIVGRPC_QUIET") or sys.stderr is None:
        return
    terminal = sys.stderr.isatty()
    begin, end = ("\r\033[K", "") if terminal else ("", "\n")
    line = f"divgrpc: compiling kernels, once, about {expected_seconds()} s"
    if now.state == "going on":
        if not terminal:
            return
        line += f": {now.ready} of {now.total} after {now.seconds:.0f} s"
    elif now.state == "done":
        line, end = f"divgrpc: kernels compiled in {now.seconds:.0f} s", "\n"
    elif now.state in ("failed", "unkept"):
        line, end = f"divgrpc: {describe_failure(now)}", "\n"
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"{begin}{line}{end}")
        sys.stderr.flush()


def describe_failure(now: Compilation) -> str:
    """Return a sentence on why kernels are compiled in this process, and what to do about it."""
    if now.state == "unkept":
        return (
            f"compiled kernels cannot be kept ({now.reason}), so every process compiles them again;"
            " DIVGRPC_KERNEL_CACHE names another folder"
        )
    return f"kernels could not be compiled ahead ({now.reason}); they are compiled as needed"


class _Once:
    """Whether this process has seen to its kernels, and whom it tells."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.done = False
        self.report: Report = tell_standard_error


_once = _Once()


def report_to(report: Report) -> None:
    """Have this process tell `report` what it would otherwise say on standard error."""
    _once.report = report


def ensure() -> None:
    """Have every kernel compiled, unless that has been done; any thread may call this often."""
    if _once.done:
        return
    with _once.lock:
        if not _once.done:
            compile_ahead(_once.report)
            _once.done = True


def leave_to_others() -> None:
    """Have `ensure` do nothing in this process, which compiles whatever it comes to."""
    _once.done = True


def compile_ahead(report: Report) -> bool:
    """Have other processes compile the kernels that are missing; tells whether all exist then."""
    if cache_files.is_warm():
        mark_used()
        return True
    begun = time.monotonic()
    total = len(cache_files.kernel_names())

    def tell(
        state: Literal["begun", "going on", "done", "failed", "unkept"], why: str = ""
    ) -> None:
        seconds = time.monotonic() - begun
        report(Compilation(state, cache_files.count_ready(), total, seconds, why))

    try:
        cache_files.check_writable()
    except OSError as error:
        tell("unkept", f"{error.strerror or error}: {cache_files.cache_folder()}")
        return False
    if not _runs_python():
        tell("failed", "sys.executable is no Python")
        return False
    tell("begun")
    reason = _compile_in_turn(lambda: tell("going on"))
    if reason:
        tell("failed", reason)
        return False
    tell("done")
    remove_unused()
    return True


def _runs_python() -> bool:
    """Tell whether a process of ours can be started; an application may have Python built in."""
    return Path(sys.executable or "").name.startswith("python")


def _compile_in_turn(tick: Callable[[], None]) -> str:
    """Compile, or wait for another process that does; returns why kernels are missing still."""
    with open(cache_files.cache_folder() / "lock", "ab") as lock:
        for _ in _patience(tick):
            if _locked(lock):
                break
        else:
            return "another process holds the lock and writes no file"
        # The other one may have written everything meanwhile.
        return "" if cache_files.is_warm() else _compile_apart(tick)


def _locked(lock: IO[bytes]) -> bool:
    """Take the lock if it is free; file systems without locks let everybody in, which is safe."""
    try:
        return lock_exclusively(lock)
    except OSError:
        return True


def _patience(tick: Callable[[], None]) -> Iterator[None]:
    """Yield a few times a second for as long as files keep coming."""
    ready, since = cache_files.count_ready(), time.monotonic()
    while time.monotonic() - since < _STILL_SECONDS_MAX:
        yield
        tick()
        time.sleep(_LOOK_SECONDS)
        if (now := cache_files.count_ready()) != ready:
            ready, since = now, time.monotonic()


def _compile_apart(tick: Callable[[], None]) -> str:
    """Run the compilers to their end; returns what went wrong, nothing where all kernels exist."""
    cores = count_cores()
    with tempfile.TemporaryFile() as complaints, contextlib.ExitStack() as ending:
        try:
            compilers = [ending.enter_context(_compiler(e, complaints)) for e in _ENDS[:cores]]
        except OSError as error:
            return str(error)
        # The first compiles whatever the other has not come to, so its end is the end.
        for _ in _patience(tick):
            if compilers[0].poll() is not None:
                break
        else:
            return f"the compilers wrote no file for {_STILL_SECONDS_MAX:.0f} s"
        complaints.seek(0)
        lines = complaints.read().decode(errors="replace").strip().splitlines()
    if cache_files.is_warm():
        return ""
    code = compilers[0].returncode
    return lines[-1] if lines else f"the compiler ended with code {code} and no message"


@contextlib.contextmanager
def _compiler(end: str, complaints: IO[bytes]) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a process that compiles from one end of the list, and end it with this block."""
    package = str(Path(__file__).parent.parent)
    process = subprocess.Popen(  # noqa: S603  # our own words
        (*_python(), "-c", _COMMAND, package, end, str(cache_files.cache_folder())),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=complaints,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def _python() -> Sequence[str]:
    # -P: a file of the folder that we are started in is no module.
    return sys.executable, "-P"
