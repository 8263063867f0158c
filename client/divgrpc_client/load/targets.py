"""Whom load may be put on: servers of this machine, unless somebody says that he means it."""

import ipaddress

from divgrpc.errors import InvalidArgumentError
from divgrpc_client.messages import arguments


def check_target(target: str, *, allow_remote: bool = False) -> str:
    """Return the target; raises `InvalidArgumentError` where it may be another machine."""
    arguments.target(target)
    if not allow_remote and not is_loopback(target):
        raise InvalidArgumentError(
            "target",
            f"{target} may be another machine; load is put on it with --allow-remote alone "
            "(allow_remote=True), and only where it is yours to load",
        )
    return target


def is_loopback(target: str) -> bool:
    """Tell whether every address of a target is this machine's own."""
    if target.startswith(("unix:", "unix-abstract:")):
        return True
    for prefix in ("dns:///", "dns:", "ipv4:", "ipv6:"):
        target = target.removeprefix(prefix)
    return all(_is_loopback(address) for address in target.split(","))


def port_of(target: str) -> int | None:
    """Return the port of a target on this machine, None where it has none or is elsewhere."""
    port = target.rpartition(":")[2]
    return int(port) if is_loopback(target) and port.isdecimal() else None


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0] if not address.endswith("]") else address
    host = (host or address).strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
