"""The evaluator process: it takes a call from a front, sends the rows, and waits for the next call.

Theory of operation. The supervisor starts an evaluator for an Evaluate, EvaluateLabels or Diagnose
call if no evaluator is idle. The evaluator opens the current generation of the index and keeps it
open until the call ends, so a concurrent build or deletion has no effect. If the index is divided
among shards, the evaluator sends rounds of messages to the front, which asks the shards. It
measures on as many threads as the server has workers, but at most one per core; the main thread
only sends progress. The process has a low priority, so that queries in workers run first. After a
call it stays idle for the next call.
"""

import contextlib
import os
import select
import socket
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Final, NoReturn

from divgrpc.diagnosis.survey import Survey
from divgrpc.engine import Engine
from divgrpc.evaluation.study import Study
from divgrpc.platforms import count_cores
from divgrpc.sharding.files import open_router_engine
from divgrpc.sharding.router import Router
from divgrpc.sharding.runner import ShardRunner
from divgrpc.warmup import warm_kernels
from divgrpc.writes.opening import open_index
from divgrpc_server.codec.diagnose import DiagnoseCall
from divgrpc_server.codec.evaluate import LabelCall, QueryCall
from divgrpc_server.codec.statuses import explain
from divgrpc_server.evaluator.front_link import FrontLink, ShardAsker
from divgrpc_server.ipc import control, job_calls, job_frames
from divgrpc_server.ipc.job_frames import Frame
from divgrpc_server.logging import logs

NICENESS: Final = 5
_PROGRESS_SECONDS: Final = 0.2
# Seconds between progress events while the rows are computed. The events show the caller that the
# server is alive.
_ALIVE_SECONDS: Final = 2.0
_CALLS: Final[dict[Frame, type[QueryCall | LabelCall | DiagnoseCall]]] = {
    Frame.DIAGNOSE: DiagnoseCall,
    Frame.EVALUATE: QueryCall,
    Frame.EVALUATE_LABELS: LabelCall,
}


def evaluate(link: socket.socket, process: control.Process) -> None:
    """Serve the call on `link` by sending progress and rows; raises if the call is invalid."""
    kind, payload = job_frames.receive(link)
    job_frames.receive(link)  # the end of the caller's messages
    call: Any = _CALLS[kind](payload)
    front = FrontLink(link)
    study: Study[Any] | Survey = call.study(_open(process, call, front))

    def report() -> None:
        # Send this event only if the socket's buffer has space. Otherwise the call would block.
        if select.select([], [link], [], 0)[1]:
            front.send(Frame.EVENT, call.pack_progress(study.progress))

    report()
    count = min(process.config.workers, count_cores())
    with ThreadPoolExecutor(count) as threads:
        work = [threads.submit(_exhaust, study) for _ in range(count)]
        _await(work, report, _PROGRESS_SECONDS)
        rows = threads.submit(study.rows)
        _await([rows], report, _ALIVE_SECONDS)
    front.send(Frame.COMMIT)
    for response in call.pack_rows(rows.result()):
        front.send(Frame.EVENT, response)


def _open(process: control.Process, call: Any, front: FrontLink) -> Engine | ShardRunner:  # noqa: ANN401  # of any kind
    """Open the index of a call; if it is divided, return what asks its shards through the front."""
    may_ask = process.config.shards > 1 and not isinstance(call, DiagnoseCall)
    open_divided = open_router_engine if may_ask else None
    path, is_merged = process.root / call.index, process.config.read_only
    index = open_index(path, is_merged=is_merged, open_divided=open_divided)
    engine = index if isinstance(index, Engine) else index.snapshot()
    if not engine.is_divided:
        return engine
    manifest = engine.manifest
    rows = [shard.rows for shard in manifest.shards]
    router = Router(manifest, engine.arrays, rows, engine.name, engine.folder)
    return ShardRunner(router, ShardAsker(front, engine.name, manifest))


def _exhaust(study: Study[Any] | Survey) -> None:
    for _ in study.work():
        pass


def _await(futures: "list[Future[Any]]", report: Callable[[], None], seconds: float) -> None:
    """Wait for all futures and call `report` every `seconds`; raises the first error."""
    while (state := wait(futures, seconds, FIRST_EXCEPTION)).not_done:
        for future in state.done:
            future.result()
        report()
    for future in futures:
        future.result()
    report()


def serve(process: control.Process, log: logs.Logger) -> None:
    """Serve calls until the supervisor closes the control channel."""
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
    # If Linux groups processes by session (autogroup), niceness applies only within a group. So
    # lower the priority of the group too.
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(NICENESS))


def run_evaluator() -> NoReturn:
    """Run an evaluator process, which the supervisor has started."""
    process = control.enter()
    log = logs.configure(process.config, "evaluator", process.serial)
    with logs.edge(log):
        warm_kernels()
        # Load kernels before the priority is lowered, because a caller waits for this process.
        _lower_priority()
        serve(process, log)
    # Skip a normal exit, because unloading the compiler is slow.
    os._exit(0)
