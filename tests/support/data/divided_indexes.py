"""Indexes that are divided among shards in one process, and a router that asks them."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np

from divgrpc.engine import Engine
from divgrpc.sharding.core import ShardCore
from divgrpc.sharding.cutting import cut
from divgrpc.sharding.placement import shard_of
from divgrpc.sharding.router import Request, Router
from divgrpc.storage.generations import Generation
from divgrpc.types import IntArray, QueryResult, QueryStats

# Numbers of shards, and ways to divide points among them.
COUNTS = (1, 2, 3, 4, 7, 16)
_SKEWED_SHARE = 0.97


def _by_hash(ids: IntArray, shards: int) -> IntArray:
    return shard_of(ids, shards)


def _in_runs(ids: IntArray, shards: int) -> IntArray:
    return np.arange(len(ids)) * shards // len(ids)


def _skewed(ids: IntArray, shards: int) -> IntArray:
    homes = np.arange(len(ids)) % shards
    homes[: int(_SKEWED_SHARE * len(ids))] = shards // 2
    return homes


def _on_two(ids: IntArray, shards: int) -> IntArray:
    """Leave all but two shards empty."""
    return np.where(np.arange(len(ids)) % 2, shards - 1, 0)


DIVISIONS: dict[str, Callable[[IntArray, int], IntArray]] = {
    "hash": _by_hash,
    "runs": _in_runs,
    "skewed": _skewed,
    "on two": _on_two,
}


class DividedIndex:
    """A router and its shards.

    rounds: the names of the operations of the last answer.
    reply_bytes: the size of all replies to the last answer.
    """

    def __init__(self, engine: Engine, shards: int, division: str = "hash") -> None:
        manifest, arrays = engine.manifest, engine.arrays
        ids = arrays.get("ids", np.arange(manifest.rows))
        homes = DIVISIONS[division](ids, shards)
        self.pieces = cut(Generation(manifest, arrays), shards, homes)
        self.shards = [ShardCore(part) for part in self.pieces.parts]
        rows = [shard.rows for shard in self.shards]
        self.router = Router(self.pieces.manifest, self.pieces.shared, rows)
        self.rounds: list[str] = []
        self.reply_bytes = 0

    def answer(self, request: Request) -> QueryResult:
        """Answer a query by as many rounds as it takes."""
        rounds: dict[str, None] = {}
        self.reply_bytes = 0

        def ask(name: str, shard: int, message: bytes) -> bytes:
            rounds[name] = None
            reply = self.shards[shard].ask(name, message)
            self.reply_bytes += len(reply)
            return reply

        result = self.router.answer(request, ask)
        self.rounds = list(rounds)
        return result


def differences(a: QueryResult, b: QueryResult) -> list[str]:
    """Return the names of the fields that differ in any byte, except `points_scored`."""
    pairs = {field.name: (getattr(a, field.name), getattr(b, field.name)) for field in fields(a)}
    stats = pairs.pop("stats")
    pairs |= {
        field.name: (getattr(stats[0], field.name), getattr(stats[1], field.name))
        for field in fields(QueryStats)
    }
    pairs.pop("points_scored")
    return [name for name, pair in pairs.items() if not _are_equal(*pair)]


def _are_equal(a: Any, b: Any) -> bool:  # noqa: ANN401  # any field
    if isinstance(a, np.ndarray) and a.dtype.kind != "O":
        return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    if isinstance(a, np.ndarray):
        return bool(a.tolist() == b.tolist())
    # Explanations and reports have arrays, whose texts are rounded.
    with np.printoptions(floatmode="unique", threshold=10**9):
        return repr(a) == repr(b)
