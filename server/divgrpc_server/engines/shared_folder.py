"""Tells whether other machines have the data folder of this one, and honour its locks.

This machine makes a file, the marker, and locks it. Each other machine looks for it.
"""

import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from divgrpc.platforms import lock_exclusively
from divgrpc.storage.arrays import sync_folder

_PREFIX: Final = ".nodes-"
_LOOK_SECONDS: Final = 0.1


@contextlib.contextmanager
def marker(root: Path) -> Iterator[Path]:
    """Make a marker in the folder `root`, and remove it at the end; raises `OSError`."""
    for old in root.glob(f"{_PREFIX}*"):
        # A process that was killed has left it.
        old.unlink(missing_ok=True)
    with tempfile.NamedTemporaryFile(prefix=_PREFIX, dir=root) as file:
        lock_exclusively(file.fileno())
        sync_folder(root)
        yield Path(file.name)


def fault_of(path: Path, seconds: float) -> str:
    """Return what is wrong with a marker of another machine, in words; "" if nothing is.

    seconds: how long to wait for the marker, because a network file system shows new files late.
    """
    end_time = time.monotonic() + seconds
    while True:
        try:
            with path.open("rb") as file:
                return _fault_of_lock(file.fileno())
        except FileNotFoundError:
            if time.monotonic() > end_time:
                return "has another data folder at this path, or none"
        except OSError as error:
            return f"cannot read the data folder: {error.strerror}"
        time.sleep(_LOOK_SECONDS)


def _fault_of_lock(descriptor: int) -> str:
    try:
        is_free = lock_exclusively(descriptor)
    except OSError:
        # A folder that is mounted read-only has no locks, and nobody writes to it there.
        return ""
    return "does not see the file locks of other machines" if is_free else ""
