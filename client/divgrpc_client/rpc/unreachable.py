"""Why a server cannot be reached, and what to do about it: a sentence before gRPC's own words."""

from typing import Final

# Words of gRPC's detail, and the advice for them.
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
    """Return gRPC's detail of a call without an answer, with advice where there is some."""
    for signs, sentence in _CAUSES:
        if any(sign in detail for sign in signs):
            return f"{sentence.format(target=target)} ({detail})"
    return detail
