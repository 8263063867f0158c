"""Columns of the attributes that a build in process gets."""

from divgrpc.columns.absence import split_vectors
from divgrpc.columns.values import Column, columns_of
from divgrpc.types.records import Attribute, AttributesLike, AttributeTypes
from divgrpc.vectors import RowsLike, as_rows


def columns_of_build(
    vectors: RowsLike, attributes: AttributesLike, types: AttributeTypes
) -> dict[Attribute, Column]:
    """Return the columns of the attributes of a build."""
    if attributes is None and not types:
        return {}
    return columns_of({} if attributes is None else attributes, _row_count(vectors), types)


def _row_count(vectors: RowsLike) -> int:
    """Return the number of rows; raises if `vectors` is no matrix."""
    has_vector = split_vectors(vectors)[1]
    if has_vector is not None:
        return len(has_vector)
    shape = getattr(vectors, "shape", None)
    if shape is not None and len(shape) == 2:
        return int(shape[0])
    return len(as_rows("vectors", vectors, None, single=False))
