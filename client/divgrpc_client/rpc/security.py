"""TLS, the token of a client, and the server that they are for."""

import ipaddress
import os
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final, TypeAlias

import grpc

from divgrpc.errors import InvalidArgumentError, invalid

PathLike: TypeAlias = str | os.PathLike[str]
Metadata: TypeAlias = tuple[tuple[str, str], ...]
Stamp: TypeAlias = tuple[tuple[int, int, int, int] | None, ...]

# Variables of the environment that stand for arguments that are not given. The names of the
# client's certificate differ from those of the server's, so that both may be set at once.
TLS_VARIABLE: Final = "DIVGRPC_TLS"
_VARIABLES: Final = {
    "ca": "DIVGRPC_TLS_CA",
    "cert": "DIVGRPC_TLS_CLIENT_CERT",
    "key": "DIVGRPC_TLS_CLIENT_KEY",
    "server_name": "DIVGRPC_TLS_SERVER_NAME",
}
_TOKEN_VARIABLE: Final = "DIVGRPC_TOKEN"  # noqa: S105  # a name, no secret
_TOKEN_FILE_VARIABLE: Final = "DIVGRPC_TOKEN_FILE"  # noqa: S105  # the same
# Schemes of targets that name several servers: addresses, or a name that has several.
GROUP_SCHEMES: Final = ("ipv4:", "ipv6:", "dns:")
_YES: Final = ("1", "true", "yes", "on")


@dataclass(frozen=True, slots=True, kw_only=True)
class TLS:
    """How a client checks its server, and shows who it is; all files are in PEM form.

    ca: file of the authorities that may sign the server's certificate. Default: the authorities
        that gRPC knows.
    cert, key: files of the client's own certificate and its key, for servers that demand one.
        If a file changes, the client reads it again and connects anew.
    server_name: the host name in the server's certificate, if it is not the host of the target, or
        the first of several.
    """

    ca: PathLike | None = None
    cert: PathLike | None = None
    key: PathLike | None = None
    server_name: str = ""

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise invalid("tls", "needs both cert and key, or neither")

    def stamp(self) -> Stamp:
        """Return a value that changes when a file changes."""
        return tuple(_file_stamp(path) for path in (self.ca, self.cert, self.key) if path)

    def credentials(self) -> grpc.ChannelCredentials:
        """Read the files and return the credentials of a channel.

        Raises `InvalidArgumentError`, which names the file, if a file cannot be read or parsed, or
        if the key does not match the certificate.
        """
        ca, cert, key = (self._read(name) for name in ("ca", "cert", "key"))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if self.ca is not None:
            try:
                context.load_verify_locations(self.ca)
            except ssl.SSLError as error:
                raise invalid("tls", f"ca: {self.ca} has no certificate in PEM form") from error
        if self.cert is not None:
            try:
                context.load_cert_chain(self.cert, self.key, password=lambda: "")
            except ssl.SSLError as error:
                reason = f"cert and key: {self.key} is not the key of {self.cert}"
                raise invalid("tls", f"{reason} ({error.reason or error})") from error
        return grpc.ssl_channel_credentials(ca, key, cert)

    def _read(self, name: str) -> bytes | None:
        path = getattr(self, name)
        if path is None:
            return None
        try:
            return Path(path).read_bytes()
        except OSError as error:
            raise invalid("tls", f"{name}: {path} cannot be read: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class Peer:
    """A server, and what a client shows it.

    tls: None without TLS, and with credentials of the caller's own.
    token: the token, the file that has it, or None.
    """

    target: str
    tls: TLS | None = None
    # Not shown, because texts of objects get into logs.
    token: str | Path | None = field(default=None, repr=False)
    is_plain: bool = True

    @property
    def is_group(self) -> bool:
        """Whether the target may stand for several servers, which are called in turn."""
        return self.target.startswith(GROUP_SCHEMES)

    @property
    def name_in_certificates(self) -> str:
        """The host name in the certificates of all servers, "" for the one that gRPC expects.

        gRPC would look for all addresses of a list, in one text, in each certificate.
        """
        if self.tls is None:
            return ""
        is_list = self.target.startswith(("ipv4:", "ipv6:")) and "," in self.target
        return self.tls.server_name or (_hosts(self.target)[0] if is_list else "")

    def metadata(self) -> Metadata:
        """Return the metadata of a call; raises `InvalidArgumentError` for a wrong token file."""
        if self.token is None:
            return ()
        token = self.token
        if isinstance(token, Path):
            token = _token_in(token, _file_stamp(token))
        return (("authorization", f"Bearer {token}"),)


def peer(
    target: str,
    tls: "bool | PathLike | TLS | None",
    token: "str | Path | None",
    *,
    insecure: bool = False,
    has_credentials: bool = False,
    environment: Mapping[str, str] = os.environ,
) -> Peer:
    """Return a server with the arguments of a client or, where they are None, the environment.

    insecure: allow that a token is sent without TLS to another machine.
    has_credentials: the caller has gRPC credentials of its own, so `tls` must not be set.

    Raises `InvalidArgumentError`, which names the argument.
    """
    if has_credentials and tls:
        raise invalid("tls", "contradicts credentials: leave one of them out")
    protection = None if has_credentials else _tls(tls, environment)
    if protection is not None:
        protection.credentials()  # so that wrong files are reported before the first call
    secret = _token(token, environment)
    is_plain = protection is None and not has_credentials
    if secret is not None and is_plain and not insecure and not is_local(target):
        raise invalid(
            "token",
            f"is not sent to {target} without TLS, because others could read it: pass tls, or"
            " insecure=True (--insecure) if the way to the server is safe",
        )
    server = Peer(target, protection, secret, is_plain)
    server.metadata()
    return server


def tls_with(options: Mapping[str, str], *, is_wanted: bool) -> TLS | None:
    """Return what options of a command say, completed from the environment.

    options: fields of `TLS`. None is returned if nothing asks for TLS.
    """
    if options or is_wanted:
        return TLS(**{**_from(os.environ), **options})
    return None


def is_local(target: str) -> bool:
    """Return whether a target is certainly on this machine."""
    if target.startswith(("unix:", "unix-abstract:")):
        return True
    return all(map(_is_loopback, _hosts(target)))


def _hosts(target: str) -> list[str]:
    """Return the hosts of all addresses of a target."""
    for scheme in GROUP_SCHEMES:
        target = target.removeprefix(scheme)
    return [address.rpartition(":")[0].strip("/[]") for address in target.split(",")]


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def _tls(value: "bool | PathLike | TLS | None", environment: Mapping[str, str]) -> TLS | None:
    if isinstance(value, TLS):
        return value
    if isinstance(value, bool):
        return TLS(**_from(environment)) if value else None
    if value is not None:
        return TLS(ca=value)
    values = _from(environment)
    is_wanted = environment.get(TLS_VARIABLE, "").lower() in _YES
    return TLS(**values) if values or is_wanted else None


def _from(environment: Mapping[str, str]) -> dict[str, str]:
    names = _VARIABLES.items()
    return {name: text for name, variable in names if (text := environment.get(variable))}


def _token(value: "str | Path | None", environment: Mapping[str, str]) -> str | Path | None:
    if value is not None:
        return value if isinstance(value, Path) else _checked(value, "")
    text, file = environment.get(_TOKEN_VARIABLE), environment.get(_TOKEN_FILE_VARIABLE)
    if text and file:
        raise invalid("token", f"is in both {_TOKEN_VARIABLE} and {_TOKEN_FILE_VARIABLE}")
    if file:
        return Path(file)
    return _checked(text, f" in {_TOKEN_VARIABLE}") if text else None


def _checked(token: object, place: str) -> str:
    if not isinstance(token, str) or not (token.isascii() and token.isprintable()) or " " in token:
        # The text of a token never gets into an error.
        raise InvalidArgumentError("token", f"token{place} must be one word of printable ASCII")
    if not token:
        raise InvalidArgumentError("token", f"token{place} is empty")
    return token


@lru_cache(maxsize=16)
def _token_in(path: Path, _stamp: object) -> str:
    """Return the token in a file, which is read again if its stamp is another one."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise InvalidArgumentError(
            "token", f"token file {path} cannot be read: {reason}"
        ) from error
    return _checked(text.strip(), f" in {path}")


def _file_stamp(path: PathLike) -> tuple[int, int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns
