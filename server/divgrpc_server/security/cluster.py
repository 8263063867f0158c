"""The secret that the servers of one cluster share."""

import secrets
from pathlib import Path
from typing import Final

from divgrpc.errors import invalid
from divgrpc_server.config import Config

STANDARD_INPUT: Final = "/dev/stdin"
_CHARACTERS_MIN: Final = 16
_CHARACTERS_MAX: Final = 1024
_RANDOM_BYTES: Final = 32


def secret_of(config: Config) -> str:
    """Return the token of the cluster, "" for a server without one.

    It is read from the file that `cluster_token` names. Without a file, it is a new one, because
    only this server and those that it starts need it. Raises `InvalidArgumentError`.
    """
    if not config.cluster_token:
        return secrets.token_urlsafe(_RANDOM_BYTES) if config.shards > 1 else ""
    try:
        text = Path(config.cluster_token).read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise invalid("cluster_token", f"{config.cluster_token} cannot be read: {error}") from error
    if not _CHARACTERS_MIN <= len(text) <= _CHARACTERS_MAX or not text.isprintable():
        raise invalid(
            "cluster_token",
            f"{config.cluster_token} must hold {_CHARACTERS_MIN} to {_CHARACTERS_MAX} printable"
            " characters",
        )
    return text
