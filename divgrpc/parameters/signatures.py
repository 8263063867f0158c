"""Signatures and docstrings of methods whose options are the fields of dataclasses.

Such a method takes `**options: Unpack[Options]`, which type checkers and editors understand.
`spell_out_options` makes `help` and tab completion show each option with its type, its default and
its explanation. The explanations come from the docstrings of the dataclasses. An explanation is a
line `name: text`, followed by indented lines if the text is longer.

Types are shown by their names. Without this, Python would show `npt.ArrayLike` as a union of eight
types, and each `Literal` type as the list of its values.
"""

import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import (
    Any,
    Final,
    Literal,
    ParamSpec,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy.typing as npt

from divgrpc import types

P = ParamSpec("P")
R = TypeVar("R")

# Matches a line such as "name: text" or "name, other: text", and the indented lines after it.
_EXPLANATION: Final = re.compile(r"^(\w[\w, ]*): (.*(?:\n +.*)*)", re.MULTILINE)


class _Name(str):
    """A string whose repr has no quotes, for use as an annotation in a signature."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


# Maps types to the names that signatures show for them.
_NAMES: Final[Mapping[Any, str]] = {
    npt.ArrayLike: "ArrayLike",
    **{kind: name for name, kind in vars(types).items() if get_origin(kind) is Literal},
}


def name_of(annotation: Any, names: Mapping[Any, str]) -> str:  # noqa: ANN401  # any annotation
    """Return an annotation as it is written in source code.

    `names` maps types to their names, in addition to the names of the types in `divgrpc.types`.
    """
    if isinstance(annotation, str):
        return annotation
    if annotation is NoneType:
        return "None"
    if isinstance(annotation, list):
        return f"[{', '.join(name_of(part, names) for part in annotation)}]"
    for kind, name in {**_NAMES, **names}.items():
        if annotation == kind:
            return name
        if annotation == kind | None:
            return f"{name} | None"
    parts, origin = [name_of(part, names) for part in get_args(annotation)], get_origin(annotation)
    if origin in (Union, UnionType):
        return " | ".join(parts)
    if origin is not None and origin is not Literal:
        return f"{origin.__name__}[{', '.join(parts)}]"
    if isinstance(annotation, type):
        return annotation.__name__
    return repr(annotation).replace("typing.", "")


def spell_out(
    method: Callable[..., object],
    names: Mapping[Any, str],
    options: Iterable[inspect.Parameter] = (),
) -> None:
    """Set the signature of `method` that `help` and tab completion show.

    The signature has `options` instead of `**options`, and `name_of(type, names)` instead of each
    type.
    """
    signature = inspect.signature(method)
    explicit = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    parameters = [
        p.replace(annotation=_Name(name_of(p.annotation, names)))
        if p.annotation is not p.empty
        else p
        for p in (*explicit, *options)
    ]
    return_type = _Name(name_of(signature.return_annotation, names))
    method.__signature__ = signature.replace(  # type: ignore[attr-defined]  # inspect reads it
        parameters=parameters, return_annotation=return_type
    )


def declare_return_type(method: Callable[..., object], kind: object) -> None:
    """Set the return type that `method`, a copy of another method, shows to `kind`."""
    method.__annotations__ = {**method.__annotations__, "return": kind}
    method.__signature__ = inspect.signature(method).replace(  # type: ignore[attr-defined]  # inspect reads it
        return_annotation=_Name(name_of(kind, {}))
    )


def defaults_of(*tables: type) -> dict[str, Any]:
    """Return the default of each field of some dataclasses, by the name of the field."""
    return {field.name: field.default for table in tables for field in fields(table)}


def explanations_of(*tables: object) -> dict[str, str]:
    """Return the explanations in the docstrings of classes and methods, by parameter name.

    Line breaks and indentation are removed.
    """
    texts: dict[str, str] = {}
    for table in tables:
        for match in _EXPLANATION.finditer(inspect.getdoc(table) or ""):
            text = " ".join(match[2].split())
            texts |= dict.fromkeys(match[1].split(", "), text)
    return texts


def spell_out_options(
    method: Callable[P, R], tables: Iterable[type], names: Mapping[Any, str]
) -> Callable[P, R]:
    """Add the `**options` of a method to its signature and its docstring, and return the method.

    tables: dataclasses whose fields are the options, and other classes whose docstrings explain
        options.
    names: names of types, as in `name_of`.
    """
    defaults = defaults_of(*filter(is_dataclass, tables))
    texts = explanations_of(*tables)
    *_, options = inspect.signature(method).parameters.values()
    hints = get_type_hints(get_args(options.annotation)[0])
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter(name, kind, default=defaults[name], annotation=hint)
        for name, hint in hints.items()
    ]
    spell_out(method, names, parameters)
    lines = [paragraph(name, texts.get(name, ""), defaults[name]) for name in hints]
    method.__doc__ = "\n".join([inspect.cleandoc(method.__doc__ or ""), "", *lines])
    return method


def paragraph(name: str, text: str, default: object = None) -> str:
    """Return the lines that explain a parameter in a docstring."""
    text = text if default is None else f"{text} Default: {default!r}."
    return textwrap.fill(f"{name}: {text}", width=96, subsequent_indent="    ")
