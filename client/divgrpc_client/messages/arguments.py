"""Checks of arguments that no message carries, before the client connects.

Each function returns the value as the client uses it. It raises `InvalidArgumentError` with the
argument named for a wrong value.
"""

import math
import numbers
import operator
import re
from typing import Final

from divgrpc.errors import InvalidArgumentError

# A host is a name, an IPv4 address, or an IPv6 address in brackets.
_HOST: Final = re.compile(r"\[[0-9a-fA-F:.]+(%\w+)?\]|[^\s:/\[\]]+")
_PORT: Final = re.compile(r"[0-9]{1,5}")
# Schemes of addresses that gRPC resolves.
_GRPC_SCHEMES: Final = ("dns:", "ipv4:", "ipv6:", "unix:", "unix-abstract:", "vsock:", "xds:")
_PORT_MAX: Final = 65_535
_HOSTS: Final = "a host is a name, an IPv4 address, or an IPv6 address in brackets"


def target(value: object) -> str:
    """Check the address of a server: host:port, or an address in one of gRPC's own schemes."""
    expected = f"target must be host:port, such as 'localhost:50051', got {value!r}"
    if not isinstance(value, str) or not value:
        raise InvalidArgumentError("target", expected)
    if value.startswith(_GRPC_SCHEMES):
        return value
    if "://" in value:
        scheme, rest = value.split("://", 1)
        address = rest.split("/")[0]
        raise InvalidArgumentError(
            "target", f"{expected}: leave {scheme}:// out, write {address!r}"
        )
    host, colon, port = value.rpartition(":")
    if not colon or port.endswith("]"):
        raise InvalidArgumentError(
            "target", f"{expected}, which has no port: divgrpc-server takes 50051 by default"
        )
    if not host:
        raise InvalidArgumentError("target", f"{expected}, which has no host")
    if not _HOST.fullmatch(host):
        raise InvalidArgumentError("target", f"{expected}: {host!r} is no host; {_HOSTS}")
    if not _PORT.fullmatch(port) or not 0 < int(port) <= _PORT_MAX:
        raise InvalidArgumentError("target", f"{expected}; a port is 1 to {_PORT_MAX}")
    return value


def count(field: str, value: object) -> int:
    """Check a whole number from 1 up."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # may raise the TypeError
    except TypeError:
        number = 0
    if number < 1 or isinstance(value, bool):
        raise InvalidArgumentError(
            field, f"{field} must be a whole number from 1 up, got {value!r}"
        )
    return number


def seconds(field: str, value: object) -> float:
    """Check a number of seconds: any real number, or infinity; a negative one is already over."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool) or math.isnan(value):
        raise InvalidArgumentError(
            field, f"{field} must be a number of seconds or infinity, got {value!r}"
        )
    return float(value)


def duration(field: str, value: object) -> float:
    """Check a number of seconds above 0."""
    number = seconds(field, value)
    if number <= 0:
        raise InvalidArgumentError(field, f"{field} must be above 0 seconds, got {value!r}")
    return number


def request_id(value: object) -> str:
    """Check a value for gRPC's metadata, which takes printable ASCII; return "" for None."""
    if value is None:
        return ""
    if not isinstance(value, str) or not (value.isascii() and value.isprintable()):
        raise InvalidArgumentError(
            "request_id", f"request_id must be a text of printable ASCII, got {value!r}"
        )
    return value
