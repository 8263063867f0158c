"""What a front counts: calls by method and status, reasons of refusals, and times of requests."""

from google.rpc import error_details_pb2, status_pb2

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
        if status is not None and status.details:
            info = error_details_pb2.ErrorInfo()
            if status.details[0].Unpack(info):
                page.add(page.cell("divgrpc_refusals_total", info.reason))


class NoCallMeter(CallMeter):
    """Counts nothing, because the server has no metrics."""

    def __init__(self) -> None:
        pass

    def begin(self, method: str) -> None:
        """Do nothing."""

    def end(self, method: str, code: str, seconds: float, status: status_pb2.Status | None) -> None:
        """Do nothing."""


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
