"""Checks of the arguments that are not part of a message, made before the client connects.

Each function returns the value in the form that the client uses. It raises `InvalidArgumentError`
with the name of the argument for a wrong value.
"""

import math
import numbers
import operator
import re
from typing import Final

from divgrpc.errors import invalid

# A host is a name, an IPv4 address, or an IPv6 address in brackets.
_HOST: Final = re.compile(r"\[[0-9a-fA-F:.]+(%\w+)?\]|[^\s:/\[\]]+")
_PORT: Final = re.compile(r"[0-9]{1,5}")
# Schemes of addresses that gRPC resolves.
_GRPC_SCHEMES: Final = ("dns:", "ipv4:", "ipv6:", "unix:", "unix-abstract:", "vsock:", "xds:")
_PORT_MAX: Final = 65_535
# The field of the message has 32 bits.
_TIME_LIMIT_SECONDS_MAX: Final = (2**32 - 1) // 1000
_HOSTS: Final = "a host is a name, an IPv4 address, or an IPv6 address in brackets"


def target(value: object) -> str:
    """Check the address of a server: host:port, or an address with a scheme that gRPC resolves."""
    if isinstance(value, str) and value.startswith(_GRPC_SCHEMES):
        return value
    problem = _problem_of(value)
    if problem is None:
        return str(value)
    rule = f"must be host:port, such as 'localhost:50051', got {value!r}{problem}"
    raise invalid("target", rule)


def _problem_of(value: object) -> str | None:
    """Return a description of what is wrong with an address of the form host:port."""
    if not isinstance(value, str) or not value:
        return ""
    if "://" in value:
        scheme, rest = value.split("://", 1)
        return f": leave {scheme}:// out, write {rest.split('/')[0]!r}"
    if "," in value:
        return f": for several servers, write 'ipv4:{value}'"
    host, colon, port = value.rpartition(":")
    if not colon or port.endswith("]"):
        return ", which has no port: divgrpc-server takes 50051 by default"
    if not host:
        return ", which has no host"
    if not _HOST.fullmatch(host):
        return f": {host!r} is no host; {_HOSTS}"
    if not _PORT.fullmatch(port) or not 0 < int(port) <= _PORT_MAX:
        return f"; a port is 1 to {_PORT_MAX}"
    return None


def count(field: str, value: object, least: int = 1) -> int:
    """Check a whole number from `least` up."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # may raise the TypeError
    except TypeError:
        number = least - 1
    if number < least or isinstance(value, bool):
        raise invalid(field, f"must be a whole number from {least} up, got {value!r}")
    return number


def not_negative(field: str, value: object) -> int:
    """Check a whole number from 0 up."""
    return count(field, value, least=0)


def seconds(field: str, value: object) -> float:
    """Check a timeout in seconds; it may be infinite or, for an expired deadline, negative."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool) or math.isnan(value):
        raise invalid(field, f"must be a number of seconds or infinity, got {value!r}")
    return float(value)


def duration(field: str, value: object) -> float:
    """Check a number of seconds above 0."""
    number = seconds(field, value)
    if number <= 0:
        raise invalid(field, f"must be above 0 seconds, got {value!r}")
    return number


def time_limit_ms(value: object) -> int | None:
    """Return a time limit in seconds as milliseconds, rounded up; None for an infinite one."""
    number = duration("time_limit", value)
    if number == math.inf:
        return None
    if number > _TIME_LIMIT_SECONDS_MAX:
        most = f"{_TIME_LIMIT_SECONDS_MAX:,} seconds"
        raise invalid("time_limit", f"must be at most {most}, or infinite, got {value!r}")
    return math.ceil(number * 1000)


def request_id(value: object) -> str:
    """Check a value for gRPC's metadata, which takes printable ASCII; return "" for None."""
    if value is None:
        return ""
    if not isinstance(value, str) or not (value.isascii() and value.isprintable()):
        raise invalid("request_id", f"must be a text of printable ASCII, got {value!r}")
    return value
