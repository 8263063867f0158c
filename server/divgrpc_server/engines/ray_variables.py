"""Environment variables that Ray reads when it is loaded, and so before anything else of Ray."""

from collections.abc import MutableMapping
from typing import Final

from divgrpc_server.config import Config, split_address
from divgrpc_server.security.options import is_loopback

# Ray otherwise ends a process a minute after it has lost the head.
_HEAD_SECONDS: Final = 3600


def set_variables(config: Config, environment: MutableMapping[str, str]) -> None:
    """Set the variables in an environment; an operator's own values win, but for usage reports."""
    environment["RAY_USAGE_STATS_ENABLED"] = "0"
    # Ray otherwise starts a cluster on this machine at a call of a process that has joined none.
    environment["RAY_ENABLE_AUTO_CONNECT"] = "0"
    environment.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", str(_HEAD_SECONDS))
    if is_loopback(split_address("ray_address", config.ray_address)[0]):
        # Ray otherwise replaces 127.0.0.1 by the address at which other machines reach this one.
        environment.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
