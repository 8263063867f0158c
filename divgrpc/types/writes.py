"""What writes return, and what the description of an index says about them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WritesInfo:
    """The writes to a generation of an index.

    sequence: number of the last write.
    rows_unmerged: number of points that were written since the last merge and not deleted or
        replaced.
    rows_dead: number of deleted or replaced points whose vectors are still stored.
    log_bytes: bytes of the log, including space that is reserved for later writes.
    """

    sequence: int
    rows_unmerged: int
    rows_dead: int
    log_bytes: int


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The result of a write.

    generation: generation of the index that was written to.
    sequence: number of the write, 1 for the first write to a generation. A query whose result has
        at least this sequence number shows the write.
    rows: number of points that were written or deleted.
    """

    generation: int
    sequence: int
    rows: int
