"""What an index stores about its points beside their hash codes, such as ids and attributes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, overload

import numpy as np
import numpy.typing as npt

IdKind = Literal["int64", "string"]
AttributeType = Literal["keyword", "integer", "float", "bool"]
Scalar: TypeAlias = str | int | float | bool
# The value of an attribute of one point. None is a missing value. If the attribute is `multi`, the
# value is a tuple, which is empty if the value is missing.
AttributeValue: TypeAlias = Scalar | tuple[Scalar, ...] | None
# The arguments of a build beside vectors and labels.
IdsLike: TypeAlias = npt.ArrayLike | Sequence[str] | None
AttributesLike: TypeAlias = Mapping[str, Any] | None
AttributeTypes: TypeAlias = Mapping[str, AttributeType] | None
PayloadsLike: TypeAlias = Sequence[bytes | str | None] | None
NumbersLike: TypeAlias = npt.ArrayLike | None
# One id or several, of stored points.
IdsOf: TypeAlias = int | str | Sequence[int] | Sequence[str] | npt.NDArray[Any] | None


class SparseLike(Protocol):
    """A sparse matrix of scipy."""

    def tocsr(self) -> Any:  # noqa: ANN401  # scipy has several types
        """Return the matrix as compressed sparse rows."""


# Points that were shown before: ids, or vectors as rows.
ShownLike: TypeAlias = IdsOf | Sequence[Sequence[float]] | SparseLike
# Ids: int64, or texts of dtype object if the index has string ids.
IdArray: TypeAlias = npt.NDArray[np.int64] | npt.NDArray[np.object_]


@dataclass(frozen=True, slots=True)
class Attribute:
    """The declaration of an attribute of the points.

    name: 1 to 63 letters, digits and underscores. The first is no digit.
    type: type of the values. A `keyword` is a text of at most 1,024 bytes. An `integer` has 64
        bits. Times are stored as integers, which count microseconds since 1970 in UTC.
    multi: whether a point may have several values.
    """

    name: str
    type: AttributeType
    multi: bool = False


class SparseVectors(NamedTuple):
    """Sparse vectors (n, dims) in the CSR format.

    Vector i has the numbers `values[indptr[i] : indptr[i + 1]]` in the columns
    `indices[indptr[i] : indptr[i + 1]]`. `indptr` (n + 1,) is int64, `indices` (m,) int32 and
    `values` (m,) float32.
    """

    indptr: npt.NDArray[np.int64]
    indices: npt.NDArray[np.int32]
    values: npt.NDArray[np.float32]
    dims: int


class SparseVector(NamedTuple):
    """The stored numbers of one sparse vector: `values` (m,) in the columns `indices` (m,)."""

    indices: npt.NDArray[np.int32]
    values: npt.NDArray[np.float32]


class PointLabels(NamedTuple):
    """The labels of n points, as compressed sparse rows.

    Point i has the labels `indices[indptr[i] : indptr[i + 1]]`, which ascend. `indptr` (n + 1,) is
    int64, and `indices` (m,) int32. `label_count` is the number of labels of the index.
    """

    indptr: npt.NDArray[np.int64]
    indices: npt.NDArray[np.int32]
    label_count: int


class Record(NamedTuple):
    """One stored point.

    id: id of the point, an integer or a text.
    vector: (dims,) float32 or a `SparseVector`; None for a point without a vector, and unless the
        call had `with_vectors`. Under cosine, vectors are stored with unit length.
    attributes: values by the name of the attribute.
    payload: bytes that were stored with the point, b"" if there were none.
    labels: the labels of the point, ascending. None unless the call had `with_labels` and the
        points of the index have labels.
    category, subtopic: -1 for none. None unless the call had `with_labels` and the points of the
        index have categories or sub-topics.
    """

    id: int | str
    vector: npt.NDArray[np.float32] | SparseVector | None
    attributes: Mapping[str, AttributeValue]
    payload: bytes
    labels: tuple[int, ...] | None = None
    category: int | None = None
    subtopic: int | None = None


class Parts(NamedTuple):
    """What records contain beside ids; `labels` stands for categories and sub-topics too."""

    vectors: bool = False
    attributes: bool = True
    payload: bool = True
    labels: bool = False


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Records:
    """Stored points, as columns. `records[i]` is a `Record`; iteration yields records.

    ids: (n,) int64, or texts of dtype object if the index has string ids.
    vectors: (n, dims) float32 or `SparseVectors`; None unless the call had `with_vectors`.
    attributes: n values of each attribute, by name.
    payloads: n payloads, b"" for a point without one. Empty if no point of the index has one.
    generation: generation of the index that the points come from.
    sequence: number of the last write that the points show; 0 if nothing was written.
    has_vector: (n,) bool, whether each point has a vector, if the call had `with_vectors` and one
        has none; else None. The rows of `vectors` without a vector are NaN, and sparse ones have no
        values.
    labels: the labels of the points. None unless the call had `with_labels` and the points of the
        index have labels.
    categories, subtopics: (n,) int32, -1 for none. None unless the call had `with_labels` and the
        points of the index have categories or sub-topics. A client has None for no points too.
    """

    ids: IdArray
    vectors: npt.NDArray[np.float32] | SparseVectors | None = None
    attributes: Mapping[str, tuple[AttributeValue, ...]] = field(default_factory=dict)
    payloads: tuple[bytes, ...] = ()
    generation: int = 0
    sequence: int = 0
    has_vector: npt.NDArray[np.bool_] | None = None
    labels: PointLabels | None = None
    categories: npt.NDArray[np.int32] | None = None
    subtopics: npt.NDArray[np.int32] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, row: int) -> Record: ...
    @overload
    def __getitem__(self, row: slice) -> list[Record]: ...
    def __getitem__(self, row: int | slice) -> Record | list[Record]:
        """Return one record, or a list of records for a slice; raises `IndexError`."""
        numbers = range(len(self))[row]
        if isinstance(numbers, range):
            return [self._record(number) for number in numbers]
        return self._record(numbers)

    def __iter__(self) -> Iterator[Record]:
        return (self._record(row) for row in range(len(self)))

    def __repr__(self) -> str:
        names = [*self.attributes, *(["payload"] if self.payloads else [])]
        parts: Mapping[str, object] = {
            "vector": self.vectors,
            "labels": self.labels,
            "category": self.categories,
            "subtopic": self.subtopics,
        }
        names += [name for name, column in parts.items() if column is not None]
        ids = ", ".join(map(str, self.ids[:5].tolist())) + (", ..." if len(self) > 5 else "")
        return f"Records: {len(self):,} of {', '.join(names) or 'ids alone'}; {ids}"

    def _record(self, row: int) -> Record:
        vector: Any = self.vectors
        if self.has_vector is not None and not self.has_vector[row]:
            vector = None
        if isinstance(vector, SparseVectors):
            part = slice(vector.indptr[row], vector.indptr[row + 1])
            vector = SparseVector(vector.indices[part], vector.values[part])
        elif vector is not None:
            vector = vector[row]
        values = {name: column[row] for name, column in self.attributes.items()}
        payload = self.payloads[row] if self.payloads else b""
        labels = None
        if self.labels is not None:
            part = slice(self.labels.indptr[row], self.labels.indptr[row + 1])
            labels = tuple(self.labels.indices[part].tolist())
        category, subtopic = (
            None if numbers is None else int(numbers[row])
            for numbers in (self.categories, self.subtopics)
        )
        point_id = self.ids[row : row + 1].tolist()[0]
        return Record(point_id, vector, values, payload, labels, category, subtopic)
