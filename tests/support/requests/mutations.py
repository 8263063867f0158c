"""python -m support.requests.mutations: check that a server survives malformed requests.

A server with two fronts and two workers gets valid requests of every method over several channels.
Their fields and bytes are changed at random. A request depends only on the seed and its number, so
`--only NUMBER` sends it again. These are violations:

- a call ends with a status that indicates an internal fault (UNKNOWN, INTERNAL, DATA_LOSS), a dead
  process (UNAVAILABLE, CANCELLED) or a call that hung (DEADLINE_EXCEEDED);
- a worker, a front or the writer is replaced;
- a call that was slow hangs again when it is sent alone;
- queries sent before and after give different answers.

The exit code is 1 if there is a violation.
"""

import argparse
import itertools
import random
import re
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError, Message

from core.storage.test_golden_families import points
from divgrpc_client import Client
from divgrpc_client.messages.options import QueryOptions
from divgrpc_protos.v1 import query_pb2, writes_pb2
from support.processes.running_server import RunningServer, cpu_seconds, eventually
from support.requests.golden_requests import GOLDEN_NAMES
from support.requests.mutation_seeds import Seeds
from support.requests.mutators import Draw, mutated

FORBIDDEN: Final = {
    *("UNKNOWN", "INTERNAL", "DATA_LOSS", "UNAVAILABLE", "CANCELLED", "DEADLINE_EXCEEDED"),
    "unanswered",
}
# Number of requests of each method among so many requests. Builds are few because each one starts a
# process.
SHARES: Final = {
    "Query": 400,
    "QueryStream": 150,
    **dict.fromkeys(("PredictLabels", "Evaluate", "EvaluateLabels"), 40),
    **dict.fromkeys(("Diversify", "DiversifyStream"), 40),
    "GetIndex": 80,
    **dict.fromkeys(("Get", "Scroll"), 40),
    **dict.fromkeys(("Count", "Diagnose"), 20),
    **dict.fromkeys(("ListIndexes", "DeleteIndex"), 60),
    "GetServerInfo": 45,
    **dict.fromkeys(("Check", "Watch"), 20),
    "Reflection": 40,
    **dict.fromkeys(("Upsert", "Delete", "WriteStream"), 60),
    **dict.fromkeys(("Compact", "Retrain"), 5),
    **dict.fromkeys(("Build", "BuildOnce", "AddAttributes"), 5),
}
_GOLDEN: Final = Path(__file__).parents[2] / "golden"
_SECONDS: Final = 60
_PROGRESS_SECONDS: Final = 10.0
# A call that takes longer is sent again alone. A call that starts a process may take longer, for
# example on a busy machine.
_SLOW_SECONDS, _JOB_SECONDS = 1.0, 20.0
_JOBS: Final = (
    *("Build", "BuildOnce", "AddAttributes", "Evaluate", "EvaluateLabels", "Diagnose"),
    *("Compact", "Retrain"),
)
_BUILDS: Final = ("Build", "BuildOnce", "AddAttributes")
_ANSWERED_BY_STREAMS: Final = (
    *("Diagnose", "Evaluate", "EvaluateLabels", "DiversifyStream", "Compact", "Retrain"),
)
_TRIES_MAX: Final = 3
# A server that computed for a shorter time has waited for something; one that computed for a longer
# time computes for too long.
_IDLE_SECONDS, _COMPUTING_SECONDS = 0.1, 10.0
_ROLES: Final = ("front", "worker", "writer", "forkserver")
_CHANNELS: Final = 4
# Each channel has a connection of its own, so that both fronts get some.
_CHANNEL_OPTIONS: Final = (("grpc.use_local_subchannel_pool", 1),)
_ITEMS: Final = 4
# All parameters for which an earlier request of Evaluate may have set a default, with explicit
# values.
_EXPLICIT_OPTIONS: Final[QueryOptions] = {
    "diversity": 0.3,
    "selector": "greedy",
    "variant": "corrected",
    "search": "auto",
    "hash_limit": 800,
    "candidates_limit": 200,
}
_ITEM_ANSWERS: Final[dict[str, Any]] = {
    "QueryStream": query_pb2.QueryStreamResponse,
    "WriteStream": writes_pb2.WriteStreamResponse,
}
_SERVICE: Final = "/divgrpc.v1.DiverseIndex/"
_REFLECTION: Final = "grpc.reflection.{}.ServerReflection/ServerReflectionInfo"


@dataclass
class Tally:
    """Counts of calls by method and status, and a list of the calls with a forbidden status."""

    statuses: Counter[tuple[str, str]] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)
    slow: list[int] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, number: int, method: str, status: str, detail: str = "") -> None:
        """Count a call, or a query of a stream."""
        with self._lock:
            self.statuses[method, status] += 1
            if status in FORBIDDEN:
                self.wrong.append(f"request {number}, {method}: {status} {detail}")

    def time(self, number: int, method: str, seconds: float) -> None:
        """Note the duration of a call."""
        with self._lock:
            self.seconds[method] = max(seconds, self.seconds.get(method, 0.0))
            if seconds > (_JOB_SECONDS if method in _JOBS else _SLOW_SECONDS):
                self.slow.append(number)


class Caller:
    """Sends changed requests as bytes and records how each call ends."""

    def __init__(self, channels: Sequence[grpc.Channel], seed: int, tally: Tally) -> None:
        self._channels = channels
        self._seed = seed
        self.tally = tally
        self._seeds = Seeds()
        self._building = threading.BoundedSemaphore(2)

    def _channel(self) -> grpc.Channel:
        return self._channels[threading.get_ident() % len(self._channels)]

    def send(self, number: int) -> None:
        """Generate the request of this number and send it."""
        draw = random.Random(f"{self._seed}-{number}")
        method = draw.choices(tuple(SHARES), tuple(SHARES.values()))[0]
        begin = time.monotonic()
        try:
            self._send(number, method, draw)
        except grpc.RpcError as error:
            self.tally.note(number, method, error.code().name, error.details() or "")
        else:
            self.tally.note(number, method, "OK")
        self.tally.time(number, method, time.monotonic() - begin)

    def _send(self, number: int, method: str, draw: Draw) -> None:
        with self._building if method in _BUILDS else nullcontext():
            match method:
                case "QueryStream" | "WriteStream":
                    self._stream(number, method, draw)
                case "Build" | "AddAttributes":
                    self._upload(method, draw)
                case "Reflection":
                    path = "/" + _REFLECTION.format(draw.choice(("v1", "v1alpha")))
                    self._exchange(path, [mutated(draw, self._seeds.request(method, draw))])
                case "Watch" | "Check":
                    self._one(f"/grpc.health.v1.Health/{method}", method, draw)
                case _:
                    self._one(_SERVICE + method, method, draw)

    def _one(self, path: str, method: str, draw: Draw) -> None:
        payload = mutated(draw, self._seeds.request(method, draw))
        if method == "Watch":
            self._first(path, payload)
        elif method in _ANSWERED_BY_STREAMS:
            many: grpc.UnaryStreamMultiCallable[bytes, bytes] = self._channel().unary_stream(path)
            list(many(payload, timeout=_SECONDS))
        else:
            one: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self._channel().unary_unary(path)
            one(payload, timeout=_SECONDS)

    def _first(self, path: str, payload: bytes) -> None:
        """Wait for the first answer of a call that would never end, and then cancel the call."""
        watch: grpc.UnaryStreamMultiCallable[bytes, bytes] = self._channel().unary_stream(path)
        call = watch(payload, timeout=_SECONDS)
        next(iter(call))
        call.cancel()

    def _exchange(self, path: str, payloads: list[bytes]) -> list[bytes]:
        call: grpc.StreamStreamMultiCallable[bytes, bytes] = self._channel().stream_stream(path)
        return list(call(iter(payloads), timeout=_SECONDS))

    def _upload(self, method: str, draw: Draw) -> None:
        steps = self._seeds.steps(method, draw)
        places = {draw.randrange(len(steps)) for _ in range(draw.choice((0, 1, 1)))}
        payloads = [
            mutated(draw, step) if place in places else step.SerializeToString()
            for place, step in enumerate(steps)
        ]
        match draw.randrange(8):
            case 0:
                payloads.insert(draw.randrange(len(payloads)), draw.choice(payloads))
            case 1:
                payloads.pop(draw.randrange(len(payloads)))
            case 2:
                draw.shuffle(payloads)
        self._exchange(_SERVICE + method, payloads)

    def _stream(self, number: int, method: str, draw: Draw) -> None:
        payloads = []
        for place in range(_ITEMS):
            is_query = method == "QueryStream"
            item: Message = (
                self._seeds.item(draw, place) if is_query else self._seeds.write(draw, place)
            )
            whole = draw.random() < 0.4
            payloads.append(item.SerializeToString() if whole else mutated(draw, item))
        answers = self._exchange(_SERVICE + method, payloads)
        withdrawals, expected = _asked_for(payloads) if method == "QueryStream" else (0, set())
        for answer in answers:
            self._note_item(number, method, answer, expected)
        for _ in range(abs(len(payloads) - withdrawals - len(answers))):
            self.tally.note(number, f"{method}, items", "unanswered")

    def _note_item(self, number: int, method: str, answer: bytes, expected: set[str]) -> None:
        """Count the answer to a message of a stream; `expected` has the statuses it asks for."""
        kind = _ITEM_ANSWERS[method]
        try:
            message = kind.FromString(answer)
        except DecodeError:
            self.tally.note(number, f"{method}, items", "UNKNOWN", "an answer cannot be parsed")
            return
        code = next(c for c in grpc.StatusCode if c.value[0] == message.error.code)
        status = f"{code.name}, asked for" if code.name in expected else code.name
        self.tally.note(number, f"{method}, items", status, message.error.message)


def _asked_for(payloads: Sequence[bytes]) -> tuple[int, set[str]]:
    """Return the number of withdrawals in a QueryStream, and the statuses that it asks for."""
    items = [query_pb2.QueryStreamRequest.FromString(payload) for payload in payloads]
    withdrawals = sum(map(_is_withdrawal, items))
    statuses = {"CANCELLED"} if withdrawals else set()
    if any(item.time_limit_ms for item in items):
        statuses.add("DEADLINE_EXCEEDED")
    return withdrawals, statuses


def _is_withdrawal(item: query_pb2.QueryStreamRequest) -> bool:
    return item.withdraw and not item.HasField("query") and not item.HasField("time_limit_ms")


def run(
    requests: int,
    seed: int,
    *,
    only: int | None = None,
    callers: int = 4,
    on_progress: Callable[[int, Tally], None] = lambda *_: None,
) -> Tally:
    """Send the requests to a separate server, and return the counts and violations.

    on_progress: called with the number of answered requests and the tally so far.
    """
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="divgrpc-mutations-") as temporary:
        options = ("--data-dir", f"{temporary}/data", "--workers", "2", "--fronts", "2")
        for name, golden in GOLDEN_NAMES.items():
            shutil.copytree(_GOLDEN / golden, Path(temporary) / "data" / name)
        quiet = ("--log-level", "warning", "--no-access-log")
        with RunningServer(Path(temporary), *options, *quiet) as server:
            before = _answers(server)
            _start_writer(server)
            pids = {role: server.pids(role) for role in _ROLES}
            numbers = range(requests) if only is None else range(only, only + 1)
            with ExitStack() as stack, ThreadPoolExecutor(callers) as pool:
                channels = [
                    stack.enter_context(grpc.insecure_channel(server.target, _CHANNEL_OPTIONS))
                    for _ in range(_CHANNELS)
                ]
                results = pool.map(Caller(channels, seed, tally).send, numbers)
                for count, _ in enumerate(results, start=1):
                    on_progress(count, tally)
                _repeat_slow(server, Caller(channels, seed, Tally()), tally)
            _check(server, tally, pids)
            if _answers(server) != before:
                tally.wrong.append("queries sent before and after have different answers")
    return tally


def _start_writer(server: RunningServer) -> None:
    with Client(server.target, timeout=60) as client:
        client.delete("a_numbers_removed", [1])
    eventually(lambda: server.pids("writer"))


def _repeat_slow(server: RunningServer, caller: Caller, tally: Tally) -> None:
    """Send slow requests again, one by one, because a busy machine makes others slow.

    A call that hangs takes long although the server does not compute. A query that computes for a
    second is none: some selectors pick slowly.
    """
    pids = [pid for role in _ROLES for pid in server.pids(role)]
    for number in tally.slow:
        hangs = [_hangs(caller, number, pids) for _ in range(_TRIES_MAX)]
        if all(hangs):
            tally.wrong.append(f"request {number} hangs, also alone")


def _hangs(caller: Caller, number: int, pids: Sequence[int]) -> bool:
    """Send a request; return whether it was slow for no reason, or computed for too long."""
    tally = caller.tally
    count, before = len(tally.slow), sum(map(cpu_seconds, pids))
    caller.send(number)
    seconds = sum(map(cpu_seconds, pids)) - before
    is_idle = seconds < _IDLE_SECONDS
    return len(tally.slow) > count and (is_idle or seconds > _COMPUTING_SECONDS)


def _answers(server: RunningServer) -> list[bytes]:
    with Client(server.target, timeout=60) as client:
        results = [
            client.query(name, points()[:20], **_EXPLICIT_OPTIONS)
            for name in ("lsh_div", "sparse", "cells", "pca_hash")
        ]
    return [result.ids.tobytes() + result.scores.tobytes() for result in results]


def _check(server: RunningServer, tally: Tally, pids: dict[str, list[int]]) -> None:
    """Record processes that were replaced or left over, and faults that appear only in the log."""
    for role, role_pids in pids.items():
        if server.pids(role) != role_pids:
            tally.wrong.append(f"a {role} was replaced")
    try:
        eventually(lambda: not server.pids("builder"), 30)
    except AssertionError:
        tally.wrong.append("a builder is still running")
    log = server.log
    if re.search(r"\bfault\b|Traceback|child ended", log):
        tally.wrong.append(f"the log tells of faults: {log[-4_000:]}")


def report(tally: Tally) -> str:
    statuses = sorted({status for _, status in tally.statuses})
    names = (*SHARES, *(f"{method}, items" for method in _ITEM_ANSWERS))
    rows = [
        [
            *(name, f"{_sent(tally, name):,}", f"{tally.seconds.get(name, 0.0):.2f} s"),
            *(f"{tally.statuses[name, status]:,}" for status in statuses),
        ]
        for name in names
        if _sent(tally, name)
    ]
    head = ["method", "sent", "slowest", *statuses]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, *rows])


def _sent(tally: Tally, method: str) -> int:
    return sum(count for (name, _), count in tally.statuses.items() if name == method)


class _Progress:
    """Prints every ten seconds how many requests are answered."""

    def __init__(self, requests: int) -> None:
        self._requests, self._due = requests, time.monotonic() + _PROGRESS_SECONDS

    def __call__(self, count: int, tally: Tally) -> None:
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + _PROGRESS_SECONDS
            text = f"{count:,} of {self._requests:,} requests, {len(tally.wrong)} violations"
            sys.stderr.write(text + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(prog="make mutations", description=__doc__)
    parser.add_argument("--requests", type=int, default=200_000, help="(default 200000)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the draws (default 0)")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="send this request alone")
    arguments = parser.parse_args()
    progress = _Progress(arguments.requests)
    tally = run(arguments.requests, arguments.seed, only=arguments.only, on_progress=progress)
    lines = [report(tally), *itertools.islice(tally.wrong, 20), f"{len(tally.wrong)} violations"]
    sys.stdout.write("\n".join(lines) + "\n")
    sys.exit(1 if tally.wrong else 0)


if __name__ == "__main__":
    main()
