"""Decorators that compile kernels, or load the compiled code that an earlier process kept.

`divgrpc.kernels.cache_files` says where compiled kernels are kept. If that folder cannot be
written, each process compiles again; nothing else changes.
"""

import functools
import hashlib
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numba
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps
from numba.core.types.misc import unliteral

from divgrpc.kernels import cache_files

# Without fastmath, which would let the compiler choose the order of a sum.
_OPTIONS: Final = {
    "nogil": True,
    "boundscheck": False,
    "error_model": "numpy",
    # No code calls kernels as C functions.
    "no_cfunc_wrapper": True,
}

# Names of functions that make arrays.
_ARRAY_MAKERS: Final = {
    *("array", "astype", "copy", "empty", "empty_like", "full", "full_like"),
    *("ones", "ones_like", "sort", "zeros", "zeros_like"),
}


# Why no file could be written, by the kernels that this process compiled.
write_errors: dict[str, str] = {}
# Files of the kernels that Python has called in this process. A kernel called by a kernel is
# compiled into its caller, so its own file is not needed once the caller's exists.
entry_files: set[str] = set()
# Files of the kernels that are being compiled, callers before callees.
_compiling: list[str] = []


class _KernelFiles(NullCache):  # type: ignore[misc]  # numba has no types
    """The files of one function, one for each list of argument types."""

    def __init__(self, name: str, source: str) -> None:
        self._name = name
        self._source = source

    @property
    def cache_path(self) -> str:
        return str(cache_files.cache_folder())

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the compiled code for a signature; None if the file is missing or damaged."""
        target_context.refresh()
        file = self._file(sig, target_context.codegen())
        if not _compiling:
            entry_files.add(file)
        payload = cache_files.read(file)
        if payload is not None:
            try:
                # Whoever may write to the folder may run code as its owner, as with numba's cache.
                return CompileResult._rebuild(  # noqa: SLF001
                    target_context,
                    *pickle.loads(payload),  # noqa: S301
                )
            except Exception:  # noqa: BLE001, S110  # any error: the kernel is compiled again
                pass
        _compiling.append(file)
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep the compiled code for a signature."""
        file = self._file(sig, data.codegen)
        # Entries after it failed to compile.
        if file in _compiling:
            del _compiling[_compiling.index(file) :]
        if data.library.has_dynamic_globals:
            write_errors[self._name] = "its code holds addresses of this process"
            return
        try:
            cache_files.write(file, dumps(data._reduce()))  # noqa: SLF001
        except OSError as error:
            write_errors[self._name] = str(error)

    def _file(self, sig: Any, codegen: Any) -> str:
        return cache_files.file_name(self._name, f"{sig} {codegen.magic_tuple()} {self._source}")


def _files_of(function: Callable[..., Any]) -> NullCache:
    """Return the files of a function of a module; a function made by another function has none.

    Its code depends on variables of the other function, which no file name could contain.
    """
    source = _hash_of(function.__code__.co_filename)
    if function.__closure__ or "<locals>" in function.__qualname__ or source is None:
        return NullCache()
    module = function.__module__.rpartition(".")[2]
    return _KernelFiles(f"{module}.{function.__qualname__}", source)


@functools.cache
def _hash_of(source: str) -> str | None:
    """Return a hash of a source file; it distinguishes kernels outside this folder."""
    try:
        return hashlib.sha256(Path(source).read_bytes()).hexdigest()
    except OSError:
        return None


def kernel(function: Callable[..., Any]) -> Any:  # numba's dispatchers have no type
    """Compile `function` at its first call, or load what an earlier process compiled.

    It makes no arrays: its code counts no references, and its caller keeps all arrays alive. If its
    name begins with "_", only kernels may call it: it has no entry from Python, and such a call
    ends the process. Raises TypeError if it calls a function that makes arrays.
    """
    _refuse_array_makers(function)
    return _compiled(function, _nrt=False)


def allocating(function: Callable[..., Any]) -> Any:
    """Compile or load a function that makes arrays; otherwise as `kernel`."""
    return _compiled(function, _nrt=True)


def part(function: Callable[..., Any]) -> Any:
    """Put the body of `function` into the kernels that call it; otherwise as `kernel`.

    For functions with few callers: a compiled callee is optimised again in each of its callers,
    level by level, and each level less makes a cold start a second shorter.
    """
    _refuse_array_makers(function)
    return _compiled(function, inline="always")


def _refuse_array_makers(function: Callable[..., Any]) -> None:
    # numba itself refuses some of these, not all; memory of the arrays would never be freed.
    makers = _ARRAY_MAKERS.intersection(function.__code__.co_names)
    if makers:
        raise TypeError(f"{function.__name__} makes arrays: {', '.join(sorted(makers))}")


def _compiled(function: Callable[..., Any], **options: Any) -> Any:  # numba's options have no type
    inner = function.__name__.startswith("_") and "inline" not in options
    options |= _OPTIONS | {"no_cpython_wrapper": inner}
    dispatcher = numba.njit(**options)(function)
    dispatcher._cache = _files_of(function)  # noqa: SLF001  # numba's `cache=True` does the same
    resolve = dispatcher.get_call_template

    def resolve_plain(arguments: Any, keywords: Any) -> Any:
        # Without this numba compiles a call with the constant 0 and one with an integer separately.
        return resolve(tuple(map(unliteral, arguments)), keywords)

    dispatcher.get_call_template = resolve_plain
    return dispatcher
