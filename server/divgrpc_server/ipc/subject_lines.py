"""Subjects of calls as access lines print them; this module loads no protobuf."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from divgrpc.parameters import INDEX_NAME


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of a call in both forms of the log; empty where it is not known."""

    in_json: str = ""
    for_people: str = ""


NO_SUBJECT: Final = Subject()
# Stands for the name where the queries of a stream go to several indexes.
SEVERAL: Final = "*"
_NAME_CHARACTERS: Final = 63  # of the longest name; no longer text may fill the cache


def subject(index: str, rows: int | None = None, k: int | None = None) -> Subject:
    """Return the subject of a call; None stands for a number that such calls do not have."""
    return _subject(index, rows, k) if len(index) <= _NAME_CHARACTERS else NO_SUBJECT


@lru_cache(maxsize=4096)  # calls mostly repeat one another
def _subject(index: str, rows: int | None, k: int | None) -> Subject:
    if index != SEVERAL and not INDEX_NAME.fullmatch(index):
        # A line has the name as it is, so that a text which is no name could forge lines.
        return NO_SUBJECT
    numbers = {name: number for name, number in (("rows", rows), ("k", k)) if number is not None}
    return Subject(
        "".join((f'"index": "{index}", ', *(f'"{name}": {n}, ' for name, n in numbers.items()))),
        "".join((f" index={index}", *(f" {name}={n}" for name, n in numbers.items()))),
    )
