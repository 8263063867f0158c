"""Indexes that are divided among shards in one process, and a router that asks them."""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from divgrpc.engine import Engine
from divgrpc.errors import DivgrpcError
from divgrpc.index import Index
from divgrpc.sharding.core import ShardCore
from divgrpc.sharding.cutting import cut, homes_in
from divgrpc.sharding.files import open_shard_part
from divgrpc.sharding.router import Call, ResultT, Router
from divgrpc.storage.generations import Generation, read_manifest
from divgrpc.types import IntArray, QueryResult, QueryStats
from divgrpc.types.records import Records
from divgrpc.vectors import SparseRows

# Numbers of shards, and ways to divide points among them.
COUNTS = (1, 2, 3, 4, 7, 16)
_SKEWED_SHARE = 0.97


def _by_hash(engine: Engine, shards: int) -> IntArray:
    return homes_in(engine.arrays, engine.rows, shards)


def _in_runs(engine: Engine, shards: int) -> IntArray:
    return np.arange(engine.rows) * shards // engine.rows


def _by_direction(engine: Engine, shards: int) -> IntArray:
    """Put points that are near each other on the same shard, as a division by category does."""
    points = engine.searcher.points
    matrix: Any = points.matrix if isinstance(points, SparseRows) else points
    products = matrix @ np.random.default_rng(0).standard_normal(engine.dims)
    homes = np.empty(engine.rows, np.int64)
    homes[np.argsort(products)] = _in_runs(engine, shards)
    return homes


def _skewed(engine: Engine, shards: int) -> IntArray:
    homes = np.arange(engine.rows) % shards
    homes[: int(_SKEWED_SHARE * engine.rows)] = shards // 2
    return homes


def _on_two(engine: Engine, shards: int) -> IntArray:
    """Leave all but two shards empty."""
    return np.where(np.arange(engine.rows) % 2, shards - 1, 0)


DIVISIONS: dict[str, Callable[[Engine, int], IntArray]] = {
    "hash": _by_hash,
    "runs": _in_runs,
    "direction": _by_direction,
    "skewed": _skewed,
    "on two": _on_two,
}


def differing_arrays(folder: Path, whole: Engine) -> list[str]:
    """Return the arrays of the generation in `folder` that are not those of a divided index."""
    shards = len(read_manifest(folder).shards)
    names = []
    for shard, part in enumerate(cut(Generation(whole.manifest, whole.arrays), shards).parts):
        stored = open_shard_part(folder, shard).arrays
        for name, array in part.arrays.items():
            same = stored[name]
            if (same.dtype, same.shape, same.tobytes()) != (
                array.dtype, array.shape, array.tobytes(),
            ):  # fmt: skip
                names.append(f"{shard}/{name}")
    return names


class DividedIndex:
    """A router and its shards.

    rounds: the names of the operations of the last answer.
    steps: the number of its rounds.
    messages, reply_bytes: the number of its messages, and the size of all replies.
    """

    def __init__(self, engine: Engine, shards: int, division: str = "hash") -> None:
        homes = DIVISIONS[division](engine, shards)
        self.pieces = cut(Generation(engine.manifest, engine.arrays), shards, homes)
        self.shards = [ShardCore(part) for part in self.pieces.parts]
        self._name = engine.name
        self.router = self.new_router()
        self.rounds: list[str] = []
        self.steps = self.messages = self.reply_bytes = 0

    def new_router(self) -> Router:
        """Return a router that has counted no points yet."""
        rows = [shard.rows for shard in self.shards]
        return Router(self.pieces.manifest, self.pieces.shared, rows, self._name)

    def answer(self, call: Call[ResultT]) -> ResultT:
        """Answer a call by as many rounds as it takes."""
        rounds: dict[str, None] = {}
        self.steps = self.messages = self.reply_bytes = 0

        def ask(name: str, shard: int, message: bytes) -> bytes:
            rounds[name] = None
            self.messages += 1
            reply = self.shards[shard].ask(name, message)
            self.reply_bytes += len(reply)
            return reply

        def count_and_call(engine: Engine) -> ResultT:
            self.steps += 1
            return call(engine)

        result = self.router.answer(count_and_call, ask)
        # The last call has the result.
        self.steps -= 1
        self.rounds = list(rounds)
        return result


def outcomes(
    index: Index, pieces: DividedIndex, call: Callable[[Index], QueryResult]
) -> tuple[QueryResult | str, QueryResult | str]:
    """Return the result of a call, or its error, from shards and from the whole index."""

    def outcome(answer: Callable[[], QueryResult]) -> QueryResult | str:
        try:
            return answer()
        except DivgrpcError as error:
            return f"{type(error).__name__}: {error}"

    def call_engine(engine: Engine) -> QueryResult:
        return call(Index(engine))

    return outcome(lambda: pieces.answer(call_engine)), outcome(lambda: call(index))


def check_call(
    index: Index, pieces: DividedIndex, call: Callable[[Index], QueryResult]
) -> QueryResult | str:
    """Compare the result of a call, or its error, with that of the whole index; return it."""
    answer, whole = outcomes(index, pieces, call)
    if isinstance(answer, str) or isinstance(whole, str):
        assert answer == whole
    else:
        assert differences(answer, whole) == []
    return answer


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


def record_differences(a: Records, b: Records) -> list[str]:
    """Return the names of the fields that differ in any byte."""
    names = [field.name for field in fields(a)]
    return [name for name in names if not _are_equal(getattr(a, name), getattr(b, name))]


def _are_equal(a: Any, b: Any) -> bool:  # noqa: ANN401  # any field
    if isinstance(a, np.ndarray) and a.dtype.kind != "O":
        return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    if isinstance(a, np.ndarray):
        return bool(a.tolist() == b.tolist())
    # Explanations and reports have arrays, whose texts are rounded.
    with np.printoptions(floatmode="unique", threshold=10**9):
        return repr(a) == repr(b)
