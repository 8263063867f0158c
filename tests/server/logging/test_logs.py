"""The access log and the log sink."""

import asyncio
import json
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from divgrpc.parameters import INDEX_NAME
from divgrpc_server.config import Config
from divgrpc_server.logging import logs
from divgrpc_server.logging.logs import AccessLog
from divgrpc_server.logging.nonblocking_pipe import LogSink


async def written(config: Config, count: int, index: str = "") -> str:
    """Return the lines of an access log for `count` calls."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    access = AccessLog(config, descriptor=writing)
    for number in range(count):
        access.add(
            "Query", "OK", 0.00125, f"id-{number}", "ipv4:127.0.0.1:5", subject=(index, 1, None)
        )
    access.close()
    os.close(writing)
    with os.fdopen(reading) as pipe:
        return pipe.read()


def sockets() -> tuple[int, int]:
    reading, writing = socket.socketpair()
    return reading.detach(), writing.detach()


def drain(descriptor: int) -> str:
    blocks = []
    with suppress(BlockingIOError):
        while block := os.read(descriptor, 65536):
            blocks.append(block)
    return b"".join(blocks).decode()


def test_lines_are_json() -> None:
    lines = asyncio.run(written(Config(log_format="json"), 100)).splitlines()
    assert [json.loads(line)["request_id"] for line in lines] == [f"id-{n}" for n in range(100)]
    line = json.loads(lines[0])
    assert (line["method"], line["code"], line["duration_ms"]) == ("Query", "OK", 1.25)
    assert {"index", "rows", "k"}.isdisjoint(line)
    assert line["timestamp"].startswith(time.strftime("%Y-%m-%dT", time.gmtime()))


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_a_line_has_the_subject_of_its_call(log_format: str) -> None:
    async def write() -> str:
        reading, writing = os.pipe()
        access = AccessLog(Config(log_format=log_format), descriptor=writing)
        access.add("Query", "OK", 0.001, "x", "peer", subject=("images", 3, 10))
        access.add("Build", "OK", 0.001, "y", "peer", subject=("images", 2_000, None))
        access.add("Query", "OK", 0.00125, "z", "peer")
        access.close()
        os.close(writing)
        with os.fdopen(reading) as pipe:
            return pipe.read()

    query, build, bare = asyncio.run(write()).splitlines()
    if log_format == "json":
        entries = [json.loads(line) for line in (query, build)]
        assert [line["index"] for line in entries] == ["images", "images"]
        assert [(line["rows"], line.get("k")) for line in entries] == [(3, 10), (2_000, None)]
    else:
        assert "Query OK 1.000 ms index=images rows=3 k=10 request_id=x" in query
        assert "Build OK 1.000 ms index=images rows=2000 request_id=y" in build
        assert "Query OK 1.250 ms request_id=z" in bare


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_a_line_of_a_call_that_failed_says_why(log_format: str) -> None:
    """Only plain reasons, because values are not escaped."""
    reading, writing = os.pipe()

    async def write() -> None:
        access = AccessLog(Config(log_format=log_format), descriptor=writing)
        for refusal in (("SHARDS_MISSING", "0,12"), ("QUEUE_FULL", ""), ('"', '"}'), ("", "")):
            access.add("Query", "UNAVAILABLE", 0.001, "x", "peer", refusal=refusal)
        access.close()
        os.close(writing)

    asyncio.run(write())
    with os.fdopen(reading) as pipe:
        lines = pipe.read().splitlines()
    if log_format == "json":
        entries = [json.loads(line) for line in lines]
        reasons = [(entry.get("reason"), entry.get("shards")) for entry in entries]
        assert reasons == [("SHARDS_MISSING", "0,12"), ("QUEUE_FULL", None), *[(None, None)] * 2]
    else:
        assert "UNAVAILABLE 1.000 ms reason=SHARDS_MISSING shards=0,12 request_id=x" in lines[0]
        assert "UNAVAILABLE 1.000 ms reason=QUEUE_FULL request_id=x" in lines[1]
        assert all("UNAVAILABLE 1.000 ms request_id=x" in line for line in lines[2:])


IN_PLACE: dict[str, Any] = {
    "role": "shard",
    "data_dir": "d",
    "read_only": True,
    "cluster_token": "t",
    "log_place": "12/3",
}


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_lines_of_a_shard_server_have_its_place(
    log_format: Literal["json", "console"], capfd: pytest.CaptureFixture[str]
) -> None:
    """Those of events, of calls, and of lines that were dropped."""
    config = Config(**IN_PLACE, log_format=log_format)
    is_json = log_format == "json"
    logs.configure(config, "worker", 7).warning("an event", shard=2)
    event = capfd.readouterr().err
    access = asyncio.run(written(config, 1, "images"))
    reading, writing = os.pipe()
    sink = LogSink(writing, in_json=is_json, fields=config.log_fields)
    sink.write(99_999 * "x" + "\n")
    os.set_blocking(reading, False)
    drain(reading)
    sink.write("last\n")
    notice = drain(reading).splitlines()[0]
    for line in (event, access, notice):
        if is_json:
            entry = json.loads(line)
            assert (entry["place"], entry["replica"]) == (12, 3)
        else:
            assert " place=12 " in line
            assert " replica=3" in line
    sink.close()
    os.close(reading)
    os.close(writing)


FORGERIES = ['x", "code": "OK', "x\nx", "x" * 64, ""]


@pytest.mark.parametrize("log_format", ["json", "console"])
@given(st.one_of(st.sampled_from(FORGERIES), st.text(max_size=80)))
def test_an_index_name_cannot_forge_a_line(log_format: str, name: str) -> None:
    """A line has the index of its call only if the index is a valid name."""
    config = Config(log_format=log_format)
    line = asyncio.run(written(config, 1, name))
    if INDEX_NAME.fullmatch(name) or name == "*":
        assert name in line
    else:
        assert len(line) == len(asyncio.run(written(config, 1)))


@pytest.mark.parametrize("config", [Config(access_log=False), Config(log_level="warning")])
def test_no_line_is_written_if_the_access_log_is_off(config: Config) -> None:
    """Access lines have level info, so a higher log level also switches them off."""
    assert asyncio.run(written(config, 3)) == ""


def test_lines_are_flushed_by_a_timer() -> None:
    async def wait() -> bytes:
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        AccessLog(Config(log_format="json"), descriptor=writing).add("Query", "OK", 0, "x", "")
        arrival = asyncio.Event()
        asyncio.get_running_loop().add_reader(reading, arrival.set)
        await asyncio.wait_for(arrival.wait(), 5)
        return os.read(reading, 1000)

    assert asyncio.run(wait()).endswith(b'Z"}\n')


def test_writing_to_a_closed_pipe_raises_nothing() -> None:
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
def test_dropped_lines_are_counted(make: Callable[[], tuple[int, int]], in_json: bool) -> None:
    """Writing to a full pipe does not block, and a later line gives the number of lines dropped."""
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


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_a_line_has_the_trace_of_its_call(log_format: str) -> None:
    async def write() -> str:
        reading, writing = os.pipe()
        access = AccessLog(Config(log_format=log_format), descriptor=writing)
        subject, trace = ("images", 3, 10), ("a" * 32, "b" * 16, True)
        access.add("Query", "OK", 0.001, "x", "peer", subject=subject, trace=trace)
        access.close()
        os.close(writing)
        with os.fdopen(reading) as pipe:
            return pipe.read()

    line = asyncio.run(write())
    if log_format == "json":
        entry = json.loads(line)
        assert (entry["trace_id"], entry["span_id"]) == ("a" * 32, "b" * 16)
        assert (entry["index"], entry["request_id"]) == ("images", "x")
    else:
        assert f" index=images rows=3 k=10 trace_id={'a' * 32} span_id={'b' * 16} " in line
