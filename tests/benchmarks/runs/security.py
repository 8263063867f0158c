"""Benchmark of the cost of TLS and of tokens for a unary call."""

import asyncio
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

import grpc
from grpc import aio

from benchmarks.harness.datasets import Manifold
from benchmarks.harness.programs import Program, server
from benchmarks.harness.runner import Option, Options, Output, Table, benchmark
from divgrpc.index import Index
from divgrpc_protos import arrays
from divgrpc_protos.v1 import query_pb2
from divgrpc_server.security.tokens import digest_of, new_secret

_NAME: Final = "guarded"
_QUERY: Final = "/divgrpc.v1.DiverseIndex/Query"
_GOALS: Final = {"plain": None, "tokens": 1.03, "TLS": 1.25, "TLS and tokens": None}
_TOKENS: Final = 10
_REQUESTS: Final = 400


class _Guarded(NamedTuple):
    """A server, and what its callers need."""

    program: Program
    credentials: grpc.ChannelCredentials | None
    metadata: tuple[tuple[str, str], ...]


@benchmark(
    "security",
    points=Option(10_000, "points of 128 dimensions"),
    seconds=Option(2.0, "seconds of a loop over gRPC"),
    rounds=Option(9, "loops of each server, which take turns"),
    in_flight=Option(16, "calls at a time"),
)
def security(options: Options) -> Iterator[Output]:
    """CPU time of a unary query with TLS and tokens, and without.

    The servers run at the same time, and their loops take turns. A ratio compares two loops of one
    round; the table has its median, least and greatest value. CPU time is that of front and
    worker. The token is the last of ten, and covers the index by a pattern.
    """
    points = Manifold.of().points(options.points + _REQUESTS)
    requests = [
        query_pb2.QueryRequest(
            index=_NAME, queries=arrays.encode_dense(query[None])
        ).SerializeToString()
        for query in points[options.points :]
    ]
    with tempfile.TemporaryDirectory(prefix="divgrpc-bench-") as temporary, ExitStack() as stack:
        folder = Path(temporary)
        servers: dict[str, _Guarded] = {}
        for number, name in enumerate(_GOALS):
            place = folder / str(number)
            index = Index.build(points[: options.points], path=place / "data" / _NAME)
            servers[name] = _started(stack, place, name)
        facts = {
            "index": index.info.summary,
            "in flight": str(options.in_flight),
            "rounds": str(options.rounds),
        }
        yield Table("Cost of TLS and tokens", facts)
        rounds = [asyncio.run(_round(servers, requests, options)) for _ in range(options.rounds)]
    for name, goal in _GOALS.items():
        ratios = [times[name] / times["plain"] for times in rounds]
        yield {
            "server with": name,
            "CPU us": statistics.median(times[name] for times in rounds),
            "ratio": statistics.median(ratios),
            "least": min(ratios),
            "most": max(ratios),
            "goal": None if goal is None else f"<= {goal}",
        }


def _started(stack: ExitStack, folder: Path, name: str) -> _Guarded:
    options: list[str] = []
    credentials: grpc.ChannelCredentials | None = None
    metadata: tuple[tuple[str, str], ...] = ()
    if "TLS" in name:
        cert, key = folder / "cert.pem", folder / "key.pem"
        _make_certificate(cert, key)
        options += ["--tls-cert", str(cert), "--tls-key", str(key)]
        credentials = grpc.ssl_channel_credentials(cert.read_bytes())
    if "tokens" in name:
        secrets = [new_secret() for _ in range(_TOKENS)]
        entries = [
            f'[[token]]\nname = "token-{place}"\nhash = "sha256:{digest_of(secret).hex()}"\n'
            f'role = "reader"\nindexes = ["g*"]\n'
            for place, secret in enumerate(secrets)
        ]
        (folder / "tokens.toml").write_text("\n".join(entries))
        options += ["--tokens", str(folder / "tokens.toml")]
        metadata = (("authorization", f"Bearer {secrets[-1]}"),)
    program = stack.enter_context(server(folder, 1, *options))
    return _Guarded(program, credentials, metadata)


def _make_certificate(cert: Path, key: Path) -> None:
    program = shutil.which("openssl")
    if program is None:
        raise SystemExit("this benchmark needs the program openssl")
    words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    words += ["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = [program, *words, "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True)


async def _round(
    servers: dict[str, _Guarded], requests: list[bytes], options: Options
) -> dict[str, float]:
    """Return the CPU time of a call in microseconds for each server."""
    return {name: await _cpu(guarded, requests, options) for name, guarded in servers.items()}


async def _cpu(guarded: _Guarded, requests: list[bytes], options: Options) -> float:
    target = guarded.program.address
    if guarded.credentials is None:
        channel = aio.insecure_channel(target)
    else:
        channel = aio.secure_channel(target, guarded.credentials)
    async with channel:
        method: aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(_QUERY)
        await method(requests[0], metadata=guarded.metadata)
        count, before = 0, sum(guarded.program.cpu_seconds().values())
        end = time.perf_counter() + options.seconds

        async def loop(first: int) -> None:
            nonlocal count
            number = first
            while time.perf_counter() < end:
                await method(requests[number % len(requests)], metadata=guarded.metadata)
                number += options.in_flight
                count += 1

        await asyncio.gather(*map(loop, range(options.in_flight)))
        return (sum(guarded.program.cpu_seconds().values()) - before) / count * 1e6
