"""The credentials of a front's port, which follow the files of the certificates."""

import time
from typing import Final

import grpc

from divgrpc.errors import InvalidArgumentError
from divgrpc_server.config import Config
from divgrpc_server.logging.logs import Logger
from divgrpc_server.security import certificates
from divgrpc_server.security.certificates import Certificates
from divgrpc_server.security.watched_files import WatchedFiles

_CHECK_SECONDS: Final = 1.0


class Reloader:
    """Gives gRPC the certificates at each handshake, and reads them again when a file changes.

    If new files are broken, the last good ones stay in use, and a warning says so once per change.
    gRPC calls `fetch` in threads of its own, one handshake after another.
    """

    def __init__(self, config: Config, log: Logger) -> None:
        """Read the files; raises `InvalidArgumentError` as `certificates.read` does."""
        self._file = config.tls_cert
        self._log = log
        self._checked = time.monotonic()
        paths = (config.tls_cert, config.tls_key, config.tls_client_ca)
        self._files = WatchedFiles(paths, lambda: certificates.read(config))

    def credentials(self) -> grpc.ServerCredentials:
        """Return the credentials of a port."""
        return grpc.dynamic_ssl_server_credentials(
            _configuration(self._files.value),
            self.fetch,  # type: ignore[arg-type]  # gRPC takes None, which its stubs leave out
            require_client_authentication=self._files.value.client_ca is not None,
        )

    def fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """Return new certificates, or None if those in use stay so."""
        now = time.monotonic()
        if now - self._checked < _CHECK_SECONDS:
            return None
        self._checked = now
        try:
            if not self._files.refresh():
                return None
        except InvalidArgumentError as error:
            self._log.warning("new certificates are not used", reason=str(error))
            return None
        self._log.info("certificates are read again", file=self._file)
        return _configuration(self._files.value)


def _configuration(new: Certificates) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(new.key, new.cert)], new.client_ca)
