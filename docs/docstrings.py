"""A griffe extension: lists of parameters in docstrings, and the fields of dataclasses."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from griffe import Attribute, Class, Docstring, Extension, Object

# griffe loads an extension by its path, so its folder is not on the import path.
sys.path.insert(0, str(Path(__file__).parent))

from comments import from_docstring, table


class PlainDocstrings(Extension):
    """Rewrites docstrings as Markdown before they are rendered."""

    def on_object(self, *, obj: Object, **_: Any) -> None:  # noqa: ANN401  # griffe's signature
        """Make lists of the lines that explain parameters."""
        if obj.docstring is not None:
            obj.docstring.value = from_docstring(obj.docstring.value)

    def on_class(self, *, cls: Class, **_: Any) -> None:  # noqa: ANN401  # griffe's signature
        """Append a table of the fields to the docstring of a dataclass."""
        fields = list(_fields(cls))
        if cls.docstring is not None and fields and _is_record(cls):
            text = cls.docstring.value + "\n\n" + table(("field", "type", "default"), fields)
            cls.docstring = Docstring(text, parent=cls)


def _is_record(cls: Class) -> bool:
    decorated = any("dataclass" in str(decorator.value) for decorator in cls.decorators)
    return decorated or any("NamedTuple" in str(base) for base in cls.bases)


def _fields(cls: Class) -> Iterator[tuple[str, str, str]]:
    for name, member in cls.members.items():
        if not isinstance(member, Attribute) or member.annotation is None:
            continue
        if not name.startswith("_") and "property" not in member.labels:
            yield f"`{name}`", f"`{member.annotation}`", _default(member)


def _default(field: Attribute) -> str:
    if field.value is None:
        return ""
    return "empty" if "default_factory" in str(field.value) else f"`{field.value}`"
