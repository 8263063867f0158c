"""The certificate, the key and the authorities of clients, read from files and checked."""

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from divgrpc.errors import InvalidArgumentError, invalid
from divgrpc_server.config import Config


@dataclass(frozen=True, slots=True)
class Certificates:
    """Checked PEM texts; `client_ca` is None if clients need no certificate."""

    cert: bytes
    key: bytes
    client_ca: bytes | None


def read(config: Config) -> Certificates:
    """Read and check the files that the options of TLS name.

    Raises `InvalidArgumentError`, which names the option and the file, if a file cannot be read or
    parsed, or if the key does not match the certificate.
    """
    cert, key = _bytes("tls_cert", config.tls_cert), _bytes("tls_key", config.tls_key)
    if b"ENCRYPTED" in key:
        raise _fault("tls_key", config.tls_key, "is encrypted; give a key without a passphrase")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _check_authorities("tls_cert", config.tls_cert, cert)
    # The same bytes that gRPC gets are checked, because the files may change at any time.
    with _as_file(cert) as cert_path, _as_file(key) as key_path:
        try:
            context.load_cert_chain(cert_path, key_path, password=lambda: "")
        except ssl.SSLError as error:
            if error.reason in ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"):
                reason = f"does not match the certificate {config.tls_cert}"
            else:
                reason = f"is not a private key in PEM form ({error.reason or error})"
            raise _fault("tls_key", config.tls_key, reason) from error
    if not config.tls_client_ca:
        return Certificates(cert, key, None)
    return Certificates(cert, key, read_authorities("tls_client_ca", config.tls_client_ca))


def read_authorities(option: str, path: str) -> bytes:
    """Read and check a file of one certificate or more; raises as `read` does."""
    authorities = _bytes(option, path)
    _check_authorities(option, path, authorities)
    return authorities


def _check_authorities(option: str, path: str, data: bytes) -> None:
    """Raise `InvalidArgumentError` unless `data` is one certificate or more."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(
            cadata=data.decode("ascii", "replace")
        )
    except (ssl.SSLError, ValueError) as error:
        raise _fault(option, path, "has no certificate in PEM form") from error


def _bytes(option: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise _fault(option, path, f"cannot be read: {error.strerror}") from error


def _fault(option: str, path: str, reason: str) -> InvalidArgumentError:
    return invalid(option, f"names {path}, which {reason}")


@contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    """Yield the path of a file in memory, because `ssl` takes keys from files alone."""
    descriptor = os.memfd_create("pem")
    try:
        os.write(descriptor, data)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
