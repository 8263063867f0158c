"""The temporary folder for indexes when no data directory is configured.

The folder is created in a memory file system if that has enough space. Otherwise it is created in
the system's temporary folder. It is removed when the server ends. The server locks the folder while
it runs. A killed server leaves an unlocked folder behind, which the next server removes.
"""

import contextlib
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from divgrpc.errors import StorageInUseError
from divgrpc.storage.generations import lock_root

_NAME: Final = re.compile(r"divgrpc-[0-9a-f]{12}")
# A folder that contains a file of this name is temporary, so other servers may remove it when it is
# not locked.
_MARK: Final = ".embedded"
_MEMORY: Final = Path("/dev/shm")  # noqa: S108  # the folder below it has mode 0700
# Minimum free space, in bytes, to use the memory file system. In a container it often has only 64
# MiB, which is too small for an index.
_ROOM_BYTES_MIN: Final = 2**30


@contextlib.contextmanager
def memory_root() -> Iterator[Path]:
    """Yield a new folder, in memory if possible, and remove it afterwards."""
    below = _below()
    for base in {below, Path(tempfile.gettempdir())}:
        _sweep(base)
    with _claim(below) as root:
        try:
            yield root
        finally:
            shutil.rmtree(root, ignore_errors=True)


def _below() -> Path:
    with contextlib.suppress(OSError):
        room = os.statvfs(_MEMORY)
        if room.f_bavail * room.f_frsize >= _ROOM_BYTES_MIN and os.access(_MEMORY, os.W_OK):
            return _MEMORY
    return Path(tempfile.gettempdir())


@contextlib.contextmanager
def _claim(below: Path) -> Iterator[Path]:
    """Create a folder and lock it; retry if another server removes it before it is locked."""
    while True:
        root = below / f"divgrpc-{secrets.token_hex(6)}"
        root.mkdir(mode=0o700)
        (root / _MARK).touch()
        with contextlib.ExitStack() as lock:
            try:
                lock.enter_context(lock_root(root))
            except (StorageInUseError, FileNotFoundError):
                continue
            if not (root / _MARK).exists():
                continue
            yield root
            return


def _sweep(below: Path) -> None:
    """Remove the folders that killed servers have left behind."""
    for folder in below.glob("divgrpc-*"):
        if not _NAME.fullmatch(folder.name) or not (folder / _MARK).exists():
            continue  # for instance the data directory of another server
        with contextlib.suppress(OSError, StorageInUseError):
            if folder.lstat().st_uid == os.getuid():
                with lock_root(folder):
                    shutil.rmtree(folder)
