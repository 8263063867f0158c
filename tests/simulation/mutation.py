"""Loads a module of the project with a part of its text replaced."""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import dedent, indent
from types import CodeType, ModuleType
from typing import Final

# Indentations, in units of four spaces, that lines may have.
_DEPTH_MAX: Final = 8


@dataclass(frozen=True)
class Mutant:
    """A defect: in a module, old lines that occur once become new ones.

    old, new: the lines; the smallest indentation is 0, wherever they are.
    reason: what is wrong with it.
    """

    name: str
    module: str
    old: str
    new: str
    reason: str

    def apply(self, source: str) -> str:
        """Return the source with the defect; raises `ValueError` if the lines do not occur once."""
        for depth in range(_DEPTH_MAX):
            old, new = (_indented(lines, 4 * depth) for lines in (self.old, self.new))
            if f"\n{source}".count(f"\n{old}") == 1:
                return source.replace(old, new)
        raise ValueError(f"{self.name}: its lines do not occur once")


def _indented(lines: str, spaces: int) -> str:
    return indent(dedent(lines).strip("\n") + "\n" * bool(lines), " " * spaces)


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, mutant: Mutant, path: str) -> None:
        super().__init__(mutant.module, path)
        self._mutant = mutant

    def get_source(self, fullname: str) -> str:
        return self._mutant.apply(super().get_source(fullname) or "")

    def get_code(self, fullname: str) -> CodeType:
        # Without the cache of bytecode, which has the unchanged module.
        return compile(self.get_source(fullname), self.path, "exec", dont_inherit=True)


class Finder(importlib.abc.MetaPathFinder):
    """Finds the module of a mutant; all others are found as usual."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the module with the defect, if it is the one."""
        if fullname != self._mutant.module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        assert spec is not None
        assert spec.origin is not None
        loader = _Loader(self._mutant, spec.origin)
        return importlib.util.spec_from_file_location(fullname, spec.origin, loader=loader)


def install(mutant: Mutant) -> None:
    """Let the next import of the module have the defect."""
    assert mutant.module not in sys.modules, f"{mutant.module} is loaded already"
    sys.meta_path.insert(0, Finder(mutant))
