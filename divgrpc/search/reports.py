"""Makes the explanations and reports of a result from the columns of its answers."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from divgrpc.metrics.attributes import value_entropy
from divgrpc.search.arrays import Answers
from divgrpc.types import CountArray, IntArray
from divgrpc.types.explanations import Explanation, Report
from divgrpc.types.records import AttributeValue, IdArray

_ID_COLUMNS = ("caused_by", "displaced_ids", "displaced_caused_by")
AttributesOf = Callable[[IntArray], Mapping[str, tuple[AttributeValue, ...]]]


def with_texts(explanation: Explanation, texts_of: Callable[[IntArray], IdArray]) -> Explanation:
    """Return an explanation with text ids; `texts_of` returns the texts of ids, "" for -1."""
    columns: Any = {name: texts_of(getattr(explanation, name)) for name in _ID_COLUMNS}
    return replace(explanation, **columns)


def ids_of(explanation: Explanation) -> list[IntArray]:
    """Return all columns of an explanation that have ids; -1 is padding."""
    return [getattr(explanation, name) for name in _ID_COLUMNS]


def report_of(answers: Answers, attributes_of: AttributesOf | None) -> Report:
    """Return the report on answers.

    attributes_of: returns the values of the attributes of points by their ids (m,). None if there
        are no attributes.
    """
    entropies: dict[str, Any] = {"entropies": {}, "plain_entropies": {}}
    if attributes_of is not None:
        plain_counts = (answers.plain_ids >= 0).sum(axis=1).astype(np.uint32)
        entropies["entropies"] = _entropies(answers.ids, answers.counts, attributes_of)
        entropies["plain_entropies"] = _entropies(answers.plain_ids, plain_counts, attributes_of)
    return Report(*answers.reports, **entropies)


def _entropies(
    ids: IntArray, counts: CountArray, attributes_of: AttributesOf
) -> dict[str, npt.NDArray[np.float64]]:
    values = attributes_of(ids[ids >= 0])
    stops = np.cumsum(counts, dtype=np.int64).tolist()
    return {
        name: np.array([value_entropy(part) for part in _parts(column, stops)])
        for name, column in values.items()
    }


def _parts(
    column: tuple[AttributeValue, ...], stops: list[int]
) -> Iterator[tuple[AttributeValue, ...]]:
    start = 0
    for stop in stops:
        yield column[start:stop]
        start = stop
