"""Compilation of all kernels in separate processes before their first use, with progress reports.

A compiler uses one core, and half a gigabyte of memory stays allocated after a compilation. So if
kernels are missing, this process starts two compiler processes and loads the files that they write.
The first compiles all kernels, and begins with those of queries. The second compiles the kernels
that queries do not call, so that the first finds their files. On a machine with one core, only the
first is started. If files cannot be written, this process compiles each kernel itself when the
kernel is first used.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Literal, TypeAlias

from divgrpc.kernels import cache_files
from divgrpc.platforms import count_cores, lock_exclusively

# Expected seconds to compile all kernels, measured on one and on two idle cores.
_ONE_CORE_SECONDS: Final = 60
_TWO_CORES_SECONDS: Final = 40
_POLL_SECONDS: Final = 0.1
# Compilers that write no file for this many seconds are assumed to hang.
_STALL_SECONDS_MAX: Final = 600.0
# Folders of kernels that no process has used for this many seconds are removed.
_UNUSED_SECONDS_MAX: Final = 30 * 86_400
_FOLDER_NAME: Final = re.compile(r"kernels-[0-9a-f]{16}")
# The folder of this package is appended, so that all other import paths keep their precedence.
_COMMAND: Final = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from divgrpc.warmup import compile_kernels; compile_kernels(sys.argv[2], sys.argv[3])"
)

State: TypeAlias = Literal["started", "running", "done", "failed", "uncached"]


@dataclass(frozen=True, slots=True)
class Compilation:
    """Progress of a compilation: `ready` of `total` kernels exist, `seconds` after the start.

    `state` is "started" first, then "running" in many reports, then "done" or "failed". If the
    compilation cannot start, the only report has "uncached" (no file can be written) or "failed".
    After "failed" and "uncached", this process compiles each kernel when it is first used, and
    `reason` says why.
    """

    state: State
    ready: int
    total: int
    seconds: float
    reason: str = ""


Report = Callable[[Compilation], None]


def expected_seconds() -> int:
    """Return roughly how many seconds a compilation of all kernels takes on an idle machine."""
    return _ONE_CORE_SECONDS if count_cores() < 2 else _TWO_CORES_SECONDS


def print_progress(now: Compilation) -> None:
    """Print the progress to standard error.

    On a terminal, one line shows the progress and is updated. Otherwise one line is printed at the
    start and one at the end. Nothing is printed if DIVGRPC_QUIET is set.
    """
    if os.environ.get("DIVGRPC_QUIET") or sys.stderr is None:
        return
    terminal = sys.stderr.isatty()
    start, end = ("\r\033[K", "") if terminal else ("", "\n")
    line = f"divgrpc: compiling kernels, once, about {expected_seconds()} s"
    if now.state == "running":
        if not terminal:
            return
        line += f": {now.ready} of {now.total} after {now.seconds:.0f} s"
    elif now.state == "done":
        line, end = f"divgrpc: kernels compiled in {now.seconds:.0f} s", "\n"
    elif now.state in ("failed", "uncached"):
        line, end = f"divgrpc: {describe_failure(now)}", "\n"
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"{start}{line}{end}")
        sys.stderr.flush()


def describe_failure(now: Compilation) -> str:
    """Return a sentence that says why this process compiles kernels itself, and what to change."""
    if now.state == "uncached":
        return (
            f"compiled kernels cannot be kept ({now.reason}), so every process compiles them again;"
            " set DIVGRPC_KERNEL_CACHE to a folder that can be written"
        )
    return f"kernels could not be compiled ahead ({now.reason}); they are compiled as needed"


class _Process:
    """Compilation state of this process: whether it is done, and the function that gets reports."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.done = False
        self.report: Report = print_progress


_process = _Process()


def report_to(report: Report) -> None:
    """Call `report` with each progress report instead of printing to standard error."""
    _process.report = report


def ensure() -> None:
    """Compile all missing kernels in the first call, and do nothing later. Thread-safe."""
    if _process.done:
        return
    with _process.lock:
        if not _process.done:
            compile_ahead(_process.report)
            _process.done = True


def disable() -> None:
    """Make `ensure` do nothing, so that this process compiles each kernel when it is first used."""
    _process.done = True


def compile_ahead(report: Report) -> bool:
    """Compile missing kernels in other processes; return whether all kernels now have files."""
    if cache_files.is_warm():
        # `remove_unused` reads this time. File systems may not record when files are read.
        with contextlib.suppress(OSError):
            os.utime(cache_files.cache_folder())
        return True
    start = time.monotonic()
    total = len(cache_files.kernel_names())

    def send(state: State, reason: str = "") -> None:
        seconds = time.monotonic() - start
        report(Compilation(state, cache_files.count_ready(), total, seconds, reason))

    try:
        cache_files.check_writable()
    except OSError as error:
        send("uncached", f"{error.strerror or error}: {cache_files.cache_folder()}")
        return False
    # If an application embeds Python, `sys.executable` is the application.
    if not Path(sys.executable or "").name.startswith("python"):
        send("failed", "sys.executable is no Python")
        return False
    send("started")
    reason = _compile_under_lock(lambda: send("running"))
    if reason:
        send("failed", reason)
        return False
    send("done")
    remove_unused()
    return True


def _compile_under_lock(tick: Callable[[], None]) -> str:
    """Compile, after waiting while another process compiles; return the error, "" on success."""
    with open(cache_files.cache_folder() / "lock", "ab") as lock:
        for _ in _poll_while_files_come(tick):
            try:
                if lock_exclusively(lock):
                    break
            except OSError:
                # Without file locks several processes may compile at once, which is safe.
                break
        else:
            return "another process holds the lock and writes no file"
        # The process that held the lock may have written all files.
        return "" if cache_files.is_warm() else _run_compilers(tick)


def _poll_while_files_come(tick: Callable[[], None]) -> Iterator[None]:
    """Yield ten times a second, until no kernel was added for `_STALL_SECONDS_MAX` seconds."""
    ready, since = cache_files.count_ready(), time.monotonic()
    while time.monotonic() - since < _STALL_SECONDS_MAX:
        yield
        tick()
        time.sleep(_POLL_SECONDS)
        if (now := cache_files.count_ready()) != ready:
            ready, since = now, time.monotonic()


def _run_compilers(tick: Callable[[], None]) -> str:
    """Run the compilers until they finish; return the error, or "" if all kernels exist."""
    with tempfile.TemporaryFile() as errors, contextlib.ExitStack() as stack:
        try:
            compiler = stack.enter_context(_compiler("all", errors))
        except OSError as error:
            return str(error)
        if count_cores() > 1:
            # The second compiler only saves time, so its errors do not matter.
            with contextlib.suppress(OSError):
                stack.enter_context(_compiler("rest", subprocess.DEVNULL))
        for _ in _poll_while_files_come(tick):
            if compiler.poll() is not None:
                break
        else:
            return f"the compilers wrote no file for {_STALL_SECONDS_MAX:.0f} s"
        errors.seek(0)
        lines = errors.read().decode(errors="replace").strip().splitlines()
    if cache_files.is_warm():
        return ""
    code = compiler.returncode
    return lines[-1] if lines else f"the compiler ended with code {code} and no message"


@contextlib.contextmanager
def _compiler(part: str, errors: IO[bytes] | int) -> Iterator["subprocess.Popen[bytes]"]:
    """Start a compiler of a part, "all" or "rest"; kill it when the block ends."""
    package = str(Path(__file__).parent.parent)
    folder = str(cache_files.cache_folder())
    process = subprocess.Popen(  # noqa: S603  # every argument is ours
        # -P keeps files of the current folder from being imported as modules.
        (sys.executable, "-P", "-c", _COMMAND, package, part, folder),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=errors,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def remove_unused() -> None:
    """Remove compiled kernels of other releases that no process has used for 30 days.

    Files that a killed process of this release has written in part are removed after as long.
    """
    current = cache_files.cache_folder()
    oldest = time.time() - _UNUSED_SECONDS_MAX
    cache_files.remove_drafts(oldest)
    with contextlib.suppress(OSError):
        for folder in current.parent.iterdir():
            if folder.name == current.name or not _FOLDER_NAME.fullmatch(folder.name):
                continue
            # Another process may have removed the folder, or another user may own it.
            with contextlib.suppress(OSError):
                if folder.lstat().st_mtime < oldest:
                    shutil.rmtree(folder)
