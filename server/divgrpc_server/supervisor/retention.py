"""Keeps replaced files for read-only servers on other machines, for as long as `--retain` says."""

import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from divgrpc.storage.removal import RETIRED

# How often the supervisor looks for files whose time is over.
LOOK_SECONDS: Final = 5.0


def begin(root: Path, seconds: float) -> None:
    """Let files be kept from now on or, if `seconds` is 0, no longer; raises OSError."""
    if seconds:
        (root / RETIRED).mkdir(exist_ok=True)
    else:
        shutil.rmtree(root / RETIRED, ignore_errors=True)


def remove_retired(root: Path, seconds: float) -> None:
    """Remove what was replaced more than `seconds` ago."""
    latest = time.time_ns() - int(seconds * 1e9)
    for entry in (root / RETIRED).iterdir():
        # Somebody else's file, or one that a network file system still has open.
        with suppress(ValueError, OSError):
            if int(entry.name.partition("-")[0]) < latest:
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink(missing_ok=True)
