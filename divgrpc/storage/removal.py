"""Removes files of indexes, or keeps them for a while for readers on other machines.

On one machine, a file that is mapped stays valid after its removal. A network file system such as
NFS forgets it, and a reader on another machine that has it mapped ends when it reads the file. A
file that is renamed stays valid there. So a server may let what was replaced be moved to a folder,
and remove it later.
"""

import contextlib
import os
import secrets
import shutil
import time
from pathlib import Path
from typing import Final

# Folder in a data folder for what was replaced. The name of an entry begins with the time at which
# it was moved there, in nanoseconds.
RETIRED: Final = ".retired"


def remove(entry: Path, root: Path | None = None) -> None:
    """Remove a folder or a file, which may already be gone.

    root: the data folder. If it has the folder `RETIRED`, the entry is moved there.
    """
    if root is not None and (root / RETIRED).is_dir():
        with contextlib.suppress(OSError):
            os.rename(entry, root / RETIRED / f"{time.time_ns()}-{secrets.token_hex(8)}")
            return
    if entry.is_dir():
        shutil.rmtree(entry, ignore_errors=True)
    else:
        entry.unlink(missing_ok=True)
