"""Names, reads and writes the files of compiled kernels, and checks that all of them exist.

numba's own cache does not notice edits of the functions that a function calls. That cache names
files after the path of the sources, so a copy of the sources cannot use the files. It loses its
index of files if two processes write at the same time.

Here the name of the folder is a hash of everything that compiled code depends on: the sources of
all kernels, the versions of Python, numpy, numba and llvmlite, and the processor. The name of a
file consists of the name of its function and a hash of the argument types, the processor and the
source file. So a copy of the folder can be used in another environment.

A file starts with the length and checksum of its content, so a damaged file is treated as missing.
A file is written under another name and then renamed, so two processes can write the same kernel at
the same time.

The file `warm` is called the stamp. It lists the files that a process needs to run every kernel.
Kernels that only other kernels call are not listed, because they are compiled into their callers.
"""

import contextlib
import functools
import hashlib
import os
import platform
import re
import uuid
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import llvmlite
import numba
import numpy as np
from numba.core import config
from numba.core.registry import cpu_target

_SUFFIX: Final = ".kernel"
_STAMP: Final = "warm"
_MAGIC: Final = b"divgrpc kernel 1\n"
_HEAD_BYTES: Final = len(_MAGIC) + 12
_KERNEL_HEAD: Final = re.compile(r"^@(?:kernel|allocating)\ndef (\w+)", re.MULTILINE)


def processor() -> str:
    """Return LLVM's name of the processor that kernels are compiled for."""
    return str(cpu_target.target_context.codegen().magic_tuple()[1])


@functools.cache
def cache_folder() -> Path:
    """Return the folder of compiled kernels for these sources, versions and processor.

    Its parent folder is the value of DIVGRPC_KERNEL_CACHE or, if that is not set, `divgrpc` in the
    user's cache folder.
    """
    key = hashlib.sha256()
    for source in _sources():
        key.update(source.name.encode() + source.read_bytes())
    versions = (platform.python_version(), numba.__version__, llvmlite.__version__, np.__version__)
    # NUMBA_CPU_NAME and NUMBA_CPU_FEATURES override the processor of this machine.
    target = cpu_target.target_context.codegen().magic_tuple()
    key.update(repr((versions, target, bool(config.USING_SVML))).encode())
    base = os.environ.get("DIVGRPC_KERNEL_CACHE")
    if not base:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        base = str(Path(home) / "divgrpc")
    return Path(base).absolute() / f"kernels-{key.hexdigest()[:16]}"


def _sources() -> list[Path]:
    return sorted(Path(__file__).parent.glob("*.py"))


@functools.cache
def kernel_names() -> frozenset[str]:
    """Return the names "module.function" of all kernels but `part`s, which have no files."""
    return frozenset(
        f"{source.stem}.{name}"
        for source in _sources()
        for name in _KERNEL_HEAD.findall(source.read_text(encoding="utf-8"))
    )


def file_name(kernel: str, types: str) -> str:
    """Return the name of the file of kernel "module.function" for these argument types."""
    return f"{kernel}-{hashlib.sha256(types.encode()).hexdigest()[:16]}{_SUFFIX}"


def read(name: str) -> bytes | None:
    """Return the content of a file; None if it is missing, incomplete or damaged."""
    try:
        content = (cache_folder() / name).read_bytes()
    except OSError:
        return None
    payload = content[_HEAD_BYTES:]
    return payload if content[:_HEAD_BYTES] == _head(payload) else None


def write(name: str, payload: bytes) -> None:
    """Write a file atomically; raises OSError if that is impossible."""
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f".{uuid.uuid4().hex}"
    try:
        draft.write_bytes(_head(payload) + payload)
        draft.replace(folder / name)
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def remove_drafts(oldest: float) -> None:
    """Remove drafts, which killed processes leave, if they were last changed before `oldest`.

    `oldest` is in seconds since 1970. A draft that cannot be removed stays.
    """
    for draft in cache_folder().glob(".*"):
        with contextlib.suppress(OSError):
            if draft.lstat().st_mtime < oldest:
                draft.unlink()


def _head(payload: bytes) -> bytes:
    return _MAGIC + len(payload).to_bytes(8, "big") + zlib.crc32(payload).to_bytes(4, "big")


def check_writable() -> None:
    """Raise OSError if the folder cannot be written."""
    write(name := f".{uuid.uuid4().hex}", b"")
    (cache_folder() / name).unlink(missing_ok=True)


def count_ready() -> int:
    """Return the number of kernels that have a file; damaged files count too."""
    kernels = set()
    with contextlib.suppress(OSError):
        for name in os.listdir(cache_folder()):
            kernel, _, rest = name.rpartition("-")
            if rest.endswith(_SUFFIX):
                kernels.add(kernel)
    return len(kernels & kernel_names())


def is_warm() -> bool:
    """Return whether the stamp can be read, and every file that it lists."""
    stamp = read(_STAMP)
    names = [] if stamp is None else stamp.decode().split()
    return bool(names) and all(read(name) is not None for name in names)


def mark_warm(names: Iterable[str]) -> bool:
    """Write the stamp with `names`, all files that a process needs; return whether it was written.

    If `names` is empty or one of the files cannot be read, the stamp is not written.
    """
    files = sorted(names)
    if not files or any(read(name) is None for name in files):
        return False
    try:
        write(_STAMP, "".join(f"{name}\n" for name in files).encode())
    except OSError:
        return False
    return True
