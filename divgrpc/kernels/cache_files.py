"""Files of compiled kernels: how they are named, written and read, and whether all of them exist.

numba's own cache does not fit. It notices an edit in the file of a function but not in the files of
the functions it calls, it names files after the path of the sources, and its index is lost where
two processes write it at once. Here the folder's name is a hash of all that decides what a kernel
compiles to: the sources of all kernels, the versions of the compiler, and the processor. A file's
name is its function and a hash of the argument types. No name and no file depends on where the
sources are or when they were written, so a copy of the folder serves another environment.

A file begins with its length and checksum and is renamed into place. Damaged files therefore read
as absent, and two processes that write one file write the same kernel. The file `warm` lists the
files that a process asks for which runs every kernel. Those that other kernels alone call are not
among them: they were compiled into their callers.
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
_DECORATED: Final = re.compile(r"^@(?:kernel|allocating)\ndef (\w+)", re.MULTILINE)


def processor() -> str:
    """Return the processor that kernels are compiled for, as LLVM names it."""
    return str(cpu_target.target_context.codegen().magic_tuple()[1])


@functools.cache
def cache_folder() -> Path:
    """Return the folder of compiled kernels for these sources, versions and processor.

    It is in the folder that DIVGRPC_KERNEL_CACHE names, otherwise in the user's cache folder.
    """
    key = hashlib.sha256()
    for source in _sources():
        key.update(source.name.encode() + source.read_bytes())
    versions = (platform.python_version(), numba.__version__, llvmlite.__version__, np.__version__)
    # NUMBA_CPU_NAME and NUMBA_CPU_FEATURES take the place of what this machine has.
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
    """Return the names of all kernels, each with its module's: those that get files of their own.

    Parts get none, as they are compiled into the kernels that call them.
    """
    return frozenset(
        f"{source.stem}.{name}"
        for source in _sources()
        for name in _DECORATED.findall(source.read_text(encoding="utf-8"))
    )


def file_name(kernel: str, types: str) -> str:
    """Return the name of the file of a kernel, "module.function", for its argument types."""
    return f"{kernel}-{hashlib.sha256(types.encode()).hexdigest()[:16]}{_SUFFIX}"


def read(name: str) -> bytes | None:
    """Return what a file holds; None where it is missing, incomplete or damaged."""
    try:
        content = (cache_folder() / name).read_bytes()
    except OSError:
        return None
    payload = content[_HEAD_BYTES:]
    return payload if content[:_HEAD_BYTES] == _head(payload) else None


def write(name: str, payload: bytes) -> None:
    """Write a file that nobody ever sees half written; raises OSError where that is impossible."""
    _write(name, _head(payload) + payload)


def _head(payload: bytes) -> bytes:
    return _MAGIC + len(payload).to_bytes(8, "big") + zlib.crc32(payload).to_bytes(4, "big")


def _write(name: str, content: bytes) -> None:
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f".{uuid.uuid4().hex}"
    try:
        draft.write_bytes(content)
        draft.replace(folder / name)
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def check_writable() -> None:
    """Raise OSError where the folder takes no files."""
    _write(name := f".{uuid.uuid4().hex}", b"")
    (cache_folder() / name).unlink(missing_ok=True)


def count_ready() -> int:
    """Return how many kernels have a file, whatever its content."""
    kernels = set()
    with contextlib.suppress(OSError):
        for name in os.listdir(cache_folder()):
            kernel, _, rest = name.rpartition("-")
            if rest.endswith(_SUFFIX):
                kernels.add(kernel)
    return len(kernels & kernel_names())


def is_warm() -> bool:
    """Tell whether every kernel is compiled and kept: reads every file that the stamp promises."""
    stamp = read(_STAMP)
    names = [] if stamp is None else stamp.decode().split()
    return bool(names) and all(read(name) is not None for name in names)


def mark_warm(names: Iterable[str]) -> bool:
    """Write the stamp, which promises the files of these names; tells whether it stands.

    They must be all that a process asks for that runs every kernel. It does not stand where one of
    them cannot be read.
    """
    promised = sorted(names)
    if not promised or any(read(name) is None for name in promised):
        return False
    try:
        write(_STAMP, "".join(f"{name}\n" for name in promised).encode())
    except OSError:
        return False
    return True
