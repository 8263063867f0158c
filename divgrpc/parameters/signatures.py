"""Signatures as a person reads them: the names of types in place of what the names stand for.

Python prints `npt.ArrayLike` as eight types and every choice as the list of its words, so that the
signature of a build fills a screen.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin

import numpy.typing as npt

from divgrpc import types


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
        return f"[{', '.join(name_of(each, names) for each in annotation)}]"
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
    kept = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    parameters = [
        p.replace(annotation=_Name(name_of(p.annotation, names)))
        if p.annotation is not p.empty
        else p
        for p in (*kept, *options)
    ]
    returned = _Name(name_of(signature.return_annotation, names))
    method.__signature__ = signature.replace(  # type: ignore[attr-defined]  # inspect reads it
        parameters=parameters, return_annotation=returned
    )
