"""Runs one shard server as a process, and starts it again when it ends."""

import asyncio
import ctypes
import dataclasses
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from divgrpc_server.config import ENVIRONMENT_PREFIX, Config
from divgrpc_server.security.cluster import STANDARD_INPUT

_SERVING: Final = "serving "
# A server that has ended more often than this before it served will not serve.
_FAILED_STARTS_MAX: Final = 3
_PAUSE_SECONDS: Final = 0.1
_PAUSE_SECONDS_MAX: Final = 10.0
_YOUNG_SECONDS: Final = 2.0
GRACE_SECONDS: Final = 1.0
_PR_SET_PDEATHSIG: Final = 1


class ShardProcess:
    """Keeps one shard server running."""

    def __init__(
        self,
        arguments: Sequence[str],
        secret: str,
        *,
        follow: Callable[[str], None],
        report_end: Callable[[int | OSError], None],
    ) -> None:
        """Take the arguments of the server and the token of the cluster.

        follow: is called with the address when the server serves, and with "" when it has ended.
        report_end: is called with the exit code when the server has ended, or with the error if the
            system could not start it.
        """
        self._arguments, self._secret = arguments, secret
        self._follow, self._report_end = follow, report_end
        self._process: Process | None = None

    async def keep(self) -> None:
        """Run the server for ever; return if it has often ended before it ever served."""
        failures = failed_starts = 0
        has_served = False
        loop = asyncio.get_running_loop()
        while failed_starts < _FAILED_STARTS_MAX or has_served:
            start_time, address = loop.time(), ""
            try:
                process = self._process = await self._run()
            except OSError as error:
                # Descriptors or processes lack, perhaps only for now.
                self._report_end(error)
            else:
                address = await _address_of(process)
                if address:
                    self._follow(address)
                    has_served = True
                self._report_end(await process.wait())
                if address:
                    self._follow("")
            failed_starts += not address
            is_young = not address or loop.time() - start_time < _YOUNG_SECONDS
            failures = failures + 1 if is_young else 0
            if failures:
                pause = _PAUSE_SECONDS * 2 ** min(failures, 10)
                await asyncio.sleep(min(_PAUSE_SECONDS_MAX, pause))

    @property
    def running(self) -> Process | None:
        """The process, None if it has not started or has ended."""
        process = self._process
        return process if process is not None and process.returncode is None else None

    async def _run(self) -> Process:
        """Start a server, which reads the secret from its standard input."""
        # A pipe of the system, because the server opens it by its name, which no socket allows. The
        # secret fits into it.
        read_end, write_end = os.pipe()
        try:
            os.write(write_end, self._secret.encode())
            return await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "divgrpc_server", *self._arguments,
                stdin=read_end, stdout=PIPE, env=_environment(os.environ), start_new_session=True,
                # If this process is killed, nobody else would end the server.
                preexec_fn=_die_with_parent,
            )  # fmt: skip
        finally:
            os.close(read_end)
            os.close(write_end)


def arguments_of(config: Config, root: Path) -> list[str]:
    """Return the arguments of all shard servers of a server that routes.

    Each of them also needs where it listens, and its `place_argument`.

    root: the folder of the indexes.
    """
    servers = config.shards * config.replicas
    options = {
        "role": "shard",
        "data-dir": str(root),
        "cluster-token": STANDARD_INPUT,
        "workers": str(max(1, config.workers // servers)),
        "fronts": "1",
        "grace": str(GRACE_SECONDS),
        "log-format": config.log_format,
        "log-level": config.log_level,
        "worker-silence": str(config.worker_silence),
    }
    if config.cache_dir:
        # Servers of one machine share the copies.
        options["cache-dir"] = str(Path(config.cache_dir).absolute())
    arguments = [f"--{name}={value}" for name, value in options.items()]
    # A call of a client would have a line for each shard.
    is_logged = config.access_log and config.log_level == "debug"
    return [*arguments, "--read-only", "--access-log" if is_logged else "--no-access-log"]


def place_argument(place: int, replica: int) -> str:
    """Return the argument by which the log lines of a shard server name its place and replica."""
    return f"--log-place={place}/{replica}"


def arguments_on_nodes(config: Config, root: Path) -> list[str]:
    """Return what `arguments_of` does, for shard servers on other machines."""
    arguments = arguments_of(config, root)
    if config.cluster_ca:
        names = {"tls-cert": config.tls_cert, "tls-key": config.tls_key}
        names["tls-client-ca"] = config.cluster_ca
        arguments += [f"--{name}={Path(path).absolute()}" for name, path in names.items()]
    elif config.insecure:
        arguments.append("--insecure")
    return arguments


async def end(servers: Sequence[ShardProcess]) -> None:
    """End servers that nobody keeps running any more."""
    processes = [process for server in servers if (process := server.running) is not None]
    for process in processes:
        with suppress(ProcessLookupError):
            process.terminate()
    exits = [asyncio.create_task(process.wait()) for process in processes]
    if exits:
        await asyncio.wait(exits, timeout=2 * GRACE_SECONDS)
    for process in processes:
        with suppress(ProcessLookupError):
            process.kill()


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
