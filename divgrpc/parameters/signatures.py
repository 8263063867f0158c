"""Signatures and docstrings of methods whose options are the fields of dataclasses.

A method takes `**options: Unpack[Options]`, which type checkers and editors read.
`spell_out_options` lets `help` and tab completion show each option with its type, its default and
its explanation. The explanations are those in the docstrings of the dataclasses: lines of a name, a
colon and a text, with further lines indented.

Types are shown by their names. Python would print `npt.ArrayLike` as eight types, and every choice
as the list of its words.
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

# A line such as "name: text" or "name, other: text", and the indented lines after it.
_EXPLANATION: Final = re.compile(r"^(\w[\w, ]*): (.*(?:\n +.*)*)", re.MULTILINE)


class _Name(str):
    """A text that is printed without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


# What annotations of calls stand for, and their names.
_NAMES: Final[Mapping[Any, str]] = {
    npt.ArrayLike: "ArrayLike",
    **{kind: name for name, kind in vars(types).items() if get_origin(kind) is Literal},
}


def name_of(annotation: Any, names: Mapping[Any, str]) -> str:  # noqa: ANN401  # any annotation
    """Return an annotation as it is written in the source, by the `names` of what it holds."""
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
    """Give `method` a signature whose types are named, and whose `**options` are spelled out.

    `names` has what annotations may hold beside the choices of `divgrpc.types`.
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


def defaults_of(*tables: type) -> dict[str, Any]:
    """Return the fields of dataclasses and their defaults."""
    return {field.name: field.default for table in tables for field in fields(table)}


def explanations_of(*tables: type) -> dict[str, str]:
    """Return the explanations in the docstrings of classes by name, each in one line."""
    texts: dict[str, str] = {}
    for table in tables:
        for match in _EXPLANATION.finditer(inspect.getdoc(table) or ""):
            text = " ".join(match[2].split())
            texts |= dict.fromkeys(match[1].split(", "), text)
    return texts


def spell_out_options(
    method: Callable[P, R], tables: Iterable[type], names: Mapping[Any, str]
) -> Callable[P, R]:
    """Give a method the signature and the docstring of its `**options`, and return it.

    tables: dataclasses, whose fields are the options, and classes with explanations.
    names: names of types in annotations, beside the choices of `divgrpc.types`.
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
    lines = [_paragraph(name, texts.get(name, ""), defaults[name]) for name in hints]
    method.__doc__ = "\n".join([inspect.cleandoc(method.__doc__ or ""), "", *lines])
    return method


def _paragraph(name: str, text: str, default: object) -> str:
    """Return the lines of a docstring on an option."""
    text = text if default is None else f"{text} Default: {default!r}."
    return textwrap.fill(f"{name}: {text}", width=96, subsequent_indent="    ")
