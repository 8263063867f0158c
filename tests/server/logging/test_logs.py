"""The access log: whole lines, cheap ones."""

import asyncio
import json
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from divgrpc_server.config import Config
from divgrpc_server.ipc.subject_lines import subject
from divgrpc_server.logging.logs import AccessLog
from divgrpc_server.logging.nonblocking_pipe import LogSink


async def written(config: Config, count: int) -> str:
    """Return what an access log writes of so many calls."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    access = AccessLog(config, descriptor=writing)
    for number in range(count):
        access.add("Query", "OK", 0.00125, f"id-{number}", "ipv4:127.0.0.1:5")
    access.close()
    os.close(writing)
    with os.fdopen(reading) as pipe:
        return pipe.read()


def sockets() -> tuple[int, int]:
    """Return two connected sockets, as `os.pipe` does the ends of a pipe."""
    reading, writing = socket.socketpair()
    return reading.detach(), writing.detach()


def drain(descriptor: int) -> str:
    """Read all there is."""
    blocks = []
    with suppress(BlockingIOError):
        while block := os.read(descriptor, 65536):
            blocks.append(block)
    return b"".join(blocks).decode()


def test_lines_are_json() -> None:
    """Each call is one JSON object with what it was and how it ended."""
    lines = asyncio.run(written(Config(log_format="json"), 100)).splitlines()
    assert [json.loads(line)["request_id"] for line in lines] == [f"id-{n}" for n in range(100)]
    line = json.loads(lines[0])
    assert (line["method"], line["code"], line["duration_ms"]) == ("Query", "OK", 1.25)
    assert {"index", "rows", "k"}.isdisjoint(line)
    assert line["timestamp"].startswith(time.strftime("%Y-%m-%dT", time.gmtime()))


def test_lines_are_for_people() -> None:
    """On a console a line is read from left to right."""
    (line,) = asyncio.run(written(Config(log_format="console"), 1)).splitlines()
    assert "Query OK 1.250 ms request_id=id-0" in line


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_a_line_has_the_subject_of_its_call(log_format: str) -> None:
    """The index, the rows and k are part of a line where the call has them."""

    async def write() -> str:
        reading, writing = os.pipe()
        access = AccessLog(Config(log_format=log_format), descriptor=writing)
        access.add("Query", "OK", 0.001, "x", "peer", subject=subject("images", 3, 10))
        access.add("Build", "OK", 0.001, "y", "peer", subject=subject("images", 2_000))
        access.close()
        os.close(writing)
        with os.fdopen(reading) as pipe:
            return pipe.read()

    query, build = asyncio.run(write()).splitlines()
    if log_format == "json":
        entries = [json.loads(line) for line in (query, build)]
        assert [line["index"] for line in entries] == ["images", "images"]
        assert [(line["rows"], line.get("k")) for line in entries] == [(3, 10), (2_000, None)]
    else:
        assert "Query OK 1.000 ms index=images rows=3 k=10 request_id=x" in query
        assert "Build OK 1.000 ms index=images rows=2000 request_id=y" in build


@pytest.mark.parametrize("config", [Config(access_log=False), Config(log_level="warning")])
def test_lines_can_be_left_out(config: Config) -> None:
    """Without an access log, or above its level, nothing is written."""
    assert asyncio.run(written(config, 3)) == ""


def test_lines_leave_by_themselves() -> None:
    """What was added is written within a second without anybody asking."""

    async def wait() -> bytes:
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        AccessLog(Config(log_format="json"), descriptor=writing).add("Query", "OK", 0, "x", "")
        arrived = asyncio.Event()
        asyncio.get_running_loop().add_reader(reading, arrived.set)
        await asyncio.wait_for(arrived.wait(), 5)
        return os.read(reading, 1000)

    assert asyncio.run(wait()).endswith(b'Z"}\n')


def test_a_log_whose_reader_has_gone_holds_up_nobody() -> None:
    """A closed pipe loses lines, not calls."""

    async def flood() -> None:
        reading, writing = os.pipe()
        os.close(reading)
        access = AccessLog(Config(log_format="json"), descriptor=writing)
        for number in range(20_000):
            access.add("Query", "OK", 0.001, str(number), "peer")
        access.close()
        os.close(writing)

    asyncio.run(flood())


@pytest.mark.parametrize("in_json", [True, False])
@pytest.mark.parametrize("make", [os.pipe, sockets], ids=["pipe", "socket"])
def test_lines_that_nobody_reads_are_counted(
    make: Callable[[], tuple[int, int]], in_json: bool
) -> None:
    """Who writes to a full pipe that blocks is not held up, and says later what is missing."""
    reading, writing = make()
    assert os.get_blocking(writing)
    sink = LogSink(writing, in_json=in_json)
    for _ in range(3_000):
        sink.write("x" * 999 + "\n")
    os.set_blocking(reading, False)
    line_count = drain(reading).count("\n")
    assert 0 < line_count < 3_000
    sink.write("last\n")
    notice, last = drain(reading).splitlines()
    assert last == "last"
    count = json.loads(notice)["count"] if in_json else int(notice.rpartition("=")[2])
    assert count == 3_000 - line_count
    assert os.get_blocking(writing)
    sink.close()
    os.close(reading)
    os.close(writing)
