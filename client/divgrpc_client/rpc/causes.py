"""Advice for a server that cannot be reached, from the text of gRPC's error."""

from typing import Final

from divgrpc_client.rpc.security import Peer

# Fragments of gRPC's messages, and the advice for each.
_CAUSES: Final = (
    (
        ("Connection refused", "No such file or directory"),
        "no server listens at {target}: start one with divgrpc-server, or name another target",
    ),
    (
        ("Domain name not found", "address lookup failed", "errors resolving"),
        "the host of {target} is not known: addresses are host:port, such as localhost:50051",
    ),
    (
        ("backend unhealthy",),
        "no server at {target} is ready: one may be starting, so retry, or wait until it is ready",
    ),
    (
        ("WRONG_VERSION_NUMBER",),
        "{target} does not speak TLS: leave tls out, or start the server with --tls-cert",
    ),
    (
        ("certificate has expired",),
        "the certificate of {target} has expired: the server needs a new one",
    ),
    (
        ("certificate is not yet valid",),
        "the certificate of {target} is not valid yet: compare the clocks of both machines",
    ),
    (
        ("Hostname Verification Check failed",),
        "the certificate of {target} is for another host: name a host that is in the certificate,"
        " or give its name as server_name (--tls-server-name)",
    ),
    (
        ("CERTIFICATE_VERIFY_FAILED",),
        "the certificate of {target} is from an authority that this client does not know: give the"
        " authority's certificate as ca (--tls-ca)",
    ),
)
_REFUSED: Final = "Connection refused"
_ONE_ADDRESS_ADVICE: Final = (
    "no server listens at {target}, at least not at its IPv6 address, the only one that gRPC tells"
    " of: start one with divgrpc-server; if one runs, name its other address, such as"
    " 127.0.0.1:50051, to see why it does not answer"
)
_CLOSED: Final = ("Socket closed", "Connection reset by peer", "Broken pipe")
_NOT_CONNECTED: Final = "failed to connect"
_PLAIN_ADVICE: Final = "{target} closed the connection: if it speaks TLS, pass tls (--tls-ca)"
_NO_CERTIFICATE_ADVICE: Final = (
    "{target} closed the connection in the TLS handshake: it may demand a client certificate, which"
    " is given as cert and key (--tls-cert, --tls-key)"
)
_CERTIFICATE_ADVICE: Final = (
    "{target} closed the connection in the TLS handshake: it may not accept this client"
    " certificate, because of its authority or its end"
)


def explain_unreachable(peer: Peer, detail: str) -> str:
    """Return gRPC's message `detail` about an unreachable server.

    If the cause of the message is known, advice comes first.
    """
    if _REFUSED in detail and "ipv6:" in detail and "[" not in peer.target:
        # gRPC tells of one address alone, and a server may listen at another one.
        return f"{_ONE_ADDRESS_ADVICE.format(target=peer.target)} ({detail})"
    advice = next((text for signs, text in _CAUSES if any(sign in detail for sign in signs)), "")
    if not advice and _NOT_CONNECTED in detail and any(sign in detail for sign in _CLOSED):
        advice = _advice_if_closed(peer)
    return f"{advice.format(target=peer.target)} ({detail})" if advice else detail


def _advice_if_closed(peer: Peer) -> str:
    if peer.is_plain:
        return _PLAIN_ADVICE
    has_certificate = peer.tls is None or peer.tls.cert is not None
    return _CERTIFICATE_ADVICE if has_certificate else _NO_CERTIFICATE_ADVICE
