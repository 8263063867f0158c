"""How a front connects to shard servers with TLS, which follows the files of the certificates."""

import grpc

from divgrpc.errors import InvalidArgumentError
from divgrpc_server.config import Config
from divgrpc_server.logging.logs import Logger
from divgrpc_server.security import certificates
from divgrpc_server.security.watched_files import WatchedFiles


class ShardCredentials:
    """The credentials of connections to shard servers.

    If new files are broken, the last good ones stay in use, and a warning says so once per change.
    """

    def __init__(self, config: Config, log: Logger) -> None:
        """Read the files; raises `InvalidArgumentError` as `certificates.read` does."""
        self._file, self._log = config.cluster_ca, log
        paths = filter(None, (config.cluster_ca, config.tls_cert, config.tls_key))
        self._files = WatchedFiles([*paths], lambda: _read(config))

    @property
    def value(self) -> grpc.ChannelCredentials:
        """The credentials of the last good files."""
        return grpc.ssl_channel_credentials(*self._files.value)

    def refresh(self) -> bool:
        """Read the files again if they have changed; return whether to connect anew."""
        try:
            has_changed = self._files.refresh()
        except InvalidArgumentError as error:
            self._log.warning("new certificates for shard servers are not used", reason=str(error))
            return False
        if has_changed:
            self._log.info("certificates for shard servers are read again", file=self._file)
        return has_changed


def _read(config: Config) -> tuple[bytes, bytes | None, bytes | None]:
    """Return the authorities of shard servers, and the key and the certificate to show, if any."""
    authorities = certificates.read_authorities("cluster_ca", config.cluster_ca)
    if not config.tls_cert:
        return authorities, None, None
    files = certificates.read(config)
    return authorities, files.key, files.cert
