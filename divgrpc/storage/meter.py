"""Progress of reading and writing files, in MiB."""

from collections.abc import Callable
from typing import Final, TypeAlias

from divgrpc.types import Progress

OnProgress: TypeAlias = Callable[[Progress], object]
_MIB: Final = 1 << 20


class Meter:
    """Reports how many MiB of files were read or written."""

    def __init__(self, on_progress: OnProgress | None, stage: str, total_bytes: int) -> None:
        self._on_progress, self._stage = on_progress, stage
        self._total, self._bytes = total_bytes, 0

    def add(self, size: int) -> None:
        """Count bytes that were read or written."""
        self._bytes += size
        if self._on_progress is not None:
            total = max(self._total, self._bytes)
            self._on_progress(Progress(self._stage, self._bytes // _MIB, total // _MIB))
