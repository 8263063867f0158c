"""The check of the security options before the server starts."""

import ipaddress
import socket
from pathlib import Path

from divgrpc.errors import invalid
from divgrpc_server.config import Config, split_address
from divgrpc_server.security import certificates, cluster, tokens


def check(config: Config) -> None:
    """Raise `InvalidArgumentError`, which names the option, if the server must not start.

    Options must not contradict one another, files must be readable and valid, and without TLS the
    server listens only where no other machine can connect, unless `insecure` is set.
    """
    for name, partner in (("tls_cert", "tls_key"), ("tls_key", "tls_cert")):
        if getattr(config, name) and not getattr(config, partner):
            raise invalid(name, f"needs {partner} too")
    if config.tls_client_ca and not config.tls_cert:
        raise invalid("tls_client_ca", "needs tls_cert and tls_key too")
    if config.insecure and config.tls_cert:
        raise invalid("insecure", "contradicts tls_cert: leave one of them out")
    if not (config.tls_cert or config.insecure or is_loopback(config.host, unknown=True)):
        raise invalid(
            "listen",
            f"{config.listen} can be reached from other machines, and there is no TLS: set tls_cert"
            " and tls_key, or insecure if something else protects the port",
        )
    if config.tls_cert:
        certificates.read(config)
    _check_shard_servers(config)
    if config.tokens:
        tokens.read(Path(config.tokens))


def _check_shard_servers(config: Config) -> None:
    """Raise `InvalidArgumentError` if other machines could read what shard servers are asked."""
    if config.cluster_ca:
        certificates.read_authorities("cluster_ca", config.cluster_ca)
        if config.engine == "ray" and not config.tls_cert:
            raise invalid("cluster_ca", "needs tls_cert and tls_key, which nodes of Ray show too")
    elif not config.insecure:
        for address in (address for place in config.shard_places for address in place):
            if not is_loopback(split_address("shard_servers", address)[0]):
                raise invalid(
                    "shard_servers",
                    f"has {address}, which is on another machine, and there is no TLS: set"
                    " cluster_ca, or insecure if something else protects the connection",
                )
        if config.ray_address and not is_loopback(split_address("", config.ray_address)[0]):
            raise invalid(
                "ray_address",
                f"is {config.ray_address}, on another machine, and there is no TLS: set cluster_ca,"
                " tls_cert and tls_key, or insecure if something else protects the connection",
            )
    # Standard input can be read once alone, when the server starts.
    if config.cluster_token and config.cluster_token != cluster.STANDARD_INPUT:
        cluster.secret_of(config)


def is_loopback(host: str, *, unknown: bool = False) -> bool:
    """Return whether only this machine can connect to `host`.

    unknown: what to return for a name that is not known now. To connect, false is right: the name
        may be that of another machine later. A server cannot listen on it anyway.
    """
    try:
        addresses = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return unknown
    return all(ipaddress.ip_address(str(entry[4][0])).is_loopback for entry in addresses)
