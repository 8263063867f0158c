"""Checks the labels of a build before the first byte is sent, and makes their messages.

This module does no I/O. The client checks shapes and types, and the server checks the numbers. The
values of labels are not sent, so the client checks that they are finite.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Protocol, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from divgrpc.errors import invalid
from divgrpc.types.records import PointLabels
from divgrpc_client.messages.vectors import Dense, VectorsLike, as_matrix, row_ends, whole_numbers
from divgrpc_protos.arrays import Csr, encode_dense, row_count
from divgrpc_protos.v1 import labels_pb2

# Maximum size of an edge, which is two varints, and of the length of a name.
_EDGE_BYTES: Final = 10
_LENGTH_BYTES: Final = 5


class LabelModelLike(Protocol):
    """The attributes that the client reads of a label model (`divgrpc.labels.LabelModel`)."""

    @property
    def label_factors(self) -> npt.NDArray[np.float32]:
        """The label factors (L, r), one row for each label."""

    @property
    def feature_map(self) -> npt.NDArray[np.float32]:
        """The feature map (d, r), one row for each feature."""

    @property
    def offset(self) -> npt.NDArray[np.float32]:
        """The vector (r,) that is added to the product of a document and the feature map."""

    @property
    def unit_rows(self) -> bool:
        """Whether documents are scaled to unit length before they are multiplied by the model."""


LabelsLike: TypeAlias = VectorsLike | PointLabels
ModelLike: TypeAlias = str | tuple[npt.ArrayLike, npt.ArrayLike] | LabelModelLike | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelUpload:
    """The labels of one build, as returned by `label_upload`.

    `sets` has the labels of the rows and is sent with them. `plan` is sent in the header, and the
    other fields in separate messages.
    """

    sets: Csr | None
    plan: labels_pb2.LabelPlan
    factors: tuple[tuple[str, Dense], ...]
    names: tuple[str, ...] | None
    edges: npt.NDArray[np.integer] | None
    roots: tuple[int, ...]

    def chunks(self, chunk_bytes: int) -> Iterator[labels_pb2.LabelChunk]:
        """Yield the messages, each of about `chunk_bytes`."""
        for field, factor in self.factors:
            start = 0
            for stop in row_ends(factor, chunk_bytes) or [0]:
                chunk = labels_pb2.LabelChunk()
                getattr(chunk, field).CopyFrom(encode_dense(factor[start:stop]).dense)
                yield chunk
                start = stop
        yield from self._names(chunk_bytes)
        yield from self._edges(max(1, chunk_bytes // _EDGE_BYTES))

    def _names(self, chunk_bytes: int) -> Iterator[labels_pb2.LabelChunk]:
        if self.names is None:
            return
        sizes = np.array([len(name.encode()) + _LENGTH_BYTES for name in self.names], np.int64)
        numbers = np.cumsum(sizes) // chunk_bytes
        starts = [0, *(np.flatnonzero(np.diff(numbers)) + 1), len(self.names)]
        for start, stop in pairwise(starts):
            names = labels_pb2.LabelNames(values=self.names[start:stop])
            yield labels_pb2.LabelChunk(label_names=names)

    def _edges(self, step: int) -> Iterator[labels_pb2.LabelChunk]:
        if self.edges is None:
            return
        for start in range(0, max(1, len(self.edges), len(self.roots)), step):
            edges = self.edges[start : start + step]
            hierarchy = labels_pb2.Hierarchy(
                parents=edges[:, 0].tolist(),
                children=edges[:, 1].tolist(),
                roots=self.roots[start : start + step],
            )
            yield labels_pb2.LabelChunk(hierarchy=hierarchy)


def label_upload(
    rows: int,
    *,
    labels: LabelsLike | None = None,
    label_model: ModelLike = None,
    label_names: Sequence[str] | None = None,
    hierarchy: npt.ArrayLike | None = None,
    roots: Sequence[int] | None = None,
) -> LabelUpload:
    """Check and return the labels of a build of `rows` rows.

    Raises `InvalidArgumentError` with the name of the field for a wrong argument.
    """
    plan, factors = _model(label_model)
    edges = None if hierarchy is None else whole_numbers("hierarchy", hierarchy, np.uint32)
    if edges is not None and (edges.ndim, edges.shape[1:]) != (2, (2,)):
        raise invalid("hierarchy", "must have two columns, parents and children")
    root_nodes: tuple[int, ...] = ()
    if roots is not None:
        if hierarchy is None:
            raise invalid("roots", "must come with a hierarchy")
        root_nodes = tuple(whole_numbers("roots", roots, np.uint32).ravel().tolist())
        if not root_nodes:
            raise invalid("roots", "must be at least one, or not given")
    return LabelUpload(
        sets=None if labels is None else label_sets(labels, rows),
        plan=plan,
        factors=factors,
        names=None if label_names is None else tuple(map(_name, label_names)),
        edges=edges,
        roots=root_nodes,
    )


def label_sets(labels: LabelsLike, rows: int, row_noun: str = "vector") -> Csr:
    """Return labels (rows, L) as a sparse matrix.

    `row_noun` is the word for a row in errors. Raises `InvalidArgumentError` if the number of rows
    is wrong or a number is not finite.
    """
    if isinstance(labels, PointLabels):
        indices = np.asarray(labels.indices, np.uint32)
        ones = np.ones(len(indices), np.float32)
        labels = Csr(np.asarray(labels.indptr, np.int64), indices, ones, labels.label_count)
    matrix = as_matrix("labels", labels)
    if row_count(matrix) != rows:
        raise invalid(
            "labels", f"must have one row per {row_noun}, {rows}, got {row_count(matrix)}"
        )
    if not isinstance(matrix, Csr):
        places, columns = np.nonzero(matrix)
        ends = np.concatenate(([0], np.cumsum(np.bincount(places, minlength=rows))))
        with np.errstate(over="ignore"):
            values = matrix[places, columns].astype(np.float32)
        matrix = Csr(ends.astype(np.int64), columns.astype(np.uint32), values, matrix.shape[1])
    if not np.isfinite(matrix.data).all():
        raise invalid("labels", "must be finite")
    return matrix


def _model(model: ModelLike) -> tuple[labels_pb2.LabelPlan, tuple[tuple[str, Dense], ...]]:
    if model is None:
        return labels_pb2.LabelPlan(), ()
    if isinstance(model, str) and model == "leml":
        return labels_pb2.LabelPlan(model=labels_pb2.LABEL_MODEL_LEML), ()
    plan = labels_pb2.LabelPlan(model=labels_pb2.LABEL_MODEL_FACTORS)
    if isinstance(model, tuple) and len(model) == 2:
        label_factors, feature_map = model
    elif hasattr(model, "label_factors"):
        like = cast(LabelModelLike, model)
        label_factors, feature_map = like.label_factors, like.feature_map
        plan.offset.extend(like.offset.tolist())
        plan.unit_rows = like.unit_rows
    else:
        raise invalid("label_model", 'must be "leml", a pair of factors, or None')
    pair = (("label_factors", label_factors), ("feature_map", feature_map))
    return plan, tuple((field, _factor(field, matrix)) for field, matrix in pair)


def _factor(field: str, values: npt.ArrayLike) -> Dense:
    matrix = as_matrix(field, values)
    if isinstance(matrix, Csr):
        raise invalid(field, "must be a dense matrix")
    return matrix


def _name(name: object) -> str:
    if isinstance(name, str) and name.encode(errors="ignore").decode() == name:
        return str(name)
    raise invalid("label_names", f"must be texts, got {name!r}")
