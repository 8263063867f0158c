"""The subject of a call in its access line; this module must not import protobuf."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from divgrpc.parameters import INDEX_NAME


@dataclass(frozen=True, slots=True)
class Subject:
    """The index and the sizes of a call, as text in both log formats. Unknown values are empty."""

    in_json: str = ""
    for_people: str = ""


NO_SUBJECT: Final = Subject()
# Shown instead of a name if the queries of a stream use several indexes.
SEVERAL: Final = "*"
# Maximum number of characters in the name of an index. A longer text is not put in the cache.
_NAME_CHARACTERS_MAX: Final = 63


def subject(index: str, rows: int | None = None, k: int | None = None) -> Subject:
    """Return the subject of a call; a number that is None is left out."""
    return _subject(index, rows, k) if len(index) <= _NAME_CHARACTERS_MAX else NO_SUBJECT


@lru_cache(maxsize=4096)  # most calls repeat an earlier one
def _subject(index: str, rows: int | None, k: int | None) -> Subject:
    if index != SEVERAL and not INDEX_NAME.fullmatch(index):
        # The index is not a valid name. The log line contains names without escaping, so this text
        # could forge a line.
        return NO_SUBJECT
    numbers = {name: number for name, number in (("rows", rows), ("k", k)) if number is not None}
    return Subject(
        "".join((f'"index": "{index}", ', *(f'"{name}": {n}, ' for name, n in numbers.items()))),
        "".join((f" index={index}", *(f" {name}={n}" for name, n in numbers.items()))),
    )
