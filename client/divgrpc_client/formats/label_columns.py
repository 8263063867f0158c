"""The labels, categories and sub-topics of points in files.

A point has them by these names:

    labels        a list of the numbers of its labels, from 0 up
    label_count   the number of labels of the index, the same for all points that give it
    category      a whole number, -1 for none
    subtopic      the same

Without `label_count`, an index has as many labels as the greatest number says. null is the same as
an empty list or -1.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from divgrpc.errors import InvalidArgumentError
from divgrpc.parameters import LIMITS
from divgrpc.types.records import Record, Records
from divgrpc_protos.arrays import Csr

LABELS: Final = "labels"
LABEL_COUNT: Final = "label_count"
# The arguments of `Client.build` by the names in files.
TOPICS: Final[Mapping[str, str]] = {"category": "categories", "subtopic": "subtopics"}
NAMES: Final = (LABELS, LABEL_COUNT, *TOPICS)
_NUMBER_MAX: Final = 2**31 - 1


class LabelColumns:
    """Collects the labels, categories and sub-topics of the points of a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._sets: list[list[int]] = []
        self._count: int | None = None
        self._greatest, self._place = -1, ""
        self._topics: dict[str, list[int]] = {name: [] for name in TOPICS}
        self._present: set[str] = set()

    def append(self, point: Mapping[str, Any], place: str) -> None:
        """Take the next point; raises `InvalidArgumentError` with its place in the file."""
        try:
            self._append(point)
            if (greatest := max(self._sets[-1], default=-1)) > self._greatest:
                self._greatest, self._place = greatest, place
        except ValueError as error:
            raise InvalidArgumentError("file", f"{self._path} {place}: {error}") from None

    def _append(self, point: Mapping[str, Any]) -> None:
        self._present |= point.keys() & set(NAMES)
        self._sets.append(_labels(point.get(LABELS)))
        count = point.get(LABEL_COUNT)
        if count is not None:
            most = LIMITS["labels_max"]
            if not _is_number(count, 1, most) or self._count not in (None, count):
                before = f", like that of the points before, {self._count}" * bool(self._count)
                raise ValueError(f"`{LABEL_COUNT}` must be a whole number from 1 to {most}{before}")
            self._count = count
        for name, numbers in self._topics.items():
            number = point.get(name)
            if number is not None and not _is_number(number, -1):
                raise ValueError(f"`{name}` must be a whole number of 32 bits, -1 for none")
            numbers.append(-1 if number is None else number)

    def arguments(self) -> dict[str, Any]:
        """Return what any point has, as arguments of `Client.build` and `Client.upsert`.

        Without any label and `label_count`, the matrix of labels has no columns. Raises
        `InvalidArgumentError` for a label that is not below `label_count`.
        """
        topics = {
            argument: self._topics[name]
            for name, argument in TOPICS.items()
            if name in self._present
        }
        if LABELS not in self._present:
            return topics
        ends = np.cumsum([0, *map(len, self._sets)])
        indices = np.array([label for labels in self._sets for label in labels], np.uint32)
        count = self._greatest + 1
        if self._count is not None:
            if count > self._count:
                rule = f"must be below `{LABEL_COUNT}`, {self._count}, got {self._greatest}"
                raise InvalidArgumentError("file", f"{self._path} {self._place}: `{LABELS}` {rule}")
            count = self._count
        return {LABELS: Csr(ends, indices, np.ones(len(indices), np.float32), count)} | topics


def values_of(record: Record, records: Records) -> dict[str, Any]:
    """Return the labels, category and sub-topic of one of `records`, by their names in files."""
    values: dict[str, Any] = {}
    if record.labels is not None and records.labels is not None:
        values = {LABELS: list(record.labels), LABEL_COUNT: records.labels.label_count}
    topics = {name: getattr(record, name) for name in TOPICS}
    return values | {name: number for name, number in topics.items() if number is not None}


def _labels(value: object) -> list[int]:
    most = LIMITS["labels_max"]
    if value is None:
        return []
    if not isinstance(value, list) or not all(_is_number(label, 0, most - 1) for label in value):
        raise ValueError(f"`{LABELS}` must be a list of whole numbers from 0 to {most - 1}")
    return sorted(set(value))


def _is_number(value: object, least: int, most: int = _NUMBER_MAX) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
