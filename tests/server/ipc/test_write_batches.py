"""Batches of writes between a front and the writer."""

from hypothesis import given
from hypothesis import strategies as st

from divgrpc_server.ipc.write_batches import (
    Kind,
    WriteOutcome,
    pack_messages,
    pack_outcomes,
    unpack_messages,
    unpack_outcomes,
)


@given(st.lists(st.binary(max_size=40), max_size=6))
def test_messages_come_back(messages: list[bytes]) -> None:
    assert list(unpack_messages(pack_messages(messages))) == messages


@given(st.lists(st.builds(WriteOutcome, st.sampled_from(Kind), st.binary(max_size=40)), max_size=6))
def test_outcomes_come_back(outcomes: list[WriteOutcome]) -> None:
    assert list(unpack_outcomes(pack_outcomes(outcomes))) == outcomes
