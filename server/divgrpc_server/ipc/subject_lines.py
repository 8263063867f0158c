"""The subject of a call in its access line; this module must not load protobuf."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from divgrpc.parameters import INDEX_NAME


@dataclass(frozen=True, slots=True)
class Subject:
    """The index and the sizes of a call as text, in both forms of the log; empty if unknown."""

    in_json: str = ""
    for_people: str = ""


NO_SUBJECT: Final = Subject()
# The name in the line of a stream whose queries go to several indexes.
SEVERAL: Final = "*"
# Longer texts are no names, and must not fill the cache.
_NAME_CHARACTERS_MAX: Final = 63


def subject(index: str, rows: int | None = None, k: int | None = None) -> Subject:
    """Return the subject of a call; None leaves a number out."""
    return _subject(index, rows, k) if len(index) <= _NAME_CHARACTERS_MAX else NO_SUBJECT


@lru_cache(maxsize=4096)  # most calls repeat an earlier one
def _subject(index: str, rows: int | None, k: int | None) -> Subject:
    if index != SEVERAL and not INDEX_NAME.fullmatch(index):
        # The line holds the name without escapes, so any other text could forge a line.
        return NO_SUBJECT
    numbers = {name: number for name, number in (("rows", rows), ("k", k)) if number is not None}
    return Subject(
        "".join((f'"index": "{index}", ', *(f'"{name}": {n}, ' for name, n in numbers.items()))),
        "".join((f" index={index}", *(f" {name}={n}" for name, n in numbers.items()))),
    )
