"""Benchmark of the cost of TLS and of tokens for a unary call."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import grpc

from benchmarks.harness import costs
from benchmarks.harness.costs import Variant
from benchmarks.harness.runner import Options, Output, benchmark
from divgrpc_server.security.tokens import digest_of, new_secret

_SECRETS: Final = [new_secret() for _ in range(10)]
# The last of ten tokens, which covers the index by a pattern.
_METADATA: Final = (("authorization", f"Bearer {_SECRETS[-1]}"),)


@benchmark(
    "security",
    points=costs.POINTS,
    seconds=costs.SECONDS,
    rounds=costs.ROUNDS,
    in_flight=costs.IN_FLIGHT,
)
def security(options: Options) -> Iterator[Output]:
    """CPU time of a unary query with TLS and tokens, and without.

    The servers run at the same time, and their loops take turns. A ratio compares two loops of one
    round; the table has its median, least and greatest value.
    """
    if shutil.which("openssl") is None:
        raise SystemExit("this benchmark needs the program openssl")
    variants = {
        "plain": Variant(lambda _: []),
        "token that the server ignores": Variant(lambda _: [], metadata=_METADATA),
        "tokens": Variant(_with_tokens, 1.03, metadata=_METADATA),
        "TLS": Variant(_with_certificate, 1.25, _credentials),
        "TLS and tokens": Variant(
            lambda folder: _with_certificate(folder) + _with_tokens(folder),
            credentials=_credentials,
            metadata=_METADATA,
        ),
    }
    return costs.compare("Cost of TLS and tokens", variants, options)


def _with_tokens(folder: Path) -> list[str]:
    """Write a file of tokens, and return the option that names it."""
    file = folder / "tokens.toml"
    entries = [
        f'[[token]]\nname = "token-{place}"\nhash = "sha256:{digest_of(secret).hex()}"\n'
        f'role = "reader"\nindexes = ["{costs.NAME[:1]}*"]\n'
        for place, secret in enumerate(_SECRETS)
    ]
    file.write_text("\n".join(entries))
    return ["--tokens", str(file)]


def _with_certificate(folder: Path) -> list[str]:
    """Make a certificate and its key, and return the options that name them."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    program = str(shutil.which("openssl"))
    words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    words += ["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = [program, *words, "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True)
    return ["--tls-cert", str(cert), "--tls-key", str(key)]


def _credentials(folder: Path) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials((folder / "cert.pem").read_bytes())
