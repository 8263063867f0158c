"""The credentials of a front's port, which follow the files of the certificates."""

import time
from typing import Final

import grpc

from divgrpc.errors import InvalidArgumentError
from divgrpc_server.config import Config
from divgrpc_server.logging.logs import Logger
from divgrpc_server.security import certificates
from divgrpc_server.security.certificates import Certificates

_CHECK_SECONDS: Final = 1.0


class Reloader:
    """Gives gRPC the certificates at each handshake, and reads them again when a file changes.

    If new files are broken, the last good ones stay in use, and a warning says so once per change.
    gRPC calls `fetch` in threads of its own, one handshake after another.
    """

    def __init__(self, config: Config, log: Logger) -> None:
        """Read the files; raises `InvalidArgumentError` as `certificates.read` does."""
        self._config = config
        self._log = log
        self._checked = time.monotonic()
        self._stamp = certificates.stamp(config)
        self._reason = ""  # why the files are not used
        self._current = certificates.read(config)

    def credentials(self) -> grpc.ServerCredentials:
        """Return the credentials of a port."""
        return grpc.dynamic_ssl_server_credentials(
            _configuration(self._current),
            self.fetch,  # type: ignore[arg-type]  # gRPC takes None, which its stubs leave out
            require_client_authentication=self._current.client_ca is not None,
        )

    def fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """Return new certificates, or None if those in use stay so."""
        now = time.monotonic()
        if now - self._checked < _CHECK_SECONDS:
            return None
        self._checked = now
        stamp = certificates.stamp(self._config)
        if stamp == self._stamp:
            return None
        self._stamp = stamp
        try:
            new = certificates.read(self._config)
        except InvalidArgumentError as error:
            if isinstance(error.__cause__, OSError):
                # It may be readable soon without a change.
                self._stamp = ()
            if str(error) != self._reason:
                self._log.warning("new certificates are not used", reason=str(error))
            self._reason = str(error)
            return None
        self._reason = ""
        if new == self._current:
            return None
        self._current = new
        self._log.info("certificates are read again", file=self._config.tls_cert)
        return _configuration(new)


def _configuration(new: Certificates) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(new.key, new.cert)], new.client_ca)
