"""Tags of calls, and the traces in them."""

import pytest

from divgrpc_server.ipc import packets
from divgrpc_server.ipc.tags import (
    Trace,
    log_fields,
    metadata_of,
    pack_tag,
    parse_traceparent,
    request_id_of,
)

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HEADER = f"00-{TRACE_ID}-{SPAN_ID}-01"


@pytest.mark.parametrize(
    ("text", "trace"),
    [
        (HEADER, Trace(TRACE_ID, SPAN_ID, is_sampled=True)),
        (f"00-{TRACE_ID}-{SPAN_ID}-00", Trace(TRACE_ID, SPAN_ID)),
        # Flags of a later level are ignored.
        (f"00-{TRACE_ID}-{SPAN_ID}-fe", Trace(TRACE_ID, SPAN_ID)),
        # A later version may append fields.
        (f"cc-{TRACE_ID}-{SPAN_ID}-01-more", Trace(TRACE_ID, SPAN_ID, is_sampled=True)),
        (f"{HEADER}-more", None),
        (f"ff-{TRACE_ID}-{SPAN_ID}-01", None),
        (f"00-{'0' * 32}-{SPAN_ID}-01", None),
        (f"00-{TRACE_ID}-{'0' * 16}-01", None),
        (f"00-{TRACE_ID.upper()}-{SPAN_ID}-01", None),
        (f"00-{TRACE_ID[1:]}-{SPAN_ID}-01", None),
        (f"00-{TRACE_ID}-{SPAN_ID}-1", None),
        (f"cc-{TRACE_ID}-{SPAN_ID}-01{'-' + 'x' * 600}", None),
        (f'00-{TRACE_ID}-{SPAN_ID}-01\n"', None),
        ("", None),
    ],
)
def test_traceparent(text: str, trace: Trace | None) -> None:
    """The cases of the W3C's recommendation, Trace Context."""
    assert parse_traceparent(text) == trace


def test_a_tag_has_the_request_id_and_the_trace() -> None:
    plain, traced = pack_tag("r-1", None), pack_tag("r-1", Trace(TRACE_ID, SPAN_ID))
    assert request_id_of(plain) == request_id_of(traced) == "r-1"
    assert log_fields(plain) == {"request_id": "r-1"}
    assert log_fields(traced) == {"request_id": "r-1", "trace_id": TRACE_ID, "span_id": SPAN_ID}


@pytest.mark.parametrize("trace", [None, Trace(TRACE_ID, SPAN_ID), Trace(TRACE_ID, SPAN_ID, True)])
def test_another_server_reads_a_tag_from_metadata(trace: Trace | None) -> None:
    metadata = dict(metadata_of(pack_tag("r-1", trace)))
    assert metadata["x-request-id"] == "r-1"
    assert parse_traceparent(metadata.get("traceparent", "")) == trace
    assert metadata_of("") == ()


def test_the_longest_tag_fits_into_a_packet() -> None:
    assert len(pack_tag("r" * 128, Trace(TRACE_ID, SPAN_ID))) == packets.TAG_BYTES_MAX
