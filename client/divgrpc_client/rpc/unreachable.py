"""Why a server cannot be reached, and what to do: a sentence before gRPC's own message."""

from typing import Final

# Parts of gRPC's message, and the advice for each.
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
        ("WRONG_VERSION_NUMBER",),
        "{target} does not speak TLS: divgrpc-server does not, so leave credentials out",
    ),
)


def explain(target: str, detail: str) -> str:
    """Return gRPC's message about an unreachable server, after our advice if there is any."""
    for signs, sentence in _CAUSES:
        if any(sign in detail for sign in signs):
            return f"{sentence.format(target=target)} ({detail})"
    return detail
