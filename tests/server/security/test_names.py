"""Names of indexes that are paths, or that look like names, cannot leave the data directory."""

from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from divgrpc.parameters import INDEX_NAME
from divgrpc_client import Client
from support.processes.running_server import RunningServer
from support.requests.named_requests import METHODS, NAMELESS, naming
from support.requests.raw_security import call

_BAD = grpc.StatusCode.INVALID_ARGUMENT
_PARTS = ("..", ".", "/", "\\", "\0", "shop", "outside", "CURRENT", "%2e%2e", "~", " ", "\n", "é")
_PATHS = st.lists(st.sampled_from(_PARTS), min_size=1, max_size=6).map("".join)
_NAMES = (_PATHS | st.text(min_size=1, max_size=70)).filter(lambda n: not INDEX_NAME.fullmatch(n))
_EXAMPLES = 25


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


class Place:
    """A server whose data directory `data` is in `folder`, beside an index `outside`."""

    def __init__(self, server: RunningServer, folder: Path) -> None:
        self.server = server
        self.folder = folder


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("names")
    options = ("--data-dir", str(folder / "data"), "--workers", "1", "--no-access-log")
    with RunningServer(folder, *options) as server:
        with Client(server.target, timeout=30) as client:
            for name in ("shop", "outside"):
                client.build(name, np.eye(4, dtype=np.float32))
        (folder / "data" / "outside").rename(folder / "outside")
        yield Place(server, folder)


@pytest.mark.parametrize("method", [method for method in METHODS if method not in NAMELESS])
def test_a_name_that_is_none_is_refused_and_touches_no_file(place: Place, method: str) -> None:
    before = files(place.folder)

    @settings(max_examples=_EXAMPLES)
    @given(_NAMES)
    def check(name: str) -> None:
        try:
            request = naming(method, name)
        except (UnicodeEncodeError, ValueError):
            return  # protobuf sends no lone surrogates
        with place.server.channel() as channel:
            answer = call(channel, method, request)
        if answer.code is grpc.StatusCode.OK:
            # The messages of these streams have their own errors.
            assert method in ("QueryStream", "WriteStream")
            assert all(b"must be 1 to 63 of a-z" in message for message in answer.messages)
            return
        assert answer.code is _BAD, (name, answer)
        assert str(place.folder) not in answer.detail

    for name in ("..", "../outside", "/etc", "shop/../../outside", "shop\0", ".", "\uff53hop"):
        check.hypothesis.inner_test(name)  # type: ignore[attr-defined]  # without its draws
    check()
    assert files(place.folder) == before


def test_a_link_out_of_the_data_directory_is_not_deleted_through(place: Place) -> None:
    """Only somebody who may write into the data directory can make a link; its target survives."""
    link = place.folder / "data" / "link"
    link.symlink_to(place.folder / "outside")
    before = files(place.folder / "outside")
    with place.server.channel() as channel:
        call(channel, "DeleteIndex", naming("DeleteIndex", "link"))
    assert files(place.folder / "outside") == before
