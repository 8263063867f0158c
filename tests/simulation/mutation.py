"""Gives a module of the project a defect: functions get the code of a source with other lines."""

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from textwrap import dedent, indent
from types import CodeType, FunctionType
from typing import Any, Final, TypeAlias

from simulation.failpoints import SOURCES, source_of

# Names and values of options of a run.
Changes: TypeAlias = Mapping[str, Any]
# Indentations, in units of four spaces, that lines may have.
_DEPTH_MAX: Final = 8


@dataclass(frozen=True)
class Mutant:
    """A defect: in a module, old lines that occur once become new ones.

    old, new: the lines; the smallest indentation is 0, wherever they are.
    reason: what is wrong with it.
    changes: options of a run that every seed has instead of those that it draws. Only a defect of
        an earlier release has some, so that a situation which few seeds draw occurs in many.
    """

    name: str
    module: str
    old: str
    new: str
    reason: str
    changes: Changes = field(default_factory=dict)

    def change(self, source: str) -> str:
        """Return the source with the defect; raises `ValueError` if the lines do not occur once."""
        for depth in range(_DEPTH_MAX):
            old, new = (_indented(lines, 4 * depth) for lines in (self.old, self.new))
            if f"\n{source}".count(f"\n{old}") == 1:
                return source.replace(old, new)
        raise ValueError(f"{self.name}: its lines do not occur once")

    @property
    def fixed(self) -> "Mutant":
        """What has the same options and no defect."""
        return replace(self, new=self.old)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Let the functions of the module have the defect."""
        module = importlib.import_module(self.module)
        SOURCES[self.module] = self.change(source_of(module))
        text = SOURCES[self.module]
        codes = dict(_codes(compile(text, str(module.__file__), "exec", dont_inherit=True)))
        before = [(function, function.__code__) for function in _functions(module)]
        for function, code in before:
            function.__code__ = codes[code.co_qualname]
        try:
            yield
        finally:
            del SOURCES[self.module]
            for function, code in before:
                function.__code__ = code


def _indented(lines: str, spaces: int) -> str:
    return indent(dedent(lines).strip("\n") + "\n" * bool(lines), " " * spaces)


def _codes(code: CodeType) -> Iterator[tuple[str, CodeType]]:
    """Yield the names and the codes of all functions and classes."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant.co_qualname, constant
            yield from _codes(constant)


def _functions(module: Any) -> list[FunctionType]:  # noqa: ANN401  # a module
    """Return the functions that the source of a module defines, methods included."""
    classes = [v for v in vars(module).values() if isinstance(v, type)]
    scopes = [module, *(kind for kind in classes if kind.__module__ == module.__name__)]
    functions = []
    for value in (value for scope in scopes for value in vars(scope).values()):
        inner = getattr(value, "fget", None) or getattr(value, "__func__", None) or value
        function = getattr(inner, "__wrapped__", inner)
        # Those of data classes have no source.
        if isinstance(function, FunctionType) and function.__code__.co_filename == module.__file__:
            functions.append(function)
    return functions
