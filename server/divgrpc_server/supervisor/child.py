"""The supervisor's handle of a child process, from its start to its exit.

A child is started with exec, because a fork alone would copy locks that other threads hold. The
fork server has no other threads, so workers, the writer, builders and evaluators are forked from it
once it is ready. The command line contains the module and the role, so that `ps` shows both.
"""

import asyncio
import contextlib
import ctypes
import errno
import functools
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final, Literal

from divgrpc_server.config import Config
from divgrpc_server.ipc import control
from divgrpc_server.monitoring import page
from divgrpc_server.supervisor.proc_files import read_cpu_seconds

Role = Literal["front", "worker", "writer", "builder", "evaluator", "forkserver", "engine"]
# The package of each role that is not named after it.
_PACKAGES: Final[Mapping[str, str]] = {"engine": "engines"}

# Environment variables that limit numerical libraries to one thread in workers, in the writer and
# in evaluators. In these processes a query runs on one thread, because other workers or other
# threads of the evaluator run other queries at the same time. A builder lifts the limit, because a
# build may use all cores.
_ONE_THREAD: Final = (
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)
# gRPC would write a line of its own for each failed handshake, which is no JSON.
_QUIET_GRPC: Final = {"GRPC_VERBOSITY": "NONE"}
# glibc returns freed memory to the system above the first limit, and asks the system for each block
# above the second. Both start at 128 KiB, so that a call with a message of some hundred kilobytes
# would have the system clear new pages several times. An operator's own values win.
_ALLOCATOR_BYTES: Final = {
    "MALLOC_TRIM_THRESHOLD_": str(32 << 20),
    "MALLOC_MMAP_THRESHOLD_": str(16 << 20),
}

# The supervisor does nothing else while it waits for a fork, which takes milliseconds if the fork
# server is neither stopped nor swapped out.
_FORK_MS: Final = 1000
_PR_SET_CHILD_SUBREAPER: Final = 36


def adopt_orphans() -> bool:
    """Let the system make this process the parent of processes whose parents end.

    The fork server starts processes that way. Returns whether the system does so.
    """
    # If SIGCHLD is ignored, as whoever started this server may have left it, the system forgets
    # the exit codes of children.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    return int(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)) == 0


def reap_orphans(known: Collection[int]) -> None:
    """Let the system forget processes that ended and that it has handed to this one.

    known: ids of the processes that something else waits for.
    """
    pid = os.getpid()
    with contextlib.suppress(OSError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
        for orphan in {*map(int, children.split())}.difference(known):
            os.waitpid(orphan, os.WNOHANG)


class Child:
    """One child process of the supervisor."""

    def __init__(
        self,
        role: Role,
        serial: int,
        config: Config,
        root: Path,
        *,
        secret: str = "",
        fork_server: "Child | None" = None,
    ) -> None:
        """Start the process, and send its `hello` message.

        secret: the token of the cluster, "" without one.
        fork_server: forks the process; None to start it with exec.

        Raises OSError and releases all resources if the system cannot start another process.
        """
        self.role = role
        self.serial = serial
        self.ready = False
        self.start_time = asyncio.get_running_loop().time()
        # A timer that ends an evaluator after a long idle time.
        self.expiry: asyncio.TimerHandle | None = None
        end, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel = control.Channel(end)
        with contextlib.ExitStack() as undo:
            undo.callback(end.close)
            with child_end:
                if fork_server is None:
                    process = _spawn(role, serial, child_end)
                    self.pid, self._wait = process.pid, process.wait
                else:
                    self.pid = fork_server.fork(role, serial, child_end)
                    self._wait = functools.partial(_wait_for, self.pid)
            undo.callback(self._wait)
            undo.callback(os.kill, self.pid, signal.SIGKILL)
            self._pidfd = os.pidfd_open(self.pid)
            undo.callback(os.close, self._pidfd)
            # What the process counts, and its processor time once it has ended.
            self.page: page.Page | None = None
            self.cpu_seconds = 0.0
            message = control.hello(config, root, serial, secret)
            self._send_hello(message, counts=bool(config.metrics))
            undo.pop_all()
        self.exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def _send_hello(self, message: control.Message, *, counts: bool) -> None:
        """Send the first message, with the memory that the process counts in."""
        try:
            descriptor = page.create() if counts else -1
        except OSError:
            descriptor = -1  # no descriptor is left; the process works and does not count
        if descriptor < 0:
            self.channel.send(message)
            return
        try:
            self.page = page.Page(descriptor)
            self.channel.send(message, descriptor)
        finally:
            os.close(descriptor)

    def fork(self, role: Role, serial: int, end: socket.socket) -> int:
        """Let this fork server start a process with `end` as its standard input; return its id.

        Raises OSError if the system cannot start another process, or if the fork server gives no
        answer. In the second case it is killed, because its answer would be taken for that to a
        later request.
        """
        self.channel.send(control.Message("fork", serial, role), end.fileno())
        poller = select.poll()
        poller.register(self.channel, select.POLLIN)
        delivery = self.channel.receive() if poller.poll(_FORK_MS) else None
        if delivery is None:
            self.ready = False
            self.kill()
            raise OSError(errno.ETIMEDOUT, "the fork server does not answer")
        if not delivery[0].number:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return delivery[0].number

    def watch(self, handle: Callable[["Child", control.Message], None]) -> None:
        """Call `handle` with each message; resolve `exited` with the exit code at the exit."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self.channel.fileno(), self._read, handle)
        loop.add_reader(self._pidfd, self._reap)

    def send(self, message: control.Message, end: socket.socket | None = None) -> None:
        """Send a message, along with the socket `end` if given, and close `end` in this process.

        A child whose channel is full is killed. If the child is gone, nothing is sent, and its exit
        resolves `exited`.
        """
        try:
            self.channel.send(message, None if end is None else end.fileno())
        except BlockingIOError:
            self.kill()
        except OSError:
            pass
        finally:
            if end is not None:
                end.close()

    def kill(self) -> None:
        """Kill the process."""
        if not self.exited.done():
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def hang_up(self) -> None:
        """Close the channel, which tells the process to exit."""
        self.cancel_expiry()
        if self.channel.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self.channel.fileno())
            self.channel.close()

    def cancel_expiry(self) -> None:
        """Cancel the timer that ends an idle evaluator, because the evaluator has a call."""
        if self.expiry is not None:
            self.expiry.cancel()

    def _read(self, handle: Callable[["Child", control.Message], None]) -> None:
        delivery = self.channel.receive()
        if delivery is None:
            self.hang_up()
        else:
            handle(self, delivery[0])

    def _reap(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self.hang_up()
        # Before the wait, because the system then forgets the process.
        self.cpu_seconds = read_cpu_seconds(self.pid)
        self.exited.set_result(self._wait())


def _wait_for(pid: int) -> int:
    """Wait until a process that was forked for this process exits, and return its exit code."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _spawn(role: Role, serial: int, stdin: socket.socket) -> "subprocess.Popen[bytes]":
    engines = ("worker", "writer", "evaluator", "forkserver")
    threads = dict.fromkeys(_ONE_THREAD, "1") if role in engines else {}
    # setproctitle otherwise writes titles over the environment of the process.
    titles = {"SPT_NOENV": "1"} if role == "forkserver" else {}
    allocator = _ALLOCATOR_BYTES if role in ("front", *engines) else {}
    # -P prevents a file in the current folder from shadowing a module of this package.
    module = ["-P", "-m", f"divgrpc_server.{_PACKAGES.get(role, role)}"]
    return subprocess.Popen(  # noqa: S603  # this interpreter, a module of this package
        [sys.executable, *module, f"divgrpc-{role}", str(serial)],
        stdin=stdin.fileno(),
        # Suppress progress lines on standard error, because the compilation of kernels is logged.
        env={**_QUIET_GRPC, **allocator, **os.environ, **threads, **titles, "DIVGRPC_QUIET": "1"},
        # Start a new session, so that signals of a terminal reach only the supervisor.
        start_new_session=True,
    )
