"""The writes of a run: what callers write, and what every reader must see."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from divgrpc_protos.v1 import points_pb2, writes_pb2
from divgrpc_server.ipc.packets import Op
from simulation.serving.requests import DIMS, ROWS, points_of, vectors_message

_IDS_MAX: Final = ROWS + 20
# What a point of the first build has as its stamp.
_FIRST: Final = 0
Stamps = dict[int, int]


@dataclass(frozen=True)
class Write:
    """A write: of the points that it adds, replaces or deletes; its number is their stamp."""

    number: int
    is_deletion: bool
    ids: tuple[int, ...]

    @property
    def op(self) -> Op:
        """The operation of the call."""
        return Op.DELETE if self.is_deletion else Op.UPSERT

    def payload(self) -> bytes:
        """Return the request, which has the same name whenever it is sent."""
        name = f"write-{self.number}"
        if self.is_deletion:
            deletion = writes_pb2.DeleteRequest(index="points", ids=self.ids, write_id=name)
            return deletion.SerializeToString()
        return writes_pb2.UpsertRequest(
            index="points",
            ids=self.ids,
            vectors=vectors_message(np.stack([_vector(i, self.number) for i in self.ids])),
            write_id=name,
        ).SerializeToString()


def draw_write(number: int) -> Write:
    """Return the write of an action, the same each time."""
    rng = random.Random(f"write {number}")
    ids = sorted(rng.sample(range(_IDS_MAX), rng.choice((1, 1, 3, 8))))
    return Write(number, rng.random() < 0.3, tuple(ids))


def _vector(point_id: int, stamp: int) -> Any:  # noqa: ANN401  # an array
    """Return the vector (64,) float32 that a write gives to a point."""
    if stamp == _FIRST:
        return points_of(0)[point_id]
    return np.full(DIMS, np.sin(stamp * 100 + point_id), np.float32)


class WriteHistory:
    """The writes that were acknowledged, and what was read.

    check: fails the run unless its first argument is true.
    floor: the sequence number of the last write that a caller knows to be made.
    """

    def __init__(self, check: Callable[[bool, str], None]) -> None:
        self._check = check
        self.floor = 0
        self._writes: dict[int, Write] = {}
        self._reads: list[tuple[int, Stamps, tuple[int, ...]]] = []

    def acknowledge(self, write: Write, response: bytes) -> None:
        """Note what a call has returned."""
        kind: Any = writes_pb2.DeleteResponse if write.is_deletion else writes_pb2.UpsertResponse
        answer = kind.FromString(response)
        other = self._writes.setdefault(answer.sequence, write)
        self._check(other == write, f"writes {other} and {write} have one sequence number")
        self.floor = max(self.floor, answer.sequence)

    def read(self, response: points_pb2.GetResponse, ids: tuple[int, ...], floor: int) -> None:
        """Note the points that a call has returned; `floor` was known before it."""
        sequence = response.sequence
        self._check(sequence >= floor, f"a query shows write {sequence} and not write {floor}")
        dense = response.points.vectors.dense
        rows = np.frombuffer(dense.data, np.float32).reshape(-1, DIMS)
        stamps = {
            i: self._stamp_of(i, row) for i, row in zip(response.points.ids, rows, strict=True)
        }
        self._reads.append((sequence, stamps, ids))

    def _stamp_of(self, point_id: int, row: Any) -> int:  # noqa: ANN401  # an array
        if point_id < ROWS and np.array_equal(row, _vector(point_id, _FIRST)):
            return _FIRST
        self._check(bool((row == row[0]).all()), f"point {point_id} is not whole")
        for number in range(1, 1_000):
            if np.array_equal(row, _vector(point_id, number)):
                return number
        self._check(False, f"point {point_id} has a vector that nobody has written")
        return -1

    def check_all(self) -> None:
        """Compare all that was read with the writes up to its sequence number."""
        numbers = sorted(self._writes)
        self._check(numbers == list(range(1, len(numbers) + 1)), f"the writes are {numbers}")
        stamps, states = dict.fromkeys(range(ROWS), _FIRST), [dict.fromkeys(range(ROWS), _FIRST)]
        for number in numbers:
            write = self._writes[number]
            for point_id in write.ids:
                stamps.pop(point_id, None)
                if not write.is_deletion:
                    stamps[point_id] = write.number
            states.append(dict(stamps))
        for sequence, points, ids in self._reads:
            self._check(sequence < len(states), f"write {sequence} was seen, and never made")
            expected = {i: states[sequence][i] for i in ids if i in states[sequence]}
            self._check(points == expected, f"at write {sequence}: {points}, not {expected}")
