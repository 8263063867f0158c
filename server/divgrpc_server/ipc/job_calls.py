"""Calls as a builder and an evaluator serve them: taken from the supervisor, ended by a hang-up.

Theory of operation. The main thread works on the call. A second thread waits until the front or the
supervisor hangs up: a cancelled call, a lost connection and a passed deadline all look like this
here. It then ends the process at once. That is safe at any moment, because storage publishes by one
rename and survives a crash at any point. The second thread stops before the outcome is logged and
sent, because a process that ends in the middle of a write leaves half a line in the log.
"""

import contextlib
import os
import select
import socket
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

from divgrpc_server.ipc import control, job_frames, packets
from divgrpc_server.ipc.job_frames import Frame

_T = TypeVar("_T")


def serve_call(
    process: control.Process,
    work: Callable[[socket.socket], _T],
    *,
    pack_result: Callable[[_T], bytes],
    pack_error: Callable[[Exception, str], bytes],
    reusable: bool = False,
) -> bool:
    """Wait for a call and serve it; return whether to wait for another.

    work: does the call, on the link to its front. A hang-up ends the process meanwhile.
    pack_result: logs the result of `work`, and returns the payload of the RESULT frame.
    pack_error: returns the status of an error of `work`, given the request id of the call.
    reusable: whether the process reports to the supervisor that it is ready for another call.
    """
    received = process.channel.receive()
    if received is None or received[1] < 0:
        return False
    message, descriptor = received
    with packets.adopt(descriptor) as link, contextlib.suppress(OSError):
        try:
            with ending_on_hang_up(link, process.channel):
                result = work(link)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return False  # the front hung up
        except Exception as error:  # noqa: BLE001  # becomes the status of the call
            kind, payload = Frame.STATUS, pack_error(error, message.text)
        else:
            kind, payload = Frame.RESULT, pack_result(result)
        if reusable:
            # Before the outcome, because the front may request the next call when it has that.
            process.channel.send(control.Message("ready"))
        job_frames.send(link, kind, payload)
    return reusable


@contextlib.contextmanager
def ending_on_hang_up(link: socket.socket, channel: control.Channel) -> Iterator[None]:
    """End this process if the front or the supervisor hangs up within the block."""
    stopper, stopped = socket.socketpair()

    def watch() -> None:
        poller = select.poll()
        for descriptor in (link.fileno(), channel.fileno(), stopped.fileno()):
            poller.register(descriptor, select.POLLRDHUP)
        if stopped.fileno() not in [descriptor for descriptor, _ in poller.poll()]:
            os._exit(1)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        stopper.close()
        watcher.join()
        stopped.close()
