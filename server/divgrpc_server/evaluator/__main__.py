"""The process of evaluations: takes a call from a front, streams its rows, waits for the next call.

Theory of operation. The supervisor starts an evaluator for a call of Evaluate or EvaluateLabels if
none is idle. The evaluator opens the generation that serves and keeps it to the end, so a build or
a deletion meanwhile changes nothing. It measures on as many threads as the server has workers; the
main thread only sends progress. It has a low priority, so the queries that workers answer go first.
After a call it waits for another one, because to start a process takes a second.
"""

import contextlib
import os
import select
import socket
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Final

from divgrpc.engine import Engine
from divgrpc.evaluation.study import Study
from divgrpc.platforms import count_cores
from divgrpc.warmup import warm_kernels
from divgrpc_server.codec.evaluate import LabelCall, QueryCall
from divgrpc_server.codec.statuses import explain
from divgrpc_server.ipc import control, job_calls, job_frames
from divgrpc_server.ipc.job_frames import Frame
from divgrpc_server.logging import logs

NICENESS: Final = 5
_PROGRESS_SECONDS: Final = 0.2
# Between two events while rows are made, so that the caller does not take the server for dead.
_ALIVE_SECONDS: Final = 2.0
_CALLS: Final[dict[Frame, type[QueryCall | LabelCall]]] = {
    Frame.EVALUATE: QueryCall,
    Frame.EVALUATE_LABELS: LabelCall,
}


def evaluate(link: socket.socket, process: control.Process) -> None:
    """Read the call on `link`, and send progress and rows; raises what is wrong with the call."""
    kind, payload = job_frames.receive(link)
    job_frames.receive(link)  # the end of the caller's messages
    call: Any = _CALLS[kind](payload)
    study: Study[Any] = call.study(Engine.open(process.root / call.index))

    def report() -> None:
        # Progress for which the socket has no room is left out.
        if select.select([], [link], [], 0)[1]:
            job_frames.send(link, Frame.EVENT, call.pack_progress(study.progress))

    report()
    count = min(process.config.workers, count_cores())
    with ThreadPoolExecutor(count) as threads:
        work = [threads.submit(_exhaust, study) for _ in range(count)]
        _await(work, report, _PROGRESS_SECONDS)
        rows = threads.submit(study.rows)
        _await([rows], report, _ALIVE_SECONDS)
    job_frames.send(link, Frame.COMMIT)
    for response in call.pack_rows(rows.result()):
        job_frames.send(link, Frame.EVENT, response)


def _exhaust(study: Study[Any]) -> None:
    for _ in study.work():
        pass


def _await(futures: "list[Future[Any]]", report: Callable[[], None], seconds: float) -> None:
    """Wait for all futures, and call `report` every few seconds; raises their first error."""
    while (state := wait(futures, seconds, FIRST_EXCEPTION)).not_done:
        for future in state.done:
            future.result()
        report()
    for future in futures:
        future.result()
    report()


def serve(process: control.Process, log: logs.Logger) -> None:
    """Serve calls until the supervisor hangs up."""
    while job_calls.serve_call(
        process,
        lambda link: evaluate(link, process),
        pack_result=lambda _: b"",
        pack_error=lambda error, tag: explain(error, tag, log).SerializeToString(),
        reusable=True,
    ):
        pass


def _lower_priority() -> None:
    """Lower the priority of this process and of its session."""
    os.nice(NICENESS)
    # If the kernel groups processes by session, the priority counts only within the group.
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(NICENESS))


def main() -> None:
    """Run an evaluator; only the supervisor starts it."""
    process = control.enter()
    log = logs.configure(process.config, "evaluator", process.serial)
    with logs.edge(log):
        warm_kernels()
        # Only now, because the caller waits for the start.
        _lower_priority()
        serve(process, log)
    # An orderly exit would unload the compiler, which takes a while.
    os._exit(0)


if __name__ == "__main__":
    main()
