"""The process of evaluations: takes a call from a front, streams its rows, waits for the next call.

Theory of operation. The supervisor starts a process for a call of Evaluate or EvaluateLabels where
none waits. It opens the generation that serves and keeps it to the end, so a build or a deletion
meanwhile changes nothing. As many threads as the server has workers measure; the main thread only
sends progress. The process has a low priority, so queries that workers answer go first. A watching
thread ends the process when the front or the supervisor hangs up, which is how a cancelled call, a
lost connection and a passed deadline look from here. A process whose call ended otherwise waits for
another call: to start one takes a second, most of it for loading the compiler.
"""

import contextlib
import os
import select
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Final

from divgrpc.engine import Engine
from divgrpc.evaluation.study import Study
from divgrpc.platforms import count_cores
from divgrpc.warmup import warm_kernels
from divgrpc_server.codec.evaluate import LabelCall, QueryCall
from divgrpc_server.codec.statuses import explain
from divgrpc_server.ipc import build_frames, control, packets
from divgrpc_server.ipc.build_frames import Part
from divgrpc_server.logging import logs

NICENESS: Final = 5
_PROGRESS_SECONDS: Final = 0.2
# How often a caller hears of rows being made, so that it does not take us for dead.
_ALIVE_SECONDS: Final = 2.0
_CALLS: Final[dict[Part, type[QueryCall | LabelCall]]] = {
    Part.EVALUATE: QueryCall,
    Part.EVALUATE_LABELS: LabelCall,
}


def evaluate(link: socket.socket, me: control.Self) -> None:
    """Read the call from a front and send it progress and rows; raises what is wrong with it."""
    part, payload = build_frames.receive(link)
    build_frames.receive(link)  # the end of the caller's messages
    call: Any = _CALLS[part](payload)
    engine = Engine.open(me.root / call.index)
    study: Study[Any] = call.study(engine)

    def tell() -> None:
        # Progress that the caller has no room for is left out.
        if select.select([], [link], [], 0)[1]:
            build_frames.send(link, Part.EVENT, call.pack_progress(study.progress))

    tell()
    count = min(me.config.workers, count_cores())
    with ThreadPoolExecutor(count) as threads:
        work = [threads.submit(_exhaust, study) for _ in range(count)]
        _await(work, tell, _PROGRESS_SECONDS)
        rows = threads.submit(study.rows)
        _await([rows], tell, _ALIVE_SECONDS)
    build_frames.send(link, Part.COMMITTED)
    for response in call.pack_rows(rows.result()):
        build_frames.send(link, Part.EVENT, response)


def _exhaust(study: Study[Any]) -> None:
    for _ in study.work():
        pass


def _await(futures: "list[Future[Any]]", tell: Callable[[], None], seconds: float) -> None:
    """Wait for all futures, and call `tell` every so many seconds; raises their first error."""
    while (waited := wait(futures, seconds, FIRST_EXCEPTION)).not_done:
        for future in waited.done:
            future.result()
        tell()
    for future in futures:
        future.result()
    tell()


@contextlib.contextmanager
def _ending_with(link: socket.socket, channel: control.Channel) -> Iterator[None]:
    """End this process as soon as the front or the supervisor hangs up, until the block ends."""
    ours, theirs = socket.socketpair()

    def watch() -> None:
        poller = select.poll()
        for descriptor in (link.fileno(), channel.fileno(), theirs.fileno()):
            poller.register(descriptor, select.POLLRDHUP)
        if theirs.fileno() not in [descriptor for descriptor, _ in poller.poll()]:
            os._exit(1)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ours.close()
        watcher.join()
        theirs.close()


def serve(me: control.Self, log: logs.Logger) -> None:
    """Serve one call after the other until the supervisor hangs up."""
    while (received := me.channel.receive()) is not None:
        message, descriptor = received
        if descriptor < 0:
            continue
        with packets.adopt(descriptor) as link, contextlib.suppress(EOFError, OSError):
            status = b""
            with _ending_with(link, me.channel):
                try:
                    evaluate(link, me)
                except (EOFError, BrokenPipeError, ConnectionResetError):
                    return  # the front hung up on us
                except Exception as error:  # noqa: BLE001  # the edge: the caller hears of it
                    status = explain(error, message.text, log).SerializeToString()
            # Before the outcome, upon which the front may ask for the next call.
            me.channel.send(control.Message("ready"))
            build_frames.send(link, Part.STATUS if status else Part.DONE, status)


def _give_way() -> None:
    """Lower the priority of this process and of its session."""
    os.nice(NICENESS)
    # Where the kernel groups processes by session, the priority of a process counts in its group
    # alone.
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(NICENESS))


def main() -> None:
    """Run an evaluator; started by the supervisor alone."""
    me = control.enter()
    log = logs.configure(me.config, "evaluator", me.serial)
    with logs.edge(log):
        warm_kernels()
        # Not before: its caller waits for the process to start.
        _give_way()
        serve(me, log)
    # Taking a compiler apart in good order takes a while.
    os._exit(0)


if __name__ == "__main__":
    main()
