"""What a front's pool and a worker hold when the server is idle: nothing."""

from typing import Any

from divgrpc_server.front.pool import Pool
from divgrpc_server.ipc import packets
from divgrpc_server.worker.index_cache import IndexCache
from divgrpc_server.worker.process import Worker
from divgrpc_server.writer.process import Writer

_CREDITS = {"small": packets.SMALL_CREDITS, "large": packets.LARGE_CREDITS}


def why_front_not_idle(pool: Pool, workers: int) -> str:
    """Return what a pool still holds; "" if it is idle."""
    admission = pool._admission
    by_kind = [line.held for line in admission._lines.values()]
    counts = (admission._calls, admission._bytes, admission._stream_calls, admission._stream_bytes)
    if any(by_kind) or any(counts) or admission._waiting:
        return f"a front counts calls {counts}, by kind {by_kind}"
    if pool._suspects or any(pool._queues.values()) or pool._reserved is not None:
        return "a front has calls in its queues"
    if pool.workers != workers:
        return f"a front has {pool.workers} workers"
    for link in pool._workers:
        if link.outstanding or link.credits != _CREDITS or link.loan:
            return f"a front's link has {link.credits}, loan {link.loan}, {link.outstanding}"
        if link.unsent_notes:
            return "a front has notes that it has not sent"
    return ""


def why_worker_not_idle(worker: Worker, fronts: int) -> str:
    """Return what a worker still holds; "" if it is idle."""
    if len(worker._fronts) != fronts:
        return f"a worker has {len(worker._fronts)} fronts"
    if worker._tasks or worker._parked or worker._preparing:
        return "a worker has work"
    assert isinstance(worker._indexes, IndexCache)
    if worker._indexes._prepared or worker._indexes._awaited:
        return "a worker keeps a generation that was prepared"
    for front in worker._fronts.values():
        state = (front.owed_small, front.owed_large, front.loan, front.sliced, len(front.batches))
        if any(state) or front.packets or front.pending or front._items:
            return f"a worker holds something of a front: {state}, {front.pending}"
    return ""


def is_renewing(writer: Writer) -> bool:
    """Tell whether a merge, a vacuum or a retraining goes on, also one that nobody waits for."""
    renewals = writer._renewals
    places: Any = (renewals._generation_places, renewals._merge_places)
    return not all(place.is_free for place in places)
