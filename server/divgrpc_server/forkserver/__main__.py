"""The fork server: it loads the engine and all kernels once, and forks the processes that use them.

Theory of operation. Importing the engine and loading the kernels takes two seconds of processor
time and nearly 200 MiB of memory. A fork takes milliseconds, and its process shares that memory. So
a worker, a writer, a builder or an evaluator is forked from this process, which does nothing else.

This process has a single thread. A fork copies only the thread that calls it, so a lock that
another thread holds would stay locked in the copy.

A new process is forked twice. The process between ends at once, so that the system hands the new
process to the supervisor, which waits for its exit like a parent.
"""

import gc
import os
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NoReturn

from setproctitle import setproctitle

from divgrpc_server.builder.process import run_builder
from divgrpc_server.evaluator.process import run_evaluator
from divgrpc_server.ipc import control
from divgrpc_server.logging import logs
from divgrpc_server.worker.kernel_progress import warm
from divgrpc_server.worker.process import run_worker
from divgrpc_server.writer.process import run_writer

_PID_BYTES: Final = 4
_ADOPTION_SECONDS: Final = 0.0005
_PROGRAMS: Final[dict[str, Callable[[], NoReturn]]] = {
    "worker": run_worker,
    "writer": run_writer,
    "builder": run_builder,
    "evaluator": run_evaluator,
}


def fork(channel: control.Channel, request: control.Message, descriptor: int) -> int:
    """Fork the process of a "fork" request, which gets `descriptor` as its standard input.

    Returns the id of the process, or 0 if the system has no room for another process. The new
    process does not return.
    """
    reader, writer_end = os.pipe()
    try:
        between = os.fork()
        if between == 0:
            os.close(reader)
            _fork_again(channel, request, descriptor, writer_end)
        os.close(writer_end)
        writer_end = -1
        content = os.read(reader, _PID_BYTES)
        os.waitpid(between, 0)
    except OSError:
        return 0
    finally:
        os.close(reader)
        if writer_end >= 0:
            os.close(writer_end)
    return int.from_bytes(content)


def _fork_again(
    channel: control.Channel, request: control.Message, descriptor: int, writer_end: int
) -> NoReturn:
    """Fork the new process, report its id, and end."""
    between = os.getpid()
    try:
        if pid := os.fork():
            os.write(writer_end, pid.to_bytes(_PID_BYTES))
            os._exit(0)
    except OSError:
        os._exit(1)
    code = 1
    try:
        os.close(writer_end)
        _become(channel, request, descriptor, between)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001  # this process must never run the code of the fork server
        traceback.print_exc()
    finally:
        os._exit(code)


def _become(
    channel: control.Channel, request: control.Message, descriptor: int, between: int
) -> NoReturn:
    """Turn this process into a `request.text`, for example a worker, of serial `request.number`."""
    # The program asks the system to kill it when its parent ends, so the parent must be the
    # supervisor before.
    while os.getppid() == between:
        time.sleep(_ADOPTION_SECONDS)
    # The session is new for the same reasons as that of a process that the supervisor starts.
    os.setsid()
    channel.close()
    os.dup2(descriptor, 0)
    os.close(descriptor)
    role, serial = request.text, request.number
    # The title has room for as many characters as the command line of the fork server.
    setproctitle(f"divgrpc-{role} {serial} python -P -m divgrpc_server.{role}")
    _PROGRAMS[role]()


def serve(process: control.Process) -> None:
    """Fork processes until the supervisor closes the control channel."""
    channel = process.channel
    while (delivery := channel.receive()) is not None:
        request, descriptor = delivery
        # Without a descriptor, this process has reached its limit on them.
        pid = fork(channel, request, descriptor) if descriptor >= 0 else 0
        if descriptor >= 0:
            os.close(descriptor)
        channel.send(control.Message("forked", pid))


def main() -> NoReturn:
    """Run the fork server, which the supervisor has started."""
    process = control.enter()
    log = logs.configure(process.config, "forkserver", process.serial)
    with logs.edge(log):
        warm(process.channel, log)
        threads = len(os.listdir("/proc/self/task"))
        if threads > 1:
            raise RuntimeError(f"a process with {threads} threads cannot be forked safely")
        # Objects created so far live as long as the process. Garbage collection would write to
        # their memory, which would then no longer be shared.
        gc.collect()
        gc.freeze()
        # The supervisor may be gone, or may have given up while kernels were loaded.
        with suppress(OSError):
            process.channel.send(control.Message("ready"))
        serve(process)
    # Skip a normal exit, because unloading the compiler is slow.
    os._exit(0)


if __name__ == "__main__":
    main()
