"""A scripted server, and both clients of it."""

from collections.abc import Iterator

import pytest

from scripted import ScriptedIndex, serving
from stacks import Stack


@pytest.fixture
def script() -> ScriptedIndex:
    """Return what the scripted server will do."""
    return ScriptedIndex()


@pytest.fixture
def target(script: ScriptedIndex) -> Iterator[str]:
    """Serve the script and return the address."""
    with serving(script) as address:
        yield address


@pytest.fixture(params=["sync", "aio"])
def call(request: pytest.FixtureRequest, target: str) -> Stack:
    """Return both clients in turn, connected to the scripted server."""
    return Stack(target, awaited=request.param == "aio")
