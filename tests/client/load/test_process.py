"""How runs of load end where something else ends or stops, and what does not fit is refused."""

import os
import struct
from multiprocessing import Pipe

import numpy as np
import pytest

from divgrpc.errors import InvalidArgumentError, UnavailableError
from divgrpc_client.load import Call, Settings, process
from divgrpc_client.load.generator import DONE
from divgrpc_client.load.session import Session

QUERIES = np.eye(6, dtype=np.float32)
CALLS = [Call("images", QUERIES)]


def test_a_generator_that_stops_in_a_message_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader waits for the rest of a message only so long."""
    monkeypatch.setattr(process, "_MESSAGE_SECONDS", 1)
    near, far = Pipe()
    with near, far:
        process.limit_pauses(near)
        far.send(DONE)
        assert process.receive(near) is None
        os.write(far.fileno(), struct.pack("!i", 1_000) + b"cut")
        with pytest.raises(UnavailableError, match="middle"):
            process.receive(near)


def test_what_would_take_a_generators_memory_is_refused() -> None:
    """A thousand kinds of call is most, all of them share one room, and tries are whole."""
    with pytest.raises(InvalidArgumentError, match="kinds of call"):
        Session("localhost:1", CALLS * 1_001)
    wide = [Call("images", np.zeros((3, 3_000_000), np.float32))] * 4
    session = Session("localhost:1", wide)
    assert [len(messages) for messages in session.messages] == [2] * 4
    with pytest.raises(InvalidArgumentError, match="retries"):
        Settings(retries=1.5)  # type: ignore[arg-type]
