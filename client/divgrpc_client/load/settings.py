"""Settings of a load test, and the check of its target."""

from dataclasses import dataclass, field
from pathlib import Path

from divgrpc.errors import InvalidArgumentError, invalid
from divgrpc_client.messages import arguments
from divgrpc_client.rpc.security import TLS, PathLike, Peer, is_local, peer


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of a load test; raises `InvalidArgumentError` for an out-of-range value.

    poisson: Send calls at random times.
    warm_up: Seconds of calls at the start that are not counted.
    processes: Number of processes that send calls.
    channels: Number of connections that each process opens.
    timeout: Timeout of a call in seconds.
    retries: Must be 0. A retry would hide the error that a load test should count.
    max_in_flight: Maximum number of calls in flight; further calls are not sent and count as
        errors.
    quality: Must be 0. `divgrpc evaluate` measures the quality of results.
    seed: Draw times and calls from this seed.
    allow_remote: Allow a server on another machine.
    tls, token, insecure: As for `Client`.
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
    tls: bool | PathLike | TLS | None = None
    # A report of a run, which shows settings, must not show the token.
    token: str | Path | None = field(default=None, repr=False)
    insecure: bool = False

    def __post_init__(self) -> None:
        for name in ("processes", "channels", "max_in_flight"):
            arguments.count(name, getattr(self, name))
        arguments.duration("timeout", self.timeout)
        limits = {"warm_up": 3600, "timeout": 3600, "retries": 0, "quality": 0, "seed": 2**63}
        for name, limit in limits.items():
            value = getattr(self, name)
            if not 0 <= value <= limit:
                raise invalid(name, f"must be {f'0 to {limit}' if limit else 0}, got {value!r}")

    def peer(self, target: str) -> Peer:
        """Return the server with what it is shown; raises `InvalidArgumentError`."""
        check_target(target, allow_remote=self.allow_remote)
        return peer(target, self.tls, self.token, insecure=self.insecure)


def check_target(target: str, *, allow_remote: bool = False) -> str:
    """Return the target; raises `InvalidArgumentError` if it may be on another machine."""
    arguments.target(target)
    if is_local(target) or allow_remote:
        return target
    reason = (
        f"{target} may be another machine; --allow-remote (allow_remote=True) permits load on it, "
        "if it is yours to load"
    )
    raise InvalidArgumentError("target", reason)
