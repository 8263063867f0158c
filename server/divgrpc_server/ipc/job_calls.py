"""How builders and evaluators receive a call from the supervisor and serve it.

Theory of operation. The main thread serves the call. A second thread waits until the front or the
supervisor closes its socket. The front closes its socket if the call is cancelled, if the caller's
connection is lost, or if the deadline passes. The second thread then exits the process immediately.
This is always safe, because storage publishes with a single rename and survives a crash at any
time. The second thread is stopped before the outcome is logged and sent, because an exit during a
write would leave an incomplete line in the log.
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
    """Wait for a call and serve it; return whether to wait for another call.

    work: serves the call, given the socket to its front. The process exits if the front or the
        supervisor hangs up meanwhile.
    pack_result: logs the result of `work`, and returns the payload of the RESULT frame.
    pack_error: returns the status of an error of `work`, given the tag of the call.
    reusable: whether to report to the supervisor that the process is ready for another call.
    """
    delivery = process.channel.receive()
    if delivery is None or delivery[1] < 0:
        return False
    message, descriptor = delivery
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
            # Report to the supervisor before the outcome is sent, because the front may request a
            # process for the next call once it has the outcome.
            process.channel.send(control.Message("ready"))
        job_frames.send(link, kind, payload)
    return reusable


@contextlib.contextmanager
def ending_on_hang_up(link: socket.socket, channel: control.Channel) -> Iterator[None]:
    """Exit this process if the front or the supervisor hangs up while the block runs."""
    end_sender, end_receiver = socket.socketpair()

    def watch() -> None:
        poller = select.poll()
        for descriptor in (link.fileno(), channel.fileno(), end_receiver.fileno()):
            poller.register(descriptor, select.POLLRDHUP)
        if end_receiver.fileno() not in [descriptor for descriptor, _ in poller.poll()]:
            os._exit(1)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        end_sender.close()
        watcher.join()
        end_receiver.close()
