"""Settings of a load test, and the check of its target."""

import ipaddress
from dataclasses import dataclass

from divgrpc.errors import InvalidArgumentError, invalid
from divgrpc_client.messages import arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of a load test; raises `InvalidArgumentError` for a value out of range.

    poisson: Send calls at random times.
    warm_up: Seconds of calls at the start that are not counted.
    processes: Number of processes that send calls.
    channels: Number of connections that each process opens.
    timeout: Timeout of a call in seconds, retries included.
    retries: Number of retries after UNAVAILABLE.
    max_in_flight: Maximum number of calls in flight; further calls are not sent and count as
        errors.
    quality: Compare this share of the answers, 0 to 1, with exact search afterwards.
    seed: Draw times and calls from this seed.
    allow_remote: Allow a server on another machine.
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
        for name, limit in (
            *(("warm_up", 3600), ("timeout", 3600), ("retries", 10)),
            *(("quality", 1), ("seed", 2**63)),
        ):
            value = getattr(self, name)
            if not 0 <= value <= limit:
                raise invalid(name, f"must be 0 to {limit}, got {value!r}")
        if not isinstance(self.retries, int):
            raise invalid("retries", f"must be a whole number, got {self.retries!r}")


def check_target(target: str, *, allow_remote: bool = False) -> str:
    """Return the target; raises `InvalidArgumentError` if it may be on another machine."""
    arguments.target(target)
    if not allow_remote and not _is_loopback(target):
        raise InvalidArgumentError(
            "target",
            f"{target} may be another machine; --allow-remote (allow_remote=True) permits load on "
            "it, if it is yours to load",
        )
    return target


def _is_loopback(target: str) -> bool:
    """Tell whether every address of a target is a loopback address."""
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
