"""The history of one index: what callers asked for, what they were answered, and what must hold.

A write is made at a number of a lineage: Build begins a lineage, and a vacuum and a retraining
continue the one of their generation. When a writer is about to append a write, it is the proposal
for its number. So the points of each (generation, sequence) are certain, and every answer is
compared with them at once.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from divgrpc.errors import ConditionFailedError, StorageFullError
from divgrpc.types import WriteMode, WriteResult
from support.data.stamped_points import Stamps, Write, after

# The message of an error after which the fate of a write is unknown.
_UNKNOWN: Final = "could not be written"


class ViolationError(BaseException):
    """Something that must hold does not; no code under test catches it."""


class Version(NamedTuple):
    """The generation and the sequence number of an answer."""

    generation: int
    sequence: int


@dataclass(eq=False)
class Op:
    """A write that a caller makes, perhaps several times under one name.

    is_repeated: whether it is sent again after it was made.
    proposed: the lineage in which this attempt has a number; None if it has none yet.
    uncertain: lineages in which the fate of an attempt is unknown.
    """

    write: Write
    mode: WriteMode = "upsert"
    if_latest: bool = False
    is_repeated: bool = False
    proposed: "Lineage | None" = None
    uncertain: "set[Lineage]" = field(default_factory=set)

    @property
    def name(self) -> str:
        """The name that the write has."""
        return f"write {self.write.stamp}"

    def is_refused(self, stamps: Stamps) -> bool:
        """Tell whether the mode of the write does not suit the points."""
        present = len(stamps.keys() & set(self.write.ids))
        return (self.mode == "insert_only" and present > 0) or (
            self.mode == "update_only" and present < len(self.write.ids)
        )

    def rows(self, stamps: Stamps) -> int:
        """Return the number of points that it writes or removes."""
        if self.write.is_deletion:
            return len(stamps.keys() & set(self.write.ids))
        return len(self.write.ids)


@dataclass(eq=False)
class Lineage:
    """The points of a build, and the writes that follow.

    base: the points of sequence number 0.
    ops: the last proposal for each number.
    certain: the greatest number that a caller has seen.
    failed: names of the writes that have failed for certain.
    digests: the bytes of answers, by what they may depend on.
    """

    base: Stamps
    ops: dict[int, Op] = field(default_factory=dict)
    certain: int = 0
    failed: set[str] = field(default_factory=set)
    digests: dict[tuple[object, ...], bytes] = field(default_factory=dict)

    def at(self, sequence: int) -> Stamps:
        """Return the points at a number."""
        stamps = self.base
        for number in range(1, sequence + 1):
            stamps = after(stamps, self.ops[number].write)
        return stamps


class History:
    """All lineages of an index, and the versions that callers have seen.

    lineages, models: by the number of a generation, its lineage, and the generation whose model it
        has.
    latest: the newest version that a caller has seen.
    durable: a version that no loss of power may lose.
    lines: what happened, to be printed.
    """

    def __init__(self, stamps: Stamps, fail: Callable[[BaseException], Any]) -> None:
        self.lineages, self.models = {1: Lineage(stamps)}, {1: 1}
        self.latest = self.durable = Version(1, 0)
        self.lines: list[str] = []
        # Whether the index was deleted; None if it may have been.
        self.is_deleted: bool | None = False
        self._fail = fail
        self.clock: Callable[[], float] = float

    def note(self, text: str) -> None:
        """Add a line."""
        self.lines.append(f"{self.clock():9.6f} {text}")

    def check(self, holds: bool, text: str) -> None:
        """Fail the run unless something holds."""
        if not holds:
            self.note(f"VIOLATION {text}")
            self._fail(ViolationError(text))

    # Writes.

    def begin(self, op: Op) -> Version:
        """Note that a caller sends a write; return the latest version."""
        op.proposed = None
        return self.latest

    def propose(self, generation: int, sequence: int, op: Op) -> None:
        """Note the write that a writer is about to give a number."""
        lineage = self.lineages[generation]
        before = lineage.ops.get(sequence)
        text = f"{op.name} takes number {sequence}, but {lineage.certain} was seen"
        self.check(before is op or sequence > lineage.certain, text)
        numbers = [n for n, other in lineage.ops.items() if other is op and n < sequence]
        self.check(not numbers, f"{op.name} is made again at {sequence}, it is {numbers}")
        lineage.ops = {n: other for n, other in lineage.ops.items() if n < sequence}
        lineage.ops[sequence] = op
        lineage.failed.discard(op.name)
        op.proposed = lineage

    def acknowledge(self, op: Op, result: WriteResult, floor: Version) -> None:
        """Check the result of a write that was sent when `floor` was the latest version."""
        generation, sequence = result.generation, result.sequence
        self.note(f"{op.name} is {generation}.{sequence}")
        lineage = self.lineages[generation]
        self.check(lineage.ops.get(sequence) is op, f"{op.name} is not {generation}.{sequence}")
        before = lineage.at(sequence - 1)
        self.check(not op.is_refused(before), f"{op.name} should have been refused")
        self.check(result.rows == op.rows(before), f"{op.name} has {result.rows} rows")
        if op.proposed is lineage and self.lineages[floor.generation] is lineage:
            # It was not made by an earlier attempt.
            self.check(sequence > floor.sequence, f"{op.name} precedes {floor}")
        self.check(generation >= floor.generation, f"{op.name} is in an older build than {floor}")
        self.see(Version(generation, sequence))

    def abandon(self, op: Op) -> None:
        """Note that nobody knows whether a write was made."""
        if op.proposed is not None:
            op.uncertain.add(op.proposed)

    def fail(self, op: Op, error: Exception) -> None:
        """Note an error of a write; its fate is unknown after some errors, or it has no effect."""
        self.note(f"{op.name} fails: {type(error).__name__}: {error}")
        if isinstance(error, StorageFullError) and _UNKNOWN in str(error):
            self.abandon(op)
        elif op.proposed is not None and op.proposed not in op.uncertain:
            op.proposed.failed.add(op.name)

    def refuse(self, op: Op, error: ConditionFailedError, floor: Version) -> None:
        """Check that the condition of a write did not hold at some moment of its call."""
        self.note(f"{op.name} is refused")
        lineage = self.lineages[floor.generation]
        if (
            op.if_latest
            or op.proposed is not lineage
            or self.lineages[self.latest.generation] is not lineage
        ):
            return
        # Its own proposal is the last one.
        lineage.ops = {n: other for n, other in lineage.ops.items() if other is not op}
        numbers = range(floor.sequence, max(lineage.ops, default=0) + 1)
        holds = any(op.is_refused(lineage.at(number)) for number in numbers)
        self.check(holds, f"{op.name} is refused for no reason: {error}")

    def see(self, version: Version) -> None:
        """Note a version that a caller has seen."""
        self.latest = max(self.latest, version)
        lineage = self.lineages[version.generation]
        lineage.certain = max(lineage.certain, version.sequence)

    # Answers.

    def check_answer(self, version: Version, stamps: Stamps, floor: Version, reader: str) -> None:
        """Check the points that an answer shows, to a caller who had seen `floor` before."""
        generation, sequence = version
        self.note(f"{reader} sees {generation}.{sequence}")
        self.check(generation in self.lineages, f"{reader} sees an unknown build {generation}")
        lineage = self.lineages[generation]
        self.check(version >= floor, f"{reader} sees {version} after {floor}")
        if self.lineages[floor.generation] is lineage:
            self.check(sequence >= floor.sequence, f"{reader} sees {version} after {floor}")
        known = sequence == 0 or sequence in lineage.ops
        self.check(known, f"{reader} sees number {sequence}, which no write has")
        names = {lineage.ops[number].name for number in range(1, sequence + 1)}
        failed = sorted(names & lineage.failed)
        self.check(not failed, f"{reader} sees {failed}, which have failed")
        expected = lineage.at(sequence)
        difference = {
            key: (stamps.get(key), expected.get(key))
            for key in stamps.keys() | expected.keys()
            if stamps.get(key) != expected.get(key)
        }
        text = f"{reader} sees other points at {generation}.{sequence}: {difference}"
        self.check(not difference, text)
        lineage.certain = max(lineage.certain, sequence)

    def check_digest(self, generation: int, key: tuple[object, ...], digest: bytes) -> None:
        """Check that equal questions have equal answers, byte for byte."""
        known = self.lineages[generation].digests.setdefault(key, digest)
        self.check(known == digest, f"an answer of {generation}.{key} has other bytes")

    # Power.

    def truncate(self, version: Version) -> None:
        """Forget all that a loss of power has removed."""
        generation, sequence = version
        self.lineages = {n: line for n, line in self.lineages.items() if n <= generation}
        lineage = self.lineages[generation]
        lineage.ops = {n: op for n, op in lineage.ops.items() if n <= sequence}
        lineage.certain, lineage.digests = sequence, {}
        self.latest = self.durable = version
