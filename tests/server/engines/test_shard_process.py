"""How engines start shard servers."""

import asyncio
import errno
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import pytest

from divgrpc_server.__main__ import parser
from divgrpc_server.config import Config, load
from divgrpc_server.engines import shard_process
from divgrpc_server.engines.shard_process import ShardProcess


@pytest.mark.parametrize(
    ("config", "is_logged"),
    [
        (Config(shards=2, log_level="debug"), True),
        (Config(shards=2, log_level="debug", access_log=False), False),
        (Config(shards=2), False),
    ],
)
def test_shard_servers_write_lines_of_calls_for_debugging(config: Config, is_logged: bool) -> None:
    """A call of a client would otherwise have a line for each shard."""
    arguments = shard_process.arguments_of(config, Path("/nowhere"))
    arguments.append(shard_process.place_argument(1, 0))
    started = load(vars(parser().parse_args(arguments)), {}, None)
    assert (started.role, started.access_log) == ("shard", is_logged)
    assert started.log_fields == {"place": 1, "replica": 0}


async def _start() -> Process:
    """Start a process that serves until it is killed."""
    program = "print('serving here', flush=True); import time; time.sleep(60)"
    return await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=PIPE)


def test_a_server_that_the_system_cannot_start_is_started_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other servers go on, and so does this one when descriptors or processes are free."""
    events: list[object] = []
    starts = 0

    async def run(_: ShardProcess) -> Process:
        nonlocal starts
        starts += 1
        if 1 < starts < 7:
            raise BlockingIOError(errno.EAGAIN, "no processes")
        return await _start()

    async def keep() -> None:
        addresses: asyncio.Queue[str] = asyncio.Queue()

        def follow(address: str) -> None:
            events.append(address)
            addresses.put_nowait(address)

        def report(outcome: int | OSError) -> None:
            events.append(outcome.errno if isinstance(outcome, OSError) else outcome)

        server = ShardProcess([], "secret", follow=follow, report_end=report)
        keeper = asyncio.create_task(server.keep())
        async with asyncio.timeout(60):
            assert await addresses.get() == "here"
            assert server.running is not None
            server.running.kill()
            assert [await addresses.get(), await addresses.get()] == ["", "here"]
        keeper.cancel()
        await shard_process.end([server])

    monkeypatch.setattr(ShardProcess, "_run", run)
    monkeypatch.setattr(shard_process, "_PAUSE_SECONDS", 0.0)
    asyncio.run(keep())
    assert events == ["here", -9, "", *[errno.EAGAIN] * 5, "here"]


def test_a_server_that_never_starts_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[int | OSError] = []

    async def run(_: ShardProcess) -> Process:
        raise BlockingIOError(errno.EAGAIN, "no processes")

    monkeypatch.setattr(ShardProcess, "_run", run)
    monkeypatch.setattr(shard_process, "_PAUSE_SECONDS", 0.0)
    server = ShardProcess([], "secret", follow=lambda _: None, report_end=errors.append)
    asyncio.run(server.keep())
    assert len(errors) == 3
    assert server.running is None
