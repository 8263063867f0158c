"""Reads ids and attributes of points from a CSV file.

The first line has the names of the columns. A column `id` has the ids. Every other column is an
attribute: of integers, floats or bools if all its values are, else of texts. Empty values are
missing.
"""

import csv
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from divgrpc.errors import InvalidArgumentError

# The name of the column of ids.
ID: Final = "id"
# Without leading zeros, because 007 is a code and no number.
_INTEGER: Final = re.compile(r"-?(0|[1-9][0-9]*)")
_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]*)?(\.[0-9]+)?(?<=[0-9])([eE][-+]?[0-9]+)?")
_BOOLS: Final = {"true": True, "false": False}


def read_columns(
    path: Path, field: str = "columns", texts: Collection[str] = ()
) -> tuple[list[Any] | None, dict[str, list[Any]]]:
    """Return the ids, None if the file has none, and the values of each attribute by name.

    texts: names of the columns whose values are texts, even if all are numbers.

    Raises `InvalidArgumentError` for `field`, with the line at fault.
    """
    if path.suffix != ".csv":
        raise InvalidArgumentError(field, f"{path} must be a .csv file")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            names, *lines = list(csv.reader(file, strict=True)) or [[]]
    except (OSError, ValueError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InvalidArgumentError(field, f"{path} cannot be read: {reason}") from None
    if not names or len(set(names)) < len(names):
        raise InvalidArgumentError(field, f"{path} must begin with a line of different names")
    for number, line in enumerate(lines, 2):
        if len(line) != len(names):
            problem = f"has {len(line)} values, and the first line has {len(names)}"
            raise InvalidArgumentError(field, f"{path} line {number} {problem}")
    columns = {
        name: _typed([line[at] for line in lines], as_texts=name in texts)
        for at, name in enumerate(names)
    }
    ids = columns.pop(ID, None)
    if ids is not None and None in ids:
        problem = f"line {ids.index(None) + 2} has no id"
        raise InvalidArgumentError(field, f"{path} {problem}")
    return ids, columns


def with_types(attributes: Mapping[str, list[Any]]) -> dict[str, Any]:
    """Return attributes of a file as arguments of `Client.build`.

    A column without values has no type. Texts fit whatever is added to it later.
    """
    empty = [name for name, values in attributes.items() if not any(map(_has_value, values))]
    return {"attributes": attributes or None, "attribute_types": dict.fromkeys(empty, "keyword")}


def _has_value(value: object) -> bool:
    return value is not None and value != []


def _typed(texts: Sequence[str], *, as_texts: bool) -> list[Any]:
    """Return the values of a column: None for an empty text, else the first type that all fit."""
    for convert in () if as_texts else (_int, _float, _bool):
        if (values := _converted(texts, convert)) is not None:
            return values
    return [text or None for text in texts]


def _converted(texts: Iterable[str], convert: Callable[[str], Any]) -> list[Any] | None:
    try:
        values = [convert(text) if text else None for text in texts]
    except (ValueError, KeyError):
        return None
    return values if any(value is not None for value in values) else None


def _int(text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise ValueError(text)
    return int(text)


def _float(text: str) -> float:
    if not _NUMBER.fullmatch(text):
        raise ValueError(text)
    return float(text)


def _bool(text: str) -> bool:
    return _BOOLS[text.lower()]
