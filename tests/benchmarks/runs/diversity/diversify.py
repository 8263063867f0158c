"""Diversify: what the call adds to an echo and the selection, and the time of other libraries."""

import asyncio
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from grpc import aio
from threadpoolctl import threadpool_limits

from benchmarks.harness import libraries, load
from benchmarks.harness.datasets import Manifold
from benchmarks.harness.programs import Program, echo, server
from benchmarks.harness.runner import Ask, Output, Row, Table, take_turns
from divgrpc import diversify
from divgrpc.types import FloatArray, IntArray, Selector
from divgrpc_client.messages.diversify import diversify_request

_K: Final = 10
_DIVERSITY: Final = 0.3
_DIVERSIFY: Final = "/divgrpc.v1.DiverseIndex/Diversify"
# Goal of the call: microseconds of p50 above the p50 of an echo and of the selection in process.
_ABOVE_GOAL: Final = 300
_PYVERSITY_GOAL: Final = 3.0
_LANGCHAIN_GOAL: Final = 50.0
# Our selectors, each with the nearest strategy of pyversity.
_STRATEGIES: Final[dict[Selector, str]] = {"mmr": "mmr", "greedy": "msd", "dpp": "dpp"}
# The candidates of a query are its nearest points among this many.
_POINTS: Final = 20_000


@dataclass(frozen=True, eq=False)
class Question:
    """A query (d,), the vectors of its nearest points (n, d), and their cosines (n,)."""

    query: FloatArray
    vectors: FloatArray
    scores: FloatArray

    def shuffle(self, rng: np.random.Generator) -> "Question":
        """Return the candidates in random order."""
        order = rng.permutation(len(self.scores))
        vectors = np.ascontiguousarray(self.vectors[order])
        return Question(self.query, vectors, self.scores[order])


def rows(small: bool) -> Iterator[Output]:
    """Yield the tables of the call, of pyversity, and of LangChain."""
    count, seconds, rounds = (4, 0.2, 1) if small else (40, 2.0, 5)
    with threadpool_limits(1):
        yield Table("Diversify over gRPC, p50 of one call at a time in us")
        yield _call_row(questions(1_024, 100, min(count, 8)), seconds, rounds)
        if libraries.missing("pyversity"):
            yield "pyversity is not installed, so its selectors are not measured"
        else:
            facts = {"k, diversity": f"{_K}, {_DIVERSITY:g}"}
            yield Table("Candidates in process, beside pyversity", facts)
            for size in (100, 1_000):
                for dims in (256, 1_024):
                    yield from _pyversity_rows(questions(dims, size, count))
            yield Table("Ten candidates: what a call of divgrpc.diversify costs by itself")
            yield from _pyversity_rows(questions(256, 10, count), 5)
        if libraries.missing("langchain_core"):
            yield "langchain-core is not installed, so its selector is not measured"
            return
        yield Table("LangChain's maximal_marginal_relevance, beside mmr in process")
        for dims in (256, 1_024):
            yield _langchain_row(questions(dims, 1_000, 2 if small else 8))


@cache
def _points(dims: int) -> FloatArray:
    return Manifold.of(dims=dims).points(_POINTS)


def questions(dims: int, size: int, count: int) -> list[Question]:
    """Return `count` questions with `size` candidates each, in random order."""
    points, rng, result = _points(dims), np.random.default_rng(0), list[Question]()
    for query in Manifold.of(dims=dims).queries(count):
        cosines = points @ query
        nearest = np.argsort(-cosines, kind="stable")[:size]
        result.append(Question(query, points[nearest], cosines[nearest]).shuffle(rng))
    return result


def _call_row(candidates: Sequence[Question], seconds: float, rounds: int) -> Row:
    """Measure the call, the echo and the selection in turns, and compare their quietest rounds."""
    requests = [
        diversify_request(
            {"k": _K}, vectors=question.vectors, scores=question.scores, name=None, ids=None,
            query=None,
        ).SerializeToString()
        for question in candidates
    ]  # fmt: skip
    p50s: dict[str, list[float]] = {"echo": [], "in process": [], "call": []}
    with tempfile.TemporaryDirectory(prefix="divgrpc-bench-") as temporary:
        folder = Path(temporary)
        (folder / "data").mkdir()
        with server(folder, 1) as program:
            reply_bytes = asyncio.run(_size_of_reply(program, requests[0]))
            with echo(reply_bytes) as empty:
                for _ in range(rounds):
                    echoes = asyncio.run(load.unary(empty, requests, 1, seconds))
                    p50s["echo"].append(echoes.latency[50])
                    p50s["in process"].append(_p50_in_process(candidates, seconds))
                    calls = load.unary(program, requests, 1, seconds, method=_DIVERSIFY)
                    p50s["call"].append(asyncio.run(calls).latency[50])
    best = {name: min(values) for name, values in p50s.items()}
    above = best["call"] - best["echo"] - best["in process"]
    return {
        "candidates": "100 x 1,024",
        "bytes of a request": len(requests[0]),
        **best,
        "above both": above,
        "goal": _ABOVE_GOAL,
        "ratio to the goal": best["call"] / (best["echo"] + best["in process"] + _ABOVE_GOAL),
    }


async def _size_of_reply(program: Program, request: bytes) -> int:
    async with aio.insecure_channel(program.address) as channel:
        call: load.Call = channel.unary_unary(_DIVERSIFY)
        return len(await call(request, timeout=10))


def _p50_in_process(candidates: Sequence[Question], seconds: float) -> float:
    times: list[float] = []
    end = time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        question = candidates[len(times) % len(candidates)]
        diversify(question.vectors, question.scores, k=_K)
        times.append(time.perf_counter() - start)
    return float(np.median(times)) * 1e6


def _pyversity_rows(candidates: Sequence[Question], k: int = _K) -> Iterator[Row]:
    """Compare each selector with the strategy of pyversity that is nearest to it.

    pyversity gets contiguous float32 vectors of unit length. Its mmr and msd are told so, and do
    not scale them again; its dpp has no such option.
    """

    def ours(selector: Selector) -> Ask:
        def ask(number: int) -> IntArray:
            item = candidates[number]
            options: dict[str, Any] = {"k": k, "selector": selector, "diversity": _DIVERSITY}
            return diversify(item.vectors, item.scores, **options).places

        return ask

    def theirs(strategy: str) -> Ask:
        dial = libraries.msd_dial(_DIVERSITY, k) if strategy == "msd" else _DIVERSITY

        def ask(number: int) -> IntArray:
            item = candidates[number]
            return libraries.pyversity(strategy, item.vectors, item.scores, k, dial)

        return ask

    for selector, strategy in _STRATEGIES.items():
        asks = {"ours": ours(selector), "theirs": theirs(strategy)}
        times = take_turns(asks, len(candidates), k)
        ratio, interval = times["theirs"].ratio(times["ours"])
        size, dims = candidates[0].vectors.shape
        yield {
            "selector": selector,
            "candidates": f"{size:,} x {dims:,}",
            "us": times["ours"].microseconds,
            "strategy": strategy,
            "pyversity us": times["theirs"].microseconds,
            "ratio": ratio,
            "95 %": interval,
            **({"goal": _PYVERSITY_GOAL} if size >= 100 else {}),
        }


def _langchain_row(candidates: Sequence[Question]) -> Row:
    """Compare MMR for a query at the same lambda; LangChain gets a matrix, its fastest input."""
    from langchain_core.vectorstores.utils import maximal_marginal_relevance

    def ours(number: int) -> IntArray:
        item = candidates[number]
        options: dict[str, Any] = {"k": _K, "selector": "mmr", "diversity": _DIVERSITY}
        return diversify(item.vectors, query=item.query, **options).places

    def theirs(number: int) -> IntArray:
        item = candidates[number]
        picks = maximal_marginal_relevance(
            item.query, item.vectors, lambda_mult=1 - _DIVERSITY, k=_K
        )
        return np.array(picks)

    times = take_turns({"ours": ours, "theirs": theirs}, len(candidates), _K)
    ratio, interval = times["theirs"].ratio(times["ours"])
    return {
        "candidates": "{:,} x {:,}".format(*candidates[0].vectors.shape),
        "us": times["ours"].microseconds,
        "LangChain us": times["theirs"].microseconds,
        "ratio": ratio,
        "95 %": interval,
        "goal": _LANGCHAIN_GOAL,
        "same picks": float((times["ours"].rows == times["theirs"].rows).all(axis=1).mean()),
    }
