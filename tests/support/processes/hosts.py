"""Hosts of a network on this machine: network namespaces, which a bridge connects.

Each host has an address, a name that the other hosts know, and mounts of its own. All hosts share
the file system. They end with the process that has made them, because the namespaces have no names.
"""

import ctypes
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from support.processes.running_server import descendants, tied

_CLONE_NEWNET: Final = 0x40000000
_PREFIX: Final = "10.77.0"
_SWITCH: Final = "switch"


class NamespacesError(Exception):
    """This process cannot make network namespaces."""


class Host:
    """A network namespace with one link to the switch."""

    def __init__(self, name: str, number: int, mounts: Mapping[Path, Path]) -> None:
        """Make the host; `mounts` has what the host sees at some paths instead."""
        self.name, self.address = name, f"{_PREFIX}.{number}"
        self._port = f"port-{number}"
        lines = [f'mount --bind "{source}" "{target}"' for target, source in mounts.items()]
        script = "\n".join(["set -e", *lines, "echo ready", "exec sleep infinity"])
        unshare = _path("unshare")
        command = [unshare, "--net", "--mount", "--propagation", "private", "sh", "-c", script]
        self._keeper = subprocess.Popen(tied(command), stdout=subprocess.PIPE, text=True)
        assert self._keeper.stdout is not None
        if self._keeper.stdout.readline() != "ready\n":
            raise NamespacesError("the program unshare does not make namespaces")
        pid = str(self._keeper.pid)
        _ip("link", "add", self._port, "type", "veth", "peer", "name", "eth0", "netns", pid)
        _ip("link", "set", self._port, "master", _SWITCH, "up")
        # Lost packets are then lost in silence, as behind a router: no address is asked for first.
        _ip("neighbour", "add", self.address, "lladdr", _mac(number), "dev", _SWITCH)
        self.run("ip", "link", "set", "lo", "up")
        self.run("ip", "link", "set", "eth0", "address", _mac(number), "up")
        self.run("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        self.run("ip", "route", "add", "default", "via", f"{_PREFIX}.1")

    def know(self, number: int) -> None:
        """Learn where another host is."""
        address = f"{_PREFIX}.{number}"
        self.run("ip", "neighbour", "add", address, "lladdr", _mac(number), "dev", "eth0")

    def inside(self, command: Sequence[str]) -> list[str]:
        """Return a command that runs `command` on this host."""
        return [_path("nsenter"), f"--target={self._keeper.pid}", "--net", "--mount", *command]

    def run(self, *command: str) -> str:
        """Run a command on this host; return its output."""
        return _run(*self.inside(command))

    def cut(self) -> None:
        """Take the link down."""
        _ip("link", "set", self._port, "down")

    def join(self) -> None:
        """Take the link up."""
        _ip("link", "set", self._port, "up")

    def connections(self, address: str, port: int) -> int:
        """Return how many connections of this host to a port of another one are established."""
        filters = f"state established dst {address} dport = :{port}"
        return len(self.run("ss", "-tnH", *filters.split()).splitlines())

    def end(self) -> None:
        """End the host; what runs on it must have ended."""
        self._keeper.kill()
        self._keeper.wait()
        assert self._keeper.stdout is not None
        self._keeper.stdout.close()


class Network:
    """Hosts with these names, and a switch, to which the calling thread moves for good.

    What threads of this process begin afterwards connects from the switch, which is the address 1.
    """

    def __init__(
        self, names: Sequence[str], folder: Path, mounts: Callable[[str], Mapping[Path, Path]]
    ) -> None:
        """Take the names of the hosts, a folder, and what each host sees at some paths."""
        self._names, self._folder, self._mounts = names, folder, mounts
        self.hosts: dict[str, Host] = {}
        self._ends = ExitStack()

    def __enter__(self) -> Self:
        _leave()
        _ip("link", "set", "lo", "up")
        _ip("link", "add", _SWITCH, "address", _mac(1), "type", "bridge")
        _ip("link", "set", _SWITCH, "up")
        _ip("address", "add", f"{_PREFIX}.1/24", "dev", _SWITCH)
        numbers = {name: number for number, name in enumerate(self._names, start=2)}
        table = self._folder / "hosts"
        lines = [f"{_PREFIX}.{number} {name}\n" for name, number in numbers.items()]
        table.write_text("127.0.0.1 localhost\n" + "".join(lines))
        servers = self._folder / "resolv.conf"
        servers.write_text("nameserver 127.0.0.1\n")  # none: it answers at once
        common = {Path("/etc/hosts"): table, Path("/etc/resolv.conf"): servers}
        for name, number in numbers.items():
            mounts = {**common, **self._mounts(name)}
            host = self.hosts[name] = Host(name, number, mounts)
            self._ends.callback(host.end)
            for other in {1, *numbers.values()} - {number}:
                host.know(other)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ends.close()


class Program:
    """A program on a host, which logs to a file; it ends with this process."""

    def __init__(
        self, host: Host, command: Sequence[str], log: Path, environment: Mapping[str, str]
    ) -> None:
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                tied(host.inside(command)), stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                env={**os.environ, **environment},
            )  # fmt: skip

    @property
    def _pids(self) -> list[int]:
        return [self._process.pid, *descendants(self._process.pid)]

    @property
    def is_over(self) -> bool:
        """Whether the program has ended."""
        return self._process.poll() is not None

    def kill(self) -> None:
        """Kill all processes of the program."""
        for pid in self._pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()


def _leave() -> None:
    """Move this thread, and those that it starts, to a new network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET):
        raise NamespacesError(f"needs root: {os.strerror(ctypes.get_errno())}")


def _mac(number: int) -> str:
    return f"02:00:00:00:00:{number:02x}"


def _ip(*words: str) -> None:
    _run("ip", *words)


def _path(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise NamespacesError(f"needs the program {program}")
    return path


def _run(*command: str) -> str:
    try:
        return subprocess.run(
            [_path(command[0]), *command[1:]], check=True, capture_output=True, text=True
        ).stdout
    except subprocess.CalledProcessError as error:
        raise NamespacesError(f"{' '.join(command)}: {error.stderr.strip()}") from error
