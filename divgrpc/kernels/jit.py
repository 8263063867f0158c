"""Decorators that compile kernels, or load compiled kernels that an earlier process has stored.

`divgrpc.kernels.cache_files` defines where compiled kernels are stored. If that folder is not
writable, each process compiles the kernels again, but everything else works as usual.
"""

import functools
import hashlib
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numba
from llvmlite.binding import parse_assembly, parse_bitcode
from numba import types
from numba.core.caching import NullCache
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler, CompileResult, compile_result
from numba.core.serialize import dumps
from numba.core.types.misc import unliteral

from divgrpc.kernels import cache_files

# fastmath is not set, because it would let the compiler choose the order of a sum.
_OPTIONS: Final = {
    "nogil": True,
    "boundscheck": False,
    "error_model": "numpy",
    # No code calls kernels as C functions.
    "no_cfunc_wrapper": True,
}

# Names of functions that allocate arrays. `kernel` and `part` refuse functions that call them.
_ARRAY_MAKERS: Final = {
    *("array", "astype", "copy", "empty", "empty_like", "full", "full_like"),
    *("ones", "ones_like", "sort", "zeros", "zeros_like"),
}


# Maps kernels that this process compiled but could not store to the error message.
write_errors: dict[str, str] = {}
# Names of the files of kernels that Python code has called in this process. The files of other
# kernels are not needed, because these are compiled into their callers.
entry_files: set[str] = set()
# Names of the files of kernels that are being compiled now, callers before callees.
_compiling: list[str] = []


class _KernelFiles(NullCache):  # type: ignore[misc]  # numba has no types
    """The files of one function, one file for each signature."""

    def __init__(self, name: str, source: str) -> None:
        self._name = name
        self._source = source

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the compiled code for a signature; None if the file is missing or damaged."""
        _refresh(target_context)
        file = self._file(sig, target_context.codegen())
        if not _compiling:
            entry_files.add(file)
        payload = cache_files.read(file)
        if payload is not None:
            try:
                # As with numba's own cache, anyone who can write to the folder can run code here.
                return self._rebuild(target_context, payload)
            except Exception:  # noqa: BLE001, S110  # after any error the kernel is compiled again
                pass
        _compiling.append(file)
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Store the compiled code for a signature."""
        file = self._file(sig, data.codegen)
        # The files after this one belong to kernels that failed to compile.
        if file in _compiling:
            del _compiling[_compiling.index(file) :]
        if data.library.has_dynamic_globals:
            write_errors[self._name] = "its code holds addresses of this process"
            return
        try:
            cache_files.write(file, self._code_of(data))
        except OSError as error:
            write_errors[self._name] = str(error)

    def _code_of(self, compiled: CompileResult) -> bytes:
        (name, kind, (code, _)), *rest = compiled._reduce()  # noqa: SLF001
        # numba also stores the whole bitcode, for callers. Here callers have `_CalleeFiles`, and a
        # load would spend half of its time on parsing the bitcode.
        return bytes(dumps(((name, kind, (code, _outline(compiled))), *rest)))

    def _rebuild(self, target_context: Any, payload: bytes) -> CompileResult:
        parts = pickle.loads(payload)  # noqa: S301
        return CompileResult._rebuild(target_context, *parts)  # noqa: SLF001

    def _file(self, sig: Any, codegen: Any) -> str:
        return cache_files.file_name(self._name, f"{sig} {codegen.magic_tuple()} {self._source}")


class _CalleeFiles(_KernelFiles):
    """The files of one function for the kernels that call it: code before it is optimised."""

    def _code_of(self, compiled: CompileResult) -> bytes:
        fndesc = compiled.fndesc
        fndesc.typemap = fndesc.calltypes = None
        code = compiled.library.serialize_using_bitcode()
        return bytes(dumps((code, fndesc, compiled.signature)))

    def _rebuild(self, target_context: Any, payload: bytes) -> CompileResult:
        (name, _, bitcode), fndesc, signature = pickle.loads(payload)  # noqa: S301
        library = _CalleeLibrary(target_context.codegen(), name)
        library.read(bitcode)
        return compile_result(
            target_context=target_context,
            library=library,
            fndesc=fndesc,
            signature=signature,
            objectmode=False,
            entry_point=object(),
        )

    def _file(self, sig: Any, codegen: Any) -> str:
        return super()._file(f"callee {sig}", codegen)


class _CalleeLibrary(JITCodeLibrary):  # type: ignore[misc]  # numba has no types
    """The code of a function for the kernels that call it, with the functions that it calls.

    numba's own library optimises a function and makes machine code of it before it is linked into
    its callers, each of which optimises it again. This library does neither, because a caller can
    do all of it once. That halves the time of a compilation.
    """

    def read(self, bitcode: bytes) -> None:
        """Take the code from a file."""
        self._final_module = parse_bitcode(bitcode)
        self._finalized = True

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


class _CalleeCompiler(Compiler):  # type: ignore[misc]  # numba has no types
    """Compiles a function into a `_CalleeLibrary`."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.state.flags.no_compile = True
        self.state.library = _CalleeLibrary(self.state.targetctx.codegen(), "callee")


def _outline(compiled: CompileResult) -> bytes:
    """Return bitcode that defines the functions of a kernel without their bodies.

    numba reads from it whether the machine code has an entry for calls from Python.
    """
    names = (function.name for function in compiled.library.get_defined_functions())
    bodies = (f'define void @"{name}"() {{ unreachable }}' for name in names)
    return bytes(parse_assembly("\n".join(bodies)).as_bitcode())


@functools.cache
def _refresh(target_context: Any) -> None:
    """Register the functions and types of all modules of numba, once in a process.

    A compilation does this again for modules that were imported later.
    """
    target_context.refresh()


def _files_of(function: Callable[..., Any], kind: type[_KernelFiles]) -> NullCache:
    """Return the cache of a module-level function; nested functions are not cached.

    The code of a nested function depends on variables of the outer function, which the file name
    does not include.
    """
    source = _hash_of(function.__code__.co_filename)
    if function.__closure__ or "<locals>" in function.__qualname__ or source is None:
        return NullCache()
    module = function.__module__.rpartition(".")[2]
    return kind(f"{module}.{function.__qualname__}", source)


@functools.cache
def _hash_of(source: str) -> str | None:
    """Return a hash of a source file, or None if it cannot be read.

    The file names of kernels outside this package need this hash, because the name of the folder
    depends only on the sources of this package.
    """
    try:
        return hashlib.sha256(Path(source).read_bytes()).hexdigest()
    except OSError:
        return None


def kernel(function: Callable[..., Any]) -> Any:  # numba's dispatchers have no type
    """Compile `function` at its first call, or load the code that an earlier process compiled.

    `function` must not allocate arrays, because it is compiled without reference counting. Its
    caller must keep all arrays alive. Raises TypeError if `function` calls a function that
    allocates arrays. If `function` returns an array, its first call raises TypeError: without
    reference counting, the caller would free the array too early. If the name of `function` begins
    with "_", only kernels may call it, because a call from Python crashes the process.
    """
    _refuse_array_makers(function)
    return _compiled(function, _nrt=False)


def allocating(function: Callable[..., Any]) -> Any:
    """Do the same as `kernel` for a function that allocates arrays."""
    return _compiled(function, _nrt=True)


def part(function: Callable[..., Any]) -> Any:
    """Do the same as `kernel`, but inline the source of `function` into the kernels that call it.

    Use `part` for functions with few callers, or with arguments or results that a kernel cannot
    pass, such as records that hold arrays without reference counts.
    """
    _refuse_array_makers(function)
    return _compiled(function, inline="always")


def _has_array(kind: types.Type) -> bool:
    """Return whether a numba type is an array, or a tuple with an array in it."""
    if isinstance(kind, types.BaseTuple):
        return any(map(_has_array, kind))
    return isinstance(kind, types.Array)


def _refuse_array_makers(function: Callable[..., Any]) -> None:
    # Without reference counting, the memory of allocated arrays would never be freed. numba refuses
    # some array-allocating functions, but not all.
    makers = _ARRAY_MAKERS.intersection(function.__code__.co_names)
    if makers:
        raise TypeError(f"{function.__name__} makes arrays: {', '.join(sorted(makers))}")


def _compiled(function: Callable[..., Any], **options: Any) -> Any:  # numba's options have no type
    inner = function.__name__.startswith("_") and "inline" not in options
    options |= _OPTIONS | {"no_cpython_wrapper": inner}
    dispatcher = numba.njit(**options)(function)
    # numba's `cache=True` does the same.
    dispatcher._cache = _files_of(function, _KernelFiles)  # noqa: SLF001
    add_overload = dispatcher.add_overload

    def add_checked(compiled: CompileResult) -> None:
        _refuse_array_results(compiled, options)
        add_overload(compiled)

    @functools.cache
    def callee() -> Any:
        return _make_callee(function, options)

    def resolve_plain(arguments: Any, keywords: Any) -> Any:
        # Treat a constant as a value of its type. Otherwise numba compiles a function once for
        # calls with the constant 0 and again for calls with an integer.
        return callee().get_call_template(tuple(map(unliteral, arguments)), keywords)

    dispatcher.add_overload = add_checked
    # A kernel that calls this function finds its types and its code with these two methods.
    dispatcher.get_call_template = resolve_plain
    dispatcher.get_overload = lambda signature: callee().get_overload(signature)
    # A function that returns the dispatcher for calls from kernels.
    dispatcher.callee = callee
    return dispatcher


def _make_callee(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    """Return the dispatcher that compiles `function` for the kernels that call it."""
    options = options | {"no_cpython_wrapper": True, "pipeline_class": _CalleeCompiler}
    dispatcher = numba.njit(**options)(function)
    dispatcher._cache = _files_of(function, _CalleeFiles)  # noqa: SLF001

    def add_overload(compiled: CompileResult) -> None:
        _refuse_array_results(compiled, options)
        if compiled.entry_point is None:
            # numba finds the code of a function by its entry point, which this function lacks.
            compiled = compiled._replace(entry_point=object())
            libraries = [compiled.library]
            dispatcher.targetctx.insert_user_function(
                compiled.entry_point, compiled.fndesc, libraries
            )
        dispatcher.overloads[tuple(compiled.signature.args)] = compiled

    dispatcher.add_overload = add_overload
    return dispatcher


def _refuse_array_results(compiled: CompileResult, options: dict[str, Any]) -> None:
    if options.get("_nrt") is False and _has_array(compiled.signature.return_type):
        name = compiled.fndesc.qualname.rpartition(".")[2]
        raise TypeError(f"{name} returns an array: mark it as allocating or part")
