"""Runs the shard servers of a cluster as processes on this machine."""

import asyncio
import ctypes
import dataclasses
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from divgrpc.errors import UnavailableError
from divgrpc_server.config import ENVIRONMENT_PREFIX, Config
from divgrpc_server.ipc.topology import Topology
from divgrpc_server.logging.logs import Logger
from divgrpc_server.security.cluster import STANDARD_INPUT

_SERVING: Final = "serving "
# A server that has ended more often than this before it served will not serve.
_FAILED_STARTS_MAX: Final = 3
_PAUSE_SECONDS: Final = 0.1
_PAUSE_SECONDS_MAX: Final = 10.0
_YOUNG_SECONDS: Final = 2.0
_GRACE_SECONDS: Final = 1.0
_PR_SET_PDEATHSIG: Final = 1


class LocalEngine:
    """Starts `config.replicas` servers for each of `config.shards` places."""

    def __init__(self, config: Config, root: Path, secret: str, log: Logger) -> None:
        """Take the configuration of the server that routes.

        root: the folder of the indexes. secret: the token of the cluster.
        """
        self._config, self._root, self._secret, self._log = config, root, secret, log
        self._addresses: dict[tuple[int, int], str] = {}
        self._processes: dict[tuple[int, int], Process] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._version = time.monotonic_ns()
        self._changed = asyncio.Event()

    async def start(self) -> None:
        """Begin to start all servers."""
        places = range(self._config.shards)
        servers = [(place, number) for place in places for number in range(self._config.replicas)]
        self._keepers = [asyncio.create_task(self._keep(*server)) for server in servers]

    @property
    def is_whole(self) -> bool:
        """Whether all servers serve."""
        return len(self._addresses) == len(self._keepers)

    async def watch(self) -> AsyncIterator[Topology]:
        """Yield where the shards are, now and after each change.

        Raises `UnavailableError` if a server ends again and again before it serves.
        """
        while True:
            self._changed.clear()
            if any(keeper.done() for keeper in self._keepers):
                raise UnavailableError(
                    "a shard server does not start; its lines of the log say why"
                )
            yield self._topology()
            await self._changed.wait()

    async def stop(self) -> None:
        """End all servers."""
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        processes = [process for process in self._processes.values() if process.returncode is None]
        for process in processes:
            process.terminate()
        exits = [asyncio.create_task(process.wait()) for process in processes]
        if exits:
            await asyncio.wait(exits, timeout=2 * _GRACE_SECONDS)
        for process in processes:
            with suppress(ProcessLookupError):
                process.kill()

    def _topology(self) -> Topology:
        places = [
            tuple(
                self._addresses[place, number]
                for number in range(self._config.replicas)
                if (place, number) in self._addresses
            )
            for place in range(self._config.shards)
        ]
        return Topology(self._version, tuple(places))

    def _set_address(self, place: int, number: int, address: str | None) -> None:
        if address is None:
            self._addresses.pop((place, number), None)
        else:
            self._addresses[place, number] = address
        # Greater than those of an engine that ran before.
        self._version = time.monotonic_ns()
        self._changed.set()

    async def _keep(self, place: int, number: int) -> None:
        """Run a server for ever; return if it has often ended before it ever served."""
        failures = failed_starts = 0
        has_served = False
        loop = asyncio.get_running_loop()
        while failed_starts < _FAILED_STARTS_MAX or has_served:
            start_time = loop.time()
            process = await self._run()
            self._processes[place, number] = process
            address = await _address_of(process)
            if address:
                self._log.info("a shard server serves", place=place, address=address)
                self._set_address(place, number, address)
                has_served = True
            code = await process.wait()
            self._log.warning("a shard server ended", place=place, code=code)
            failed_starts += not address
            if address:
                self._set_address(place, number, None)
            is_young = not address or loop.time() - start_time < _YOUNG_SECONDS
            failures = failures + 1 if is_young else 0
            if failures:
                pause = _PAUSE_SECONDS * 2 ** min(failures, 10)
                await asyncio.sleep(min(_PAUSE_SECONDS_MAX, pause))
        self._changed.set()

    async def _run(self) -> Process:
        """Start a server, which reads the secret from its standard input."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "divgrpc_server", *self._arguments(),
            stdin=PIPE, stdout=PIPE, env=_environment(os.environ), start_new_session=True,
            # If this process is killed, nobody else would end the server.
            preexec_fn=_die_with_parent,
        )  # fmt: skip
        assert process.stdin is not None  # noqa: S101  # it is a pipe
        with suppress(OSError):
            process.stdin.write(self._secret.encode())
            await process.stdin.drain()
        process.stdin.close()
        return process

    def _arguments(self) -> list[str]:
        config = self._config
        servers = config.shards * config.replicas
        options = {
            "role": "shard",
            "data-dir": str(self._root),
            "listen": "127.0.0.1:0",
            "cluster-token": STANDARD_INPUT,
            "workers": str(max(1, config.workers // servers)),
            "fronts": "1",
            "grace": str(_GRACE_SECONDS),
            "log-format": config.log_format,
            "log-level": config.log_level,
            "worker-silence": str(config.worker_silence),
        }
        if config.cache_dir:
            # Servers of one machine share the copies.
            options["cache-dir"] = str(Path(config.cache_dir).absolute())
        arguments = [f"--{name}={value}" for name, value in options.items()]
        return [*arguments, "--read-only", "--no-access-log"]


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the options of this server."""
    names = {ENVIRONMENT_PREFIX + field.name.upper() for field in dataclasses.fields(Config)}
    names.add(f"{ENVIRONMENT_PREFIX}CONFIG")
    return {name: value for name, value in environment.items() if name not in names}


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


async def _address_of(process: Process) -> str:
    """Return the address that a server prints when it serves; "" if it ends before."""
    assert process.stdout is not None  # noqa: S101  # it is a pipe
    async for line in process.stdout:
        text = line.decode(errors="replace").strip()
        if text.startswith(_SERVING):
            return text.removeprefix(_SERVING)
    return ""
