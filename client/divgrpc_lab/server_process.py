"""Runs a server on a free port of this machine for the duration of an experiment."""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from divgrpc.errors import UnavailableError

# The first start compiles every kernel.
_START_SECONDS: Final = 300.0
_POLL_SECONDS: Final = 0.05
_STOP_SECONDS: Final = 15.0
# Runs the server so that it does not outlive an experiment that was killed.
_SCRIPT: Final = (
    "import runpy; from divgrpc.platforms import end_with_parent; end_with_parent(); "
    "runpy.run_module('divgrpc_server', run_name='__main__')"
)


@contextmanager
def starting_server(*arguments: str) -> Iterator[Callable[[], str]]:
    """Start a server, yield a function that waits for its address, and finally stop the server.

    On Linux, the server also ends with the thread that started it, even if this process is killed.

    The yielded function raises `UnavailableError` with the end of the server's log if the server
    does not start.
    """
    with tempfile.TemporaryDirectory(prefix="divgrpc-lab-") as folder:
        ready, log = Path(folder, "ready"), Path(folder, "log")
        command = [sys.executable, "-c", _SCRIPT, "--listen", "127.0.0.1:0"]
        command += ["--ready-file", str(ready), *arguments]
        with log.open("wb") as sink:
            process = subprocess.Popen(command, stdout=sink, stderr=sink)  # noqa: S603  # ours
        try:
            yield lambda: _address(process, ready, log)
        finally:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def running_server(*arguments: str) -> Iterator[str]:
    """Start a server like `starting_server`, and yield its address once the server is ready."""
    with starting_server(*arguments) as wait_for_address:
        yield wait_for_address()


def _address(process: "subprocess.Popen[bytes]", ready: Path, log: Path) -> str:
    for _ in range(int(_START_SECONDS / _POLL_SECONDS)):
        if ready.exists() and (address := ready.read_text().strip()):
            return address
        # Waiting on the process, not just sleeping, notices a failed start at once.
        with suppress(subprocess.TimeoutExpired):
            process.wait(_POLL_SECONDS)
            break
    end = log.read_text(errors="replace")[-2000:]
    late = f" in {_START_SECONDS:.0f} s" if process.poll() is None else ""
    raise UnavailableError(f"the server did not start{late}; its log ends with:\n{end}")
