"""How kernels are compiled, and where the result is kept.

numba's cache notices an edit in the file of a function but not in the files of the functions it
calls, so compiled kernels live in a folder of their own whose name is a hash of all kernel sources,
the versions and the processor. A file `warm` in it says that every kernel is there. A folder that
cannot be written costs compile time at each start, nothing else.
"""

import contextlib
import functools
import hashlib
import os
import platform
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import llvmlite
import numba
import numpy as np
from llvmlite import binding
from numba.core import config
from numba.core.types.misc import unliteral

# No fastmath: it would let the compiler choose the order of a sum.
_OPTIONS: Final = {
    "nogil": True,
    "boundscheck": False,
    "error_model": "numpy",
    # Nobody passes kernels about as C functions.
    "no_cfunc_wrapper": True,
}

# Names by which a function would make an array.
_MAKERS: Final = {
    *("array", "astype", "copy", "empty", "empty_like", "full", "full_like"),
    *("ones", "ones_like", "sort", "zeros", "zeros_like"),
}


@functools.cache
def cache_folder() -> Path:
    """Return the folder of compiled kernels for these sources, versions and processor."""
    key = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        key.update(source.name.encode() + source.read_bytes())
    versions = (platform.python_version(), numba.__version__, llvmlite.__version__, np.__version__)
    processor = (binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten())
    key.update(repr((versions, processor, os.environ.get("NUMBA_CPU_NAME"))).encode())
    base = os.environ.get("DIVGRPC_KERNEL_CACHE")
    if not base:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        base = str(Path(home) / "divgrpc")
    return Path(base) / f"kernels-{key.hexdigest()[:16]}"


@functools.cache
def _can_keep() -> bool:
    """Tell whether the folder of compiled kernels can be written."""
    try:
        cache_folder().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=cache_folder()):
            return True
    except OSError:
        return False


def kernel(function: Callable[..., Any]) -> Any:  # numba's dispatchers have no type
    """Compile `function` at its first call, or load what an earlier process compiled.

    It makes no arrays: its code has no counts of who holds one, as the caller holds them all. Where
    its name begins with "_", kernels alone may call it: Python has no way in, and a call from there
    ends the process. Raises TypeError where it makes arrays by name.
    """
    _make_none(function)
    return _compiled(function, _nrt=False)


def allocating(function: Callable[..., Any]) -> Any:
    """Do what `kernel` does for what makes arrays."""
    return _compiled(function, _nrt=True)


def part(function: Callable[..., Any]) -> Any:
    """Do what `kernel` does, and put the body of `function` into the kernels that call it.

    For what has few callers: a compiled call is optimised again in each of its callers, level by
    level, and with every level left out a cold start is a second shorter. It makes no arrays.
    """
    _make_none(function)
    return _compiled(function, inline="always")


def _make_none(function: Callable[..., Any]) -> None:
    # numba finds some of these itself, not all: what is made would never be let go of.
    made = _MAKERS.intersection(function.__code__.co_names)
    if made:
        raise TypeError(f"{function.__name__} makes arrays: {', '.join(sorted(made))}")


def _compiled(function: Callable[..., Any], **options: Any) -> Any:  # numba's options have no type
    kept = config.CACHE_DIR
    # The setting is global and belongs to whoever uses numba beside us: ours for a moment only.
    config.CACHE_DIR = str(cache_folder())
    try:
        # Where it may not write, numba would look for other places, which no hash of ours names.
        inner = function.__name__.startswith("_") and "inline" not in options
        options |= _OPTIONS | {"no_cpython_wrapper": inner, "cache": _can_keep()}
        dispatcher = numba.njit(**options)(function)
    finally:
        config.CACHE_DIR = kept
    resolve = dispatcher.get_call_template

    def resolve_plain(arguments: Any, keywords: Any) -> Any:
        # Left alone numba compiles a call with the constant 0 once more than one with any integer.
        return resolve(tuple(map(unliteral, arguments)), keywords)

    dispatcher.get_call_template = resolve_plain
    return dispatcher


def is_warm() -> bool:
    """Tell whether every kernel is compiled and kept."""
    return (cache_folder() / "warm").exists()


def mark_warm() -> None:
    """Note that every kernel is compiled and kept."""
    with contextlib.suppress(OSError):
        (cache_folder() / "warm").touch()


def forget() -> None:
    """Remove what is kept, such as files that cannot be read any more."""
    shutil.rmtree(cache_folder(), ignore_errors=True)
