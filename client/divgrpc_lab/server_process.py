"""A server for as long as a run takes: embedded, on a free port of this machine."""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from divgrpc.errors import UnavailableError

# A first start compiles every kernel.
_START_SECONDS: Final = 300.0
_POLL_SECONDS: Final = 0.05
_STOP_SECONDS: Final = 15.0


@contextmanager
def starting_server(*arguments: str) -> Iterator[Callable[[], str]]:
    """Start a server, yield a function that waits for it, and stop it at the end.

    The function returns the server's address. It raises `UnavailableError`, with the end of the
    server's log, where the server does not come up.
    """
    with tempfile.TemporaryDirectory(prefix="divgrpc-lab-") as folder:
        ready, log = Path(folder, "ready"), Path(folder, "log")
        command = [sys.executable, "-m", "divgrpc_server", "--listen", "127.0.0.1:0"]
        with log.open("wb") as sink:
            process = subprocess.Popen(  # noqa: S603  # our own program, our own arguments
                [*command, "--ready-file", str(ready), *arguments], stdout=sink, stderr=sink
            )
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
    """Start a server as `starting_server` does, and yield its address once it serves."""
    with starting_server(*arguments) as wait_for_address:
        yield wait_for_address()


def _address(process: "subprocess.Popen[bytes]", ready: Path, log: Path) -> str:
    for _ in range(int(_START_SECONDS / _POLL_SECONDS)):
        if ready.exists() and (address := ready.read_text().strip()):
            return address
        try:
            # Waiting for its end notices a failed start at once.
            process.wait(_POLL_SECONDS)
        except subprocess.TimeoutExpired:
            continue
        break
    end = log.read_text(errors="replace")[-2000:]
    late = f" in {_START_SECONDS:.0f} s" if process.poll() is None else ""
    raise UnavailableError(f"the server did not start{late}; its log ends with:\n{end}")
