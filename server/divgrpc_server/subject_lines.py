"""What an access line says that a call is about; loads nothing that speaks protobuf."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from divgrpc.parameters import INDEX_NAME


@dataclass(frozen=True, slots=True)
class Subject:
    """What a call is about, as lines of the log have it; empty where that cannot be told."""

    in_json: str = ""
    for_people: str = ""


NO_SUBJECT: Final = Subject()
# What stands in the place of a name where the queries of a stream ask several indexes.
SEVERAL: Final = "*"
_NAME_CHARACTERS: Final = 63  # of the longest name; longer ones must not fill the cache


def subject(index: str, rows: int | None = None, k: int | None = None) -> Subject:
    """Return what a call is about; None for a number that calls of its kind do not have."""
    return _subject(index, rows, k) if len(index) <= _NAME_CHARACTERS else NO_SUBJECT


@lru_cache(maxsize=4096)  # calls mostly repeat one another
def _subject(index: str, rows: int | None, k: int | None) -> Subject:
    if index != SEVERAL and not INDEX_NAME.fullmatch(index):
        # A line quotes the name as it is, and this is no name of ours.
        return NO_SUBJECT
    numbers = {name: number for name, number in (("rows", rows), ("k", k)) if number is not None}
    return Subject(
        "".join((f'"index": "{index}", ', *(f'"{name}": {n}, ' for name, n in numbers.items()))),
        "".join((f" index={index}", *(f" {name}={n}" for name, n in numbers.items()))),
    )
