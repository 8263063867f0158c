"""Reads titles of points, by id."""

import json
import re
from pathlib import Path
from typing import Any, Final, TypeAlias

from divgrpc.errors import InvalidArgumentError
from divgrpc_client.formats.files import read_lines
from divgrpc_client.formats.json_lines import JSON_LINES

_ID_AND_TITLE: Final = re.compile(r"([^\t]+)\t(.*)")
# An id of a point: an integer or a text.
Id: TypeAlias = int | str


def read_titles(path: Path, field: str = "titles") -> dict[Id, str]:
    """Return a title for each id from a text file or JSON Lines.

    If every line of a text file has the form id, tab, title, the ids are taken from the lines. They
    are integers if all of them can be, else texts. Otherwise each line is a title, and its number,
    counted from 0, is the id. A line of JSON is an object with `title` and, unless its number is
    the id, `id`.

    Raises `InvalidArgumentError` for `field` if the file is faulty.
    """
    lines = read_lines(field, path)
    if path.suffix in JSON_LINES:
        return dict(_from_json(path, field, number, line) for number, line in enumerate(lines))
    pairs = [match.groups() for line in lines if (match := _ID_AND_TITLE.fullmatch(line))]
    if len(pairs) < len(lines):
        return dict(enumerate(lines))
    are_integers = all(point.isascii() and point.isdecimal() for point, _ in pairs)
    return {int(point) if are_integers else point: title for point, title in pairs}


def _from_json(path: Path, field: str, number: int, line: str) -> tuple[Id, str]:
    try:
        entry: Any = json.loads(line)
    except ValueError:
        entry = None
    title = entry.get("title") if isinstance(entry, dict) else None
    point = entry.get("id", number) if isinstance(entry, dict) else None
    if not isinstance(title, str) or not isinstance(point, int | str) or isinstance(point, bool):
        rule = "must be a JSON object with a text `title` and, if ids are not line numbers, `id`"
        raise InvalidArgumentError(field, f"{path}: line {number + 1} {rule}")
    return point, title
