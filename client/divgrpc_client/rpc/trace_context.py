"""The current span of OpenTelemetry, which a call passes on to the server."""

import sys


def current_traceparent() -> str | None:
    """Return the current span as a W3C `traceparent`, or None if there is none.

    A program that has not imported OpenTelemetry has no span, so this does not import it either.
    """
    if "opentelemetry.trace" not in sys.modules:
        return None
    from opentelemetry.trace import get_current_span

    span = get_current_span().get_span_context()
    if not span.is_valid:
        return None
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"
