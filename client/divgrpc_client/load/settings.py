"""How calls are sent, and to which servers.

Load goes to servers of this machine alone, unless `Settings.allow_remote` says otherwise.
"""

import ipaddress
from dataclasses import dataclass

from divgrpc.errors import InvalidArgumentError
from divgrpc_client.messages import arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How calls are sent.

    `poisson`: at random times instead of evenly. `warm_up`: seconds before anything is counted.
    `processes` send the calls, each over `channels` connections. `timeout`: seconds of a call,
    attempts after UNAVAILABLE, up to `retries`, included. `max_in_flight`: of all processes; calls
    due beyond it are not sent and count as errors. `quality`: share of the answers, 0 to 1, that is
    compared with exact search afterwards.
    """

    poisson: bool = False
    warm_up: float = 2.0
    processes: int = 1
    channels: int = 4
    timeout: float = 10.0
    retries: int = 0
    max_in_flight: int = 10_000
    quality: float = 0.0
    seed: int = 0
    allow_remote: bool = False

    def __post_init__(self) -> None:
        for name in ("processes", "channels", "max_in_flight"):
            arguments.count(name, getattr(self, name))
        arguments.duration("timeout", self.timeout)
        for name, value, most in (
            ("warm_up", self.warm_up, 3600),
            ("timeout", self.timeout, 3600),
            ("retries", self.retries, 10),
            ("quality", self.quality, 1),
            ("seed", self.seed, 2**63),
        ):
            if not 0 <= value <= most:
                raise InvalidArgumentError(name, f"{name} must be 0 to {most}, got {value!r}")
        if not isinstance(self.retries, int):
            raise InvalidArgumentError(
                "retries", f"retries must be a whole number, got {self.retries!r}"
            )


def check_target(target: str, *, allow_remote: bool = False) -> str:
    """Return the target; raises `InvalidArgumentError` where it may be another machine."""
    arguments.target(target)
    if not allow_remote and not _is_loopback(target):
        raise InvalidArgumentError(
            "target",
            f"{target} may be another machine; load is put on it with --allow-remote alone "
            "(allow_remote=True), and only where it is yours to load",
        )
    return target


def _is_loopback(target: str) -> bool:
    """Tell whether every address of a target is this machine's own."""
    if target.startswith(("unix:", "unix-abstract:")):
        return True
    for prefix in ("dns:///", "dns:", "ipv4:", "ipv6:"):
        target = target.removeprefix(prefix)
    hosts = [
        address if address.endswith("]") else address.rpartition(":")[0] or address
        for address in target.split(",")
    ]
    try:
        return all(
            host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
            for host in hosts
        )
    except ValueError:
        return False
