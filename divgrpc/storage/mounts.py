"""Tells a data folder from a mount point whose file system is not there."""

import errno
from pathlib import Path


def check_mounted(root: Path) -> Path:
    """Return the data folder `root`; raises `OSError` if it cannot be read, or has no entry.

    A data folder whose indexes were all deleted has the lock of its server.
    """
    if not any(root.iterdir()):
        raise FileNotFoundError(errno.ENOENT, "the folder is empty", str(root))
    return root
