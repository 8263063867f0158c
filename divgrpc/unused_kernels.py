"""Folders of compiled kernels that earlier releases left: removed once no process uses them.

A process that starts with the kernels of a folder sets the time of the folder. The time therefore
says when the folder was last used, whatever the file system notes of reads.
"""

import contextlib
import os
import re
import shutil
import time
from typing import Final

from divgrpc.kernels import cache_files

_UNUSED_SECONDS: Final = 30 * 86_400
_NAME: Final = re.compile(r"kernels-[0-9a-f]{16}")


def mark_used() -> None:
    """Note that this process uses the current folder; one that can only be read keeps its time."""
    with contextlib.suppress(OSError):
        os.utime(cache_files.cache_folder())


def remove_unused() -> None:
    """Remove the folders beside the current one that no process has started with for 30 days."""
    current = cache_files.cache_folder()
    oldest = time.time() - _UNUSED_SECONDS
    with contextlib.suppress(OSError):
        for folder in current.parent.iterdir():
            if folder.name == current.name or not _NAME.fullmatch(folder.name):
                continue
            # Another process may remove it too, and a folder of another user stays.
            with contextlib.suppress(OSError):
                if folder.lstat().st_mtime < oldest:
                    shutil.rmtree(folder)
