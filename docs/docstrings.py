"""A griffe extension that renders parameters as lists and the fields of dataclasses as tables."""

import sys
from pathlib import Path
from typing import Any

from griffe import Attribute, Class, Extension, Object

# griffe loads an extension by its path, so its folder is not on the import path.
sys.path.insert(0, str(Path(__file__).parent))

from comments import from_docstring, split_docstring, table


class PlainDocstrings(Extension):
    """Converts docstrings to Markdown before they are rendered."""

    def on_object(self, *, obj: Object, **_: Any) -> None:  # noqa: ANN401  # griffe's signature
        """Change the docstring of `obj` to Markdown.

        A dataclass or NamedTuple gets a table of its fields. The docstring of any other object gets
        a list in place of its explanations of parameters.
        """
        if obj.docstring is None:
            return
        text = obj.docstring.value
        if isinstance(obj, Class) and _is_record(obj):
            obj.docstring.value = _with_fields(obj, text)
        else:
            obj.docstring.value = from_docstring(text)


def _is_record(cls: Class) -> bool:
    is_dataclass = any("dataclass" in str(decorator.value) for decorator in cls.decorators)
    return is_dataclass or any("NamedTuple" in str(base) for base in cls.bases)


def _with_fields(cls: Class, docstring: str) -> str:
    text, meanings = split_docstring(docstring)
    rows = [
        (f"`{name}`", f"`{field.annotation}`", _default(field), meanings.get(name, ""))
        for name, field in cls.members.items()
        if isinstance(field, Attribute) and _is_field(field)
    ]
    if not meanings:
        rows = [row[:3] for row in rows]
    heads = ("field", "type", "default", "meaning")
    return f"{text}\n\n{table(heads[: len(rows[0])], rows)}" if rows else text


def _is_field(attribute: Attribute) -> bool:
    private = attribute.name.startswith("_")
    return attribute.annotation is not None and not private and "property" not in attribute.labels


def _default(field: Attribute) -> str:
    """Return the default of a field as code; a constant of the module is replaced by its value."""
    if field.value is None:
        return ""
    text = str(field.value)
    constant = field.module.members.get(text)
    if isinstance(constant, Attribute) and constant.value is not None:
        text = str(constant.value)
    return "empty" if "default_factory" in text else f"`{text}`"
