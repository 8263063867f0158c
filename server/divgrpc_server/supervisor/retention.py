"""Keeps replaced files for read-only servers on other machines, for as long as `--retain` says."""

import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from divgrpc.storage.removal import RETIRED

# How often the supervisor looks for files whose time is over.
LOOK_SECONDS: Final = 5.0
# The unit of `st_blocks`.
_BLOCK_BYTES: Final = 512


def begin(root: Path, seconds: float) -> None:
    """Let files be kept from now on or, if `seconds` is 0, no longer; raises OSError."""
    if seconds:
        (root / RETIRED).mkdir(exist_ok=True)
    else:
        shutil.rmtree(root / RETIRED, ignore_errors=True)


def remove_retired(root: Path, seconds: float) -> None:
    """Remove what was replaced more than `seconds` ago, and the oldest of what takes too much room.

    What stays takes at most as much room as is free, so that builds have room too.
    """
    latest = time.time_ns() - int(seconds * 1e9)
    kept_bytes = 0
    for retire_time, entry in sorted(_entries(root), reverse=True):
        kept_bytes += _size(entry)
        if retire_time < latest or kept_bytes > shutil.disk_usage(root).free:
            # A network file system may still have a file open.
            with suppress(OSError):
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink(missing_ok=True)


def _entries(root: Path) -> Iterator[tuple[int, Path]]:
    """Yield what was replaced, with the time in nanoseconds since 1970."""
    for entry in (root / RETIRED).iterdir():
        # Others are somebody else's files.
        with suppress(ValueError):
            yield int(entry.name.partition("-")[0]), entry


def _size(entry: Path) -> int:
    """Return the bytes of a file, or of all files in a folder."""
    total = 0
    for file in (entry, *entry.rglob("*")):
        with suppress(OSError):
            status = file.stat()
            total += status.st_blocks * _BLOCK_BYTES
    return total
