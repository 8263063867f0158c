"""Callers that draw the rows of an evaluation, for tests that end it."""

import threading
from collections.abc import Iterator
from contextlib import suppress

from divgrpc_client import RpcError


def draw_in_a_thread(rows: Iterator[object]) -> threading.Thread:
    """Draw all rows in a thread, and ignore the error with which the call ends."""

    def draw() -> None:
        with suppress(RpcError):
            list(rows)

    thread = threading.Thread(target=draw)
    thread.start()
    return thread
