"""Failpoints: the calls that change the disk, listed from the syntax tree of the code.

A failpoint is a call of the system, or of a function of the project that does nothing but a few
such calls, and is named after its place: `writes.log:LogWriter._begin:os.rename`. Nothing in the
code names it: at each call of the system, `FailpointMap.name_of` looks which place has made it.
"""

import ast
import importlib
import inspect
import pkgutil
from collections import Counter
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any, Final

PACKAGES: Final = ("divgrpc.writes", "divgrpc.storage", "divgrpc.backup", "divgrpc.doctor")
_OF_SYSTEM: Final = (
    *("os.write", "os.pwrite", "os.truncate", "os.ftruncate", "os.posix_fallocate", "os.mkdir"),
    *("os.makedirs", "os.rename", "os.replace", "os.link", "os.symlink", "os.unlink", "os.remove"),
    *("os.rmdir", "os.fsync", "os.fdatasync", "os.utime", "os.chown", "shutil.rmtree"),
    "tempfile.mkstemp",
)
# Functions of the project that do a few calls of the system; each place that calls one is a
# failpoint, and those inside are none.
OF_PROJECT: Final = (
    *("write_at", "sync_data", "reserve", "sync_folder", "write_synced", "remove", "link_or_copy"),
)
_METHODS: Final = ("write", "flush", "truncate", "unlink", "mkdir", "rmdir", "touch", "write_bytes")
_WRITE_MODES: Final = frozenset("wxa+")
# Calls of methods that have such a name, and are no calls of the system.
NOT_OF_SYSTEM: Final = {
    "writes.committer:Committer._commit:self._target.write": "a method of WriteTarget",
    "writes.committer:Committer._begin:self._index.touch": "calls _set_time, a failpoint",
    "backup.snapshots:_new_file:sys.stdout.buffer.flush": "the standard output, which is no file",
    "doctor.repair:_rewrite_log:draft.write": "a method of Log",
    "doctor.repair:repair_index:IndexFolder(index).touch": "calls _set_time, a failpoint",
    "storage.generations:IndexFolder.set_defaults:self.touch": "calls _set_time, a failpoint",
}
# Stores to memory that is mapped from a file; `simulation.system` makes failpoints of them.
STORES: Final = ("storage.published:Published.publish:store",)
# Sources of modules whose functions were changed (`simulation.mutation`).
SOURCES: Final[dict[str, str]] = {}
_Place = tuple[int, int]


def _callee(node: ast.Call) -> str | None:
    """Return what a failpoint calls; None if the call is none."""
    text = ast.unparse(node.func)
    if text in _OF_SYSTEM or text in OF_PROJECT:
        return text
    if text == "os.open":
        return text if _may_create(node.args[1]) else None
    name = text.rpartition(".")[2]
    if "." not in text:
        return None
    modes = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    if name == "open" and any(_WRITE_MODES.intersection(mode) for mode in modes[:1]):
        return text
    return text if name in _METHODS else None


def _may_create(flags: ast.expr) -> bool:
    """Tell whether flags of `os.open` have O_CREAT, perhaps in a variable."""
    names = {node.id for node in ast.walk(flags) if isinstance(node, ast.Name)}
    return "O_CREAT" in ast.unparse(flags) or names != {"os"}


def _calls(tree: ast.AST, scope: tuple[str, ...] = ()) -> Iterator[tuple[str, ast.Call, str]]:
    """Yield the function, the node and the callee of each failpoint, in the order of the text."""
    for node in ast.iter_child_nodes(tree):
        inside = scope
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            if not scope and node.name in OF_PROJECT:
                continue
            inside = (*scope, node.name)
        if isinstance(node, ast.Call) and (callee := _callee(node)) is not None:
            yield ".".join(scope), node, callee
        yield from _calls(node, inside)


def modules() -> list[Any]:
    """Return the modules whose failpoints are found."""
    names = [
        f"{package}.{module.name}"
        for package in PACKAGES
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__)
    ]
    return [importlib.import_module(name) for name in names]


def source_of(module: Any) -> str:  # noqa: ANN401  # a module
    """Return the source that the functions of a module have."""
    return SOURCES.get(module.__name__) or inspect.getsource(module)


def named_calls(module: Any) -> dict[_Place, str]:  # noqa: ANN401  # a module
    """Return the names of the failpoints of a module by the place where their call ends."""
    tree = ast.parse(source_of(module))
    base, counts = module.__name__.removeprefix("divgrpc."), Counter[str]()
    names: dict[_Place, str] = {}
    for function, node, callee in _calls(tree):
        name = f"{base}:{function}:{callee}"
        counts[name] += 1
        if name not in NOT_OF_SYSTEM:
            number = f"#{counts[name]}" * (counts[name] > 1)
            names[node.end_lineno or 0, node.end_col_offset or 0] = name + number
    return names


class FailpointMap:
    """The failpoints of the code as it is loaded."""

    def __init__(self) -> None:
        self._places = {module.__file__: named_calls(module) for module in modules()}
        self._names: dict[tuple[CodeType, int], str | None] = {}

    @property
    def names(self) -> list[str]:
        """The names of all failpoints."""
        names = [name for places in self._places.values() for name in places.values()]
        return sorted([*names, *STORES])

    def name_of(self, frame: FrameType | None) -> str | None:
        """Return the failpoint through which a frame was called; None if there is none."""
        while frame is not None:
            code = frame.f_code
            is_inside = code.co_qualname in OF_PROJECT
            if code.co_filename in self._places and not is_inside:
                key = code, frame.f_lasti
                if key not in self._names:
                    self._names[key] = self._find(*key)
                return self._names[key]
            frame = frame.f_back
        return None

    def _find(self, code: CodeType, instruction: int) -> str | None:
        first, end, _, column = list(code.co_positions())[instruction // 2]
        places = self._places[code.co_filename]
        if (name := places.get((end or 0, column or 0))) is not None:
            return name
        # The end of a `with` block writes what is left in the buffer of a file.
        lines = [line for line, _ in places if code.co_firstlineno <= line <= (first or 0)]
        inside = [places[place] for place in sorted(places) if place[0] in lines]
        inside = [n for n in inside if n.split(":")[1] == code.co_qualname]
        return inside[-1] if inside else None
