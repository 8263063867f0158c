"""Checks the annotations that a caller gives to points that are written."""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from divgrpc.arrays import Array
from divgrpc.builder.builder import integer_column
from divgrpc.builder.labels import as_label_rows, check_label_sets
from divgrpc.columns.annotations import INDICES, INDPTR, Annotations
from divgrpc.errors import invalid
from divgrpc.labels.model import label_rows
from divgrpc.storage.manifest import Manifest


class AnnotationArguments(NamedTuple):
    """The annotations of m points as callers give them; None for those that are not given.

    labels: (m, L) numbers, dense or sparse; point i has label j if labels[i, j] is not 0.
    categories, subtopics: (m,) integers, -1 for none.
    """

    labels: Any = None
    categories: Any = None
    subtopics: Any = None

    @property
    def has_any(self) -> bool:
        """Whether any annotations are given."""
        return any(value is not None for value in self)

    def checked(self, count: int) -> "AnnotationArguments":
        """Return the annotations of `count` records; raises `InvalidArgumentError`."""
        labels, *topics = self
        names = self._fields[1:]
        return AnnotationArguments(
            None if labels is None else check_label_sets(labels, count, None, "record"),
            *(
                None if values is None else integer_column(name, values, count)
                for name, values in zip(names, topics, strict=True)
            ),
        )

    def cut(self, start: int, stop: int) -> dict[str, Any]:
        """Return those that are given, of points `start` to `stop` - 1, by name."""
        return {
            name: values[start:stop]
            for name, values in self._asdict().items()
            if values is not None
        }


NOT_GIVEN: Final = AnnotationArguments()


def bytes_of(arguments: AnnotationArguments) -> Iterator[bytes]:
    """Yield bytes that differ for different annotations; raises `InvalidArgumentError`."""
    if arguments.labels is not None:
        sets = label_rows(as_label_rows(arguments.labels))
        yield f"labels {sets.dims}".encode()
        yield sets.indptr.tobytes()
        yield sets.indices.tobytes()
    for name in ("categories", "subtopics"):
        numbers = getattr(arguments, name)
        if numbers is not None:
            yield name.encode()
            yield integer_column(name, numbers, np.size(numbers)).tobytes()


def complete(
    arguments: AnnotationArguments, manifest: Manifest, count: int, kept: Annotations | None
) -> dict[str, Array]:
    """Return the annotations of `count` points that are written.

    kept: the annotations that the points have, and keep where `arguments` has none; None if they
        have none.

    Raises `InvalidArgumentError` with the field `labels`, `categories` or `subtopics`.
    """
    result: dict[str, Array] = {}
    for name, value in arguments._asdict().items():
        stored = [key for key in _names_of(name) if key in manifest.arrays]
        if value is not None:
            if not stored:
                raise invalid(name, "must not be given: the index was built without")
            result |= _checked(name, value, manifest, count)
        elif stored:
            result |= {key: kept[key] for key in stored} if kept else _empty(name, count)
    return result


def _names_of(argument: str) -> tuple[str, ...]:
    return (INDPTR, INDICES) if argument == "labels" else (argument,)


def _checked(name: str, value: object, manifest: Manifest, count: int) -> dict[str, Array]:
    if name != "labels":
        return {name: integer_column(name, value, count)}
    assert manifest.labels is not None  # noqa: S101  # it has label sets
    sets = check_label_sets(value, count, manifest.labels.label_count, "id")
    return {INDPTR: sets.indptr, INDICES: sets.indices}


def _empty(argument: str, count: int) -> dict[str, Array]:
    if argument != "labels":
        return {argument: np.full(count, -1, np.int32)}
    return {INDPTR: np.zeros(count + 1, np.int64), INDICES: np.empty(0, np.int32)}
