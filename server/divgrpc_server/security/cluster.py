"""The secret that the servers of one cluster share."""

import hmac
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Final

from divgrpc.errors import InvalidArgumentError, invalid
from divgrpc_server.config import Config
from divgrpc_server.security.watched_files import WatchedFiles

if TYPE_CHECKING:
    # The command line says which packages are missing, so it must not need them.
    from divgrpc_server.logging.logs import Logger

STANDARD_INPUT: Final = "/dev/stdin"
_CHARACTERS_MIN: Final = 16
_CHARACTERS_MAX: Final = 1024
# A token, and the one that replaces it or that it replaces.
_TOKENS_MAX: Final = 2
_RANDOM_BYTES: Final = 32


def secret_of(config: Config) -> str:
    """Return the tokens of the cluster, one in a line, "" for a server without one.

    They are read from the file that `cluster_token` names. Without a file, there is a new one,
    because only this server and those that it starts need it. Raises `InvalidArgumentError`.
    """
    if not config.cluster_token:
        return secrets.token_urlsafe(_RANDOM_BYTES) if config.shards > 1 else ""
    return "\n".join(_read(config.cluster_token))


class ClusterTokens:
    """The tokens of the cluster: the first is sent to other servers, and all are accepted.

    They follow the file, so that a token can be replaced while servers run. If a new file is
    broken, the last good tokens stay in use, and a warning says so once per change.
    """

    def __init__(self, secret: str, config: Config, log: "Logger | None" = None) -> None:
        """Take what `secret_of` has returned a while ago. Without a log, changes are not logged."""
        path, self._log = config.cluster_token, log
        # The servers that an engine has started keep the tokens that it gave them.
        follows = path != STANDARD_INPUT and bool(config.shard_servers or config.role == "shard")
        self._file = WatchedFiles(
            [path] if follows else [], lambda: _read(path), secret.split("\n")
        )
        self.refresh()

    @property
    def secret(self) -> str:
        """The tokens in the form of `secret_of`."""
        return "\n".join(self._file.value)

    @property
    def header(self) -> str:
        """What this server sends as `authorization` to others of the cluster."""
        return _header(self._file.value[0])

    def accept(self, header: str) -> bool:
        """Return whether a caller that has sent this is a server of the cluster."""
        # All are compared, so that the time does not tell which one is equal.
        matches = [
            hmac.compare_digest(header.encode(), _header(token).encode())
            for token in self._file.value
        ]
        return any(matches)

    def refresh(self) -> bool:
        """Read the file again if it has changed; return whether the tokens have changed."""
        try:
            has_changed = self._file.refresh()
        except InvalidArgumentError as error:
            if self._log is not None:
                self._log.warning("new cluster tokens are not used", reason=str(error))
            return False
        if has_changed and self._log is not None:
            self._log.info("cluster tokens are read again", tokens=len(self._file.value))
        return has_changed


def _header(token: str) -> str:
    return f"Bearer {token}"


def _read(path: str) -> list[str]:
    """Return the tokens in a file; raises `InvalidArgumentError`."""
    try:
        text = Path(path).read_text(encoding="ascii")
    except (OSError, ValueError) as error:
        raise invalid("cluster_token", f"{path} cannot be read: {error}") from error
    lines = [line.strip() for line in text.strip().split("\n")]
    lengths = range(_CHARACTERS_MIN, _CHARACTERS_MAX + 1)
    is_valid = all(len(line) in lengths and line.isprintable() for line in lines)
    if not is_valid or len(lines) > _TOKENS_MAX:
        raise invalid(
            "cluster_token",
            f"{path} must hold {_CHARACTERS_MIN} to {_CHARACTERS_MAX} printable characters in one"
            " line, or two such lines while one token replaces another",
        )
    return lines
