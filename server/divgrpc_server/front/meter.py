"""What a front counts: calls by method and status, reasons of refusals, and times of requests."""

from collections.abc import Mapping, Set

from google.rpc import status_pb2

from divgrpc_server.front.refusals import info_of
from divgrpc_server.monitoring.damage import DamageMeter
from divgrpc_server.monitoring.definitions import ENGINE_UNREACHABLE, PLACES_MISSING
from divgrpc_server.monitoring.page import Page


class CallMeter:
    """Counts calls, from their start to their end."""

    def __init__(self, page: Page) -> None:
        self._page = page
        # The cells of a method and of a method with a code. Looking them up here is faster than
        # `Page.cell`.
        self._methods: dict[str, tuple[int, int]] = {}
        self._codes: dict[tuple[str, str], int] = {}

    def begin(self, method: str) -> None:
        """Count a call that begins."""
        cells = self._methods.get(method)
        if cells is None:
            cells = self._methods[method] = (
                self._page.cell("divgrpc_calls_in_flight", method),
                self._page.cell("divgrpc_call_seconds", method),
            )
        self._page.add(cells[0])

    def end(self, method: str, code: str, seconds: float, status: status_pb2.Status | None) -> None:
        """Count a call that ends; `status` is None if it succeeded."""
        page = self._page
        in_flight, duration = self._methods[method]
        page.add(in_flight, -1.0)
        page.observe(duration, seconds)
        cell = self._codes.get((method, code))
        if cell is None:
            cell = self._codes[method, code] = page.cell("divgrpc_calls_total", method, code)
        page.add(cell)
        if status is not None and (reason := info_of(status).reason):
            page.add(page.cell("divgrpc_refusals_total", reason))


class NoCallMeter(CallMeter):
    """Counts nothing, because the server has no metrics."""

    def __init__(self) -> None:
        pass

    def begin(self, method: str) -> None:
        """Do nothing."""

    def end(self, method: str, code: str, seconds: float, status: status_pb2.Status | None) -> None:
        """Do nothing."""


class ShardMeter:
    """Counts the calls of a front to shard servers, and their states as it sees them."""

    def __init__(self, page: Page | None, fronts: int) -> None:
        """Take the number of fronts; None as page counts nothing."""
        # The supervisor adds up what fronts say, and all of them see the same servers.
        self._page, self._share = page, 1 / fronts
        self._damage = DamageMeter(page)

    def add_call(self, outcome: str) -> None:
        """Count a call that ended."""
        if self._page is not None:
            self._page.add(self._page.cell("divgrpc_shard_calls_total", outcome))

    def add_hedge(self) -> None:
        """Count that another replica is asked because the first one is slow."""
        if self._page is not None:
            self._page.add(self._page.cell("divgrpc_shard_hedges_total"))

    def add_round(self, seconds: float) -> None:
        """Count that shards were asked for a call of a client, which took `seconds`."""
        if self._page is not None:
            self._page.observe(self._page.cell("divgrpc_shard_round_seconds"), seconds)

    def set_damaged(self, names: Set[str]) -> None:
        """Set the indexes that have damaged files on some server."""
        self._damage.set(names)

    def set_engine(self, *, is_unreachable: bool) -> None:
        """Set whether the engine cannot be reached."""
        if self._page is not None:
            self._page.set(self._page.cell(ENGINE_UNREACHABLE), self._share * is_unreachable)

    def set_states(self, counts: Mapping[str, int], missing: int) -> None:
        """Set the number of servers by state, and of the places where none answers."""
        if self._page is None:
            return
        for state, count in counts.items():
            self._page.set(self._page.cell("divgrpc_shard_servers", state), self._share * count)
        self._page.set(self._page.cell(PLACES_MISSING), self._share * missing)


class PoolMeter:
    """Counts the times of the requests of one pool; `target` is "worker" or "writer"."""

    def __init__(self, page: Page, target: str) -> None:
        self._page = page
        self._queue = page.cell("divgrpc_queue_seconds", target)
        self._processing = page.cell("divgrpc_processing_seconds", target)
        self._requests = page.cell("divgrpc_queued_requests", target)
        self._bytes = page.cell("divgrpc_queued_bytes", target)

    def add_sent(self, queue_seconds: float) -> None:
        """Count a request that was sent."""
        self._page.observe(self._queue, queue_seconds)

    def add_answered(self, seconds: float) -> None:
        """Count a request that was answered `seconds` after it was sent."""
        self._page.observe(self._processing, seconds)

    def set_queue(self, requests: int, size: int) -> None:
        """Set the number of requests that wait, and their size in bytes."""
        self._page.set(self._requests, requests)
        self._page.set(self._bytes, size)
