"""The history of a collection: all writes that callers made, and the points after each of them."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple

from divgrpc.types import WriteMode, WriteResult
from divgrpc.types.filters import Condition
from support.data.written_points import Model, Point, passing

# A generation that is smaller than all others.
_UNKNOWN: Final = 0
Test = tuple[Condition, Callable[[Point], bool]]


class Version(NamedTuple):
    """The version of an answer: its generation, and the number of the last write that it shows."""

    generation: int
    sequence: int


@dataclass(frozen=True)
class Write:
    """The arguments of a write.

    kind: an upsert of points, an upsert of payloads alone, or a deletion.
    points: the points of an upsert. An upsert of payloads alone uses their ids and payloads.
    ids, test: what is deleted: these ids, or all points that pass the test.
    """

    kind: Literal["points", "payloads", "deletion"]
    points: Model
    ids: tuple[int, ...] = ()
    test: Test | None = None
    mode: WriteMode = "upsert"
    if_sequence: int | None = None

    def deleted(self, model: Model) -> set[int]:
        """Return the ids that a deletion removes from the points of a model."""
        names = set(model if self.test is None else passing(model, self.test[1]))
        return names if self.test is not None else names & set(self.ids)

    def is_refused(self, model: Model, sequence: int) -> bool:
        """Tell whether a condition of the write does not hold after the write `sequence`."""
        present = self.points.keys() & model.keys()
        return (
            (self.mode == "insert_only" and bool(present))
            or (self.mode == "update_only" and len(present) < len(self.points))
            or (self.kind == "payloads" and len(present) < len(self.points))
            or self.if_sequence not in (None, sequence)
        )

    def after(self, model: Model) -> Model:
        """Return the points after the write."""
        if self.kind == "deletion":
            removed = self.deleted(model)
            return {name: point for name, point in model.items() if name not in removed}
        if self.kind == "points":
            return model | self.points
        return model | {
            name: replace(model[name], payload=point.payload) for name, point in self.points.items()
        }


class History:
    """The writes that callers made, and what they and readers must see. Thread-safe.

    latest: the newest version that any caller has seen. A call that begins later sees no older one,
        whatever worker answers it.
    """

    def __init__(self, model: Model) -> None:
        self.latest = Version(1, 0)
        self.writes: dict[int, tuple[Write, WriteResult]] = {}
        self._refused: list[tuple[Write, int, int, Exception]] = []
        self._models = [model]
        self._lock = threading.Lock()

    def see(self, floor: Version, version: Version) -> None:
        """Check the version of an answer to a call that began when `floor` was the latest one."""
        assert version >= floor
        assert version.sequence >= floor.sequence
        with self._lock:
            self.latest = max(self.latest, version)

    def add(
        self, write: Write, floor: Version, result: WriteResult, *, is_repeated: bool = False
    ) -> None:
        """Add a write that was acknowledged, perhaps not when it was sent for the first time.

        The result of a repeated write has a generation at or after the one in which it was made.
        """
        if is_repeated:
            assert result.sequence > floor.sequence
            result = replace(result, generation=_UNKNOWN)
        else:
            self.see(floor, Version(result.generation, result.sequence))
        with self._lock:
            # Two writes never have the same number.
            assert self.writes.setdefault(result.sequence, (write, result))[0] is write

    def refuse(self, write: Write, floor: Version, writers: int, error: Exception) -> None:
        """Add a write whose condition did not hold, while so many callers wrote."""
        with self._lock:
            self._refused.append((write, floor.sequence, self.latest.sequence + writers, error))

    def at(self, sequence: int) -> Model:
        """Return the points after the write of this number."""
        return self._models[sequence]

    def check_writes(self) -> None:
        """Check the result of each write; all writes must have ended."""
        absent = set(range(1, max(self.writes) + 1)) - self.writes.keys()
        assert not absent, f"nobody made the writes {sorted(absent)}"
        generation = 1
        for sequence in range(1, len(self.writes) + 1):
            write, result = self.writes[sequence]
            before = self._models[-1]
            assert not write.is_refused(before, sequence - 1)
            rows = len(write.deleted(before)) if write.kind == "deletion" else len(write.points)
            assert result.rows == rows
            if result.generation != _UNKNOWN:
                assert result.generation >= generation
                generation = result.generation
            self._models.append(write.after(before))
        for write, first, last, error in self._refused:
            numbers = range(first, min(last, len(self.writes)) + 1)
            if not any(write.is_refused(self.at(number), number) for number in numbers):
                reason = f"{write} was refused between the writes {first} and {last}"
                raise AssertionError(reason) from error

    def check_version(self, version: Version) -> None:
        """Check that the points of a version were ever in its generation."""
        assert 0 <= version.sequence <= len(self.writes)
        if version.sequence:
            # The write may be older than the generation, which a vacuum has made since.
            assert self.writes[version.sequence][1].generation <= version.generation
        if version.sequence < len(self.writes):
            generation = self.writes[version.sequence + 1][1].generation
            assert generation == _UNKNOWN or generation >= version.generation
