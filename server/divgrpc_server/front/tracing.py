"""Spans of calls for OpenTelemetry, if its variables ask for them and `divgrpc[tracing]` is there.

A call has a server span, whose parent is the caller's span. A unary call that a worker or the
writer answered has two child spans: `queue`, and `worker` or `writer`. Spans are sent in the
background.
"""

import asyncio
import threading
import time
from collections.abc import Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from divgrpc_server.ipc.tags import Trace
from divgrpc_server.logging.logs import Logger

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

_SERVICE_NAME: Final = "divgrpc-server"
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
# Seconds to send the last spans when the server stops.
_LAST_SECONDS: Final = 1.0
# Status codes that say that the server failed, by the conventions of OpenTelemetry.
_FAULTS: Final = frozenset(
    ("UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS")
)


class CallSpan:
    """A call in a trace that this server adds no spans to."""

    def __init__(self, trace: Trace | None) -> None:
        self.trace = trace

    def end(self, code: str, request_id: str) -> None:
        """End the span of a call with a status code."""


class NoTracer:
    """Makes no spans; calls keep the traces that callers sent."""

    def begin(self, method: str, parent: Trace | None) -> CallSpan:
        """Begin a call."""
        del method
        return CallSpan(parent)

    async def close(self) -> None:
        """Do nothing."""


class _ServerSpan(CallSpan):
    """A call with a span."""

    def __init__(self, span: Any, trace: Trace) -> None:  # noqa: ANN401  # typed without the extra
        super().__init__(trace)
        self.span = span

    def end(self, code: str, request_id: str) -> None:
        """End the span."""
        from opentelemetry.trace import StatusCode

        self.span.set_attribute("rpc.response.status_code", code)
        self.span.set_attribute("divgrpc.request_id", request_id)
        if code in _FAULTS:
            self.span.set_status(StatusCode.ERROR)
        self.span.end()


_CURRENT: ContextVar[_ServerSpan | None] = ContextVar("divgrpc-span", default=None)


class Tracer(NoTracer):
    """Makes spans with a provider of OpenTelemetry's SDK."""

    def __init__(self, provider: "TracerProvider", service: str) -> None:
        self._provider = provider
        self._service = service
        self._tracer = provider.get_tracer("divgrpc")

    def begin(self, method: str, parent: Trace | None) -> CallSpan:
        """Begin the span of a call, in the task that serves it."""
        from opentelemetry.trace import SpanKind

        span = self._tracer.start_span(
            f"{self._service}/{method}",
            context=_context_of(parent),
            kind=SpanKind.SERVER,
            attributes={"rpc.system.name": "grpc", "rpc.method": f"{self._service}/{method}"},
        )
        context = span.get_span_context()
        trace = Trace(
            f"{context.trace_id:032x}", f"{context.span_id:016x}", context.trace_flags.sampled
        )
        call = _ServerSpan(span, trace)
        _CURRENT.set(call)
        return call

    def add_request(
        self, target: str, queue_time: float, sent_time: float, end_time: float
    ) -> None:
        """Add the spans of a request of the current call; times are those of `time.monotonic`."""
        call = _CURRENT.get()
        if call is None or not call.span.is_recording():
            return
        from opentelemetry.trace import set_span_in_context

        context = set_span_in_context(call.span)
        epoch = time.time() - time.monotonic()
        for name, start, end in (
            ("queue", queue_time, sent_time),
            (target, sent_time, end_time),
        ):
            start_ns, end_ns = (int((epoch + moment) * 1e9) for moment in (start, end))
            self._tracer.start_span(name, context=context, start_time=start_ns).end(end_ns)

    async def close(self) -> None:
        """Send the last spans, or give up after a second."""
        # A thread of the event loop's pool would keep the process until the collector answers.
        sender = threading.Thread(target=self._provider.shutdown, daemon=True)
        sender.start()
        limit = time.monotonic() + _LAST_SECONDS
        while sender.is_alive() and time.monotonic() < limit:
            await asyncio.sleep(0.01)


def tracer_of(environment: Mapping[str, str], service: str, log: Logger) -> NoTracer:
    """Return what makes spans for `service`, as the variables of OpenTelemetry ask for it.

    They ask for spans if OTEL_TRACES_EXPORTER is `otlp`, or if they name an endpoint.
    """
    exporter = environment.get("OTEL_TRACES_EXPORTER", "")
    is_asked = exporter == "otlp" or (
        not exporter and any(environment.get(name) for name in _ENDPOINTS)
    )
    if not is_asked or environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return NoTracer()
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        log.warning("OTEL_ variables ask for traces: install divgrpc[tracing]")
        return NoTracer()
    # The SDK reads the sampler, the endpoint and other settings from the environment.
    name = environment.get("OTEL_SERVICE_NAME", _SERVICE_NAME)
    provider = TracerProvider(
        resource=Resource.create({"service.name": name}), shutdown_on_exit=False
    )
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Tracer(provider, service)


def _context_of(parent: Trace | None) -> Any:  # noqa: ANN401  # typed without the extra
    """Return a context of OpenTelemetry with the caller's span; empty for a new trace."""
    from opentelemetry.context import Context
    from opentelemetry.trace import (
        NonRecordingSpan,
        SpanContext,
        TraceFlags,
        set_span_in_context,
    )

    if parent is None:
        return Context()
    context = SpanContext(
        int(parent.trace_id, 16),
        int(parent.span_id, 16),
        is_remote=True,
        trace_flags=TraceFlags(int(parent.is_sampled)),
    )
    return set_span_in_context(NonRecordingSpan(context), Context())
