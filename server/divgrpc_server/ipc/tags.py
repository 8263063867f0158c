"""Tags, which accompany a call through all processes: its request id, and its trace if it has one.

Processes log the fields of a tag, so that the lines of one call can be found together. A router
passes tags on to shard servers, as metadata.
"""

import re
from typing import Final, NamedTuple

# W3C Trace Context: version, trace id, span id and flags. Later versions may append fields.
_TRACEPARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_CHARACTERS_MAX: Final = 512
_SAMPLED: Final = 1
# The metadata of a call.
REQUEST_ID_KEY: Final = "x-request-id"
TRACE_KEY: Final = "traceparent"


class Trace(NamedTuple):
    """A span of a trace; the ids are in lower-case hexadecimal digits."""

    trace_id: str
    span_id: str
    is_sampled: bool = False


def parse_traceparent(text: str) -> Trace | None:
    """Return the span that a `traceparent` names, or None if the text is malformed."""
    match = _TRACEPARENT.fullmatch(text) if len(text) <= _CHARACTERS_MAX else None
    if match is None:
        return None
    version, trace_id, span_id, flags, more = match.groups()
    if version == "ff" or (version == "00" and more is not None):
        return None
    if not trace_id.strip("0") or not span_id.strip("0"):
        return None
    return Trace(trace_id, span_id, bool(int(flags, 16) & _SAMPLED))


def pack_tag(request_id: str, trace: Trace | None) -> str:
    """Return the tag of a call."""
    if trace is None:
        return request_id
    return f"{request_id} {trace.trace_id} {trace.span_id} {trace.is_sampled:02x}"


def metadata_of(tag: str) -> tuple[tuple[str, str], ...]:
    """Return the metadata that give a call to another server this tag; none for an empty tag."""
    request_id, *trace = tag.split(" ")
    if not trace:
        return ((REQUEST_ID_KEY, request_id),) if request_id else ()
    return (REQUEST_ID_KEY, request_id), (TRACE_KEY, "-".join(("00", *trace)))


def request_id_of(tag: str) -> str:
    """Return the request id in a tag."""
    return tag.partition(" ")[0]


def log_fields(tag: str) -> dict[str, str]:
    """Return the fields of a tag for a line of the log."""
    # The last part of a tag says whether the trace is sampled.
    return dict(zip(("request_id", "trace_id", "span_id"), tag.split(" "), strict=False))
