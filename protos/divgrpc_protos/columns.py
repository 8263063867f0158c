"""Conversion between attribute columns and the message `AttributeColumn`.

The type of a column determines the field of its values, and the field determines the type.
"""

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from divgrpc_protos.v1 import points_pb2

# The field that has the values of each type, and their dtype.
FIELDS: Final = {
    "keyword": ("keywords", np.int32),
    "integer": ("integers", np.int64),
    "float": ("numbers", np.float64),
    "bool": ("flags", np.int8),
}


class WireColumn(NamedTuple):
    """The values of one attribute for n points.

    name: name of the attribute.
    type: keyword, integer, float or bool; "" if the message has no values.
    values: (n,) numbers, one per point; with `ends`, (m,) numbers of all points in order.
    ends: (n,) int64, the end of each point's values; empty if each point has one value.
    words: the texts that the numbers of a keyword stand for.
    """

    name: str
    type: str
    values: npt.NDArray[Any]
    ends: npt.NDArray[np.int64]
    words: tuple[str, ...]


def encode_column(column: WireColumn) -> points_pb2.AttributeColumn:
    """Return the message of a column."""
    field, _ = FIELDS[column.type]
    message = points_pb2.AttributeColumn(
        name=column.name, words=column.words, ends=column.ends.tolist()
    )
    getattr(message, field).extend(column.values.tolist())
    return message


def decode_column(message: points_pb2.AttributeColumn) -> WireColumn:
    """Return the column of a message; raises ValueError if it has values of several types."""
    filled = [kind for kind, (field, _) in FIELDS.items() if getattr(message, field)]
    if len(filled) > 1:
        fields = " and ".join(FIELDS[kind][0] for kind in filled)
        raise ValueError(f"must have values in one field, got {fields}")
    values: npt.NDArray[Any] = np.empty(0)
    kind = ""
    for kind in filled:
        field, dtype = FIELDS[kind]
        numbers = np.array(getattr(message, field), np.float64 if kind == "float" else np.int64)
        values = numbers.astype(dtype)
        if kind != "float" and (values != numbers).any():
            raise ValueError(f"must have {field} from -1 to 1")
    ends = np.array(message.ends, np.int64)
    return WireColumn(message.name, kind, values, ends, tuple(message.words))
