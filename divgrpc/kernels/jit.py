"""How kernels are compiled, and how numba finds what an earlier process compiled.

`divgrpc.kernels.cache_files` says where compiled kernels are kept. A folder that cannot be written
costs compile time at each start, nothing else.
"""

import functools
import hashlib
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numba
from numba.core.caching import NullCache, _Cache
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps
from numba.core.types.misc import unliteral

from divgrpc.kernels import cache_files

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


# Kernels that this process compiled and could not keep, with the reason of each.
unkept: dict[str, str] = {}
# Files that Python has asked for in this process; what a kernel that is being compiled asks for is
# compiled into it, and nobody needs it where that kernel is kept.
needed: set[str] = set()
_under_way: list[str] = []


class _KernelFiles(_Cache):  # type: ignore[misc]  # numba has no types
    """The files of one function, one for each list of argument types."""

    def __init__(self, name: str, source: str) -> None:
        self._name = name
        self._source = source

    @property
    def cache_path(self) -> str:
        return str(cache_files.cache_folder())

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return what was compiled for a signature, None where that is not kept or is damaged."""
        target_context.refresh()
        file = self._file(sig, target_context.codegen())
        if not _under_way:
            needed.add(file)
        payload = cache_files.read(file)
        if payload is not None:
            try:
                # As numba's own cache does. Who may write to the folder may run code as its owner.
                return CompileResult._rebuild(  # noqa: SLF001
                    target_context,
                    *pickle.loads(payload),  # noqa: S301
                )
            except Exception:  # noqa: BLE001, S110  # it raises anything; the kernel is compiled anew
                pass
        _under_way.append(file)
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep what was compiled for a signature."""
        file = self._file(sig, data.codegen)
        # With it goes whatever failed to compile meanwhile.
        if file in _under_way:
            del _under_way[_under_way.index(file) :]
        if data.library.has_dynamic_globals:
            unkept[self._name] = "its code holds addresses of this process"
            return
        try:
            cache_files.write(file, dumps(data._reduce()))  # noqa: SLF001
        except OSError as error:
            unkept[self._name] = str(error)

    def _file(self, sig: Any, codegen: Any) -> str:
        return cache_files.file_name(self._name, f"{sig} {codegen.magic_tuple()} {self._source}")

    def enable(self) -> None:
        """Do nothing: there is no other state."""

    def disable(self) -> None:
        """Do nothing."""

    def flush(self) -> None:
        """Do nothing."""


def _files_of(function: Callable[..., Any]) -> _Cache:
    """Return the files of a function of a module; one made by another function has none.

    What such a function does depends on variables of the other, which no name of a file could hold.
    """
    source = _hash_of(function.__code__.co_filename)
    if function.__closure__ or "<locals>" in function.__qualname__ or source is None:
        return NullCache()
    module = function.__module__.rpartition(".")[2]
    return _KernelFiles(f"{module}.{function.__qualname__}", source)


@functools.cache
def _hash_of(source: str) -> str | None:
    """Return a hash of a source file, which kernels outside of this folder are told apart by."""
    try:
        return hashlib.sha256(Path(source).read_bytes()).hexdigest()
    except OSError:
        return None


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
    inner = function.__name__.startswith("_") and "inline" not in options
    options |= _OPTIONS | {"no_cpython_wrapper": inner}
    dispatcher = numba.njit(**options)(function)
    dispatcher._cache = _files_of(function)  # noqa: SLF001  # numba's `cache=True` does the same
    resolve = dispatcher.get_call_template

    def resolve_plain(arguments: Any, keywords: Any) -> Any:
        # Left alone numba compiles a call with the constant 0 once more than one with any integer.
        return resolve(tuple(map(unliteral, arguments)), keywords)

    dispatcher.get_call_template = resolve_plain
    return dispatcher
