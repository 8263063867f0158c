"""Reads and writes points as JSON Lines: one JSON object per point.

    {"id": "a", "vector": [0.5, 1], "attributes": {"brand": "x"}, "payload": {"title": "A shoe"}}

`vector` is a list of numbers or, for a sparse vector, an object with `indices`, `values` and
`dims`. `payload` is any JSON value: a text is stored as it is, and any other value as its JSON
text. `payload_base64` is a payload that is no text. `labels`, `label_count`, `category` and
`subtopic` are as in `label_columns`. Only `vector` is required. To change points that keep their
vectors, all lines leave it out. null is a point without a vector.
"""

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from divgrpc.errors import InvalidArgumentError
from divgrpc.parameters import LIMITS
from divgrpc.types.records import Record, Records, SparseVector
from divgrpc_client.formats import label_columns
from divgrpc_client.formats.label_columns import LabelColumns
from divgrpc_client.messages.vectors import PointVectors
from divgrpc_protos.arrays import Csr, Matrix

JSON_LINES: Final = (".jsonl", ".ndjson")
_KEYS: Final = ("id", "vector", "attributes", "payload", "payload_base64", *label_columns.NAMES)


@dataclass(frozen=True, slots=True)
class PointLines:
    """The points of a file, as arguments of `Client.build`.

    Attributes that some points lack have None there. `vectors`, `ids` and `payloads` are None if no
    point has them. `has_vector` says which points have a vector, if some have none; `vectors` has
    those of the others. `annotations` has those of `labels`, `categories` and `subtopics` that the
    file has, by name.
    """

    vectors: Matrix | None
    ids: list[Any] | None = None
    attributes: dict[str, list[Any]] = field(default_factory=dict)
    payloads: list[bytes | None] | None = None
    has_vector: npt.NDArray[np.bool_] | None = None
    annotations: dict[str, Any] = field(default_factory=dict)

    @property
    def rows(self) -> Any:  # noqa: ANN401  # what `Client.build` takes
        """The vectors of the points; points may lack one. None if points keep theirs."""
        if self.has_vector is None:
            return self.vectors
        return PointVectors(self.vectors, self.has_vector)


def read_points(
    path: Path, *, needs_vectors: bool = True, vectors_optional: bool = False
) -> PointLines:
    """Return the points of a file; raises `InvalidArgumentError` with the line at fault.

    Without `needs_vectors`, all points may lack a vector. Then they must all give the same
    attributes, because an attribute that some points lack would be removed from these. A vector may
    be null. With `vectors_optional`, any point may lack a vector, which means the same.
    """
    vectors: list[Any] = []
    flags: list[bool] = []
    first: dict[str, Any] = {}
    ids: list[Any] = []
    payloads: list[bytes | None] = []
    attributes: dict[str, list[Any]] = {}
    annotations = LabelColumns(path)
    for number, line in _lines(path):
        point = _object(path, number, line)
        first = first or point
        ids.append(_id(path, number, point, ids))
        if not needs_vectors:
            _check_parts(path, number, first, point)
        if needs_vectors or "vector" in point:
            is_absent = point.get("vector") is None
            flags.append(not (is_absent and (vectors_optional or not needs_vectors)))
        if flags and flags[-1]:
            vectors.append(_vector(path, number, point))
            _check_like(path, number, vectors[0], vectors[-1])
        payloads.append(_payload(path, number, point))
        _add_values(path, number, point, attributes, len(ids) - 1)
        annotations.append(point, f"line {number}")
    if not ids:
        raise InvalidArgumentError("file", f"{path} has no points")
    has_payloads = any(payload is not None for payload in payloads)
    if not flags:
        has_payloads = "payload" in _parts(first)
    return PointLines(
        _matrix(vectors) if vectors else None,
        None if ids[0] is None else ids,
        attributes,
        payloads if has_payloads else None,
        None if all(flags) else np.array(flags),
        annotations.arguments(),
    )


def read_values(path: Path) -> tuple[list[Any] | None, dict[str, list[Any]]]:
    """Return the ids of a file, None if it has none, and the values of each attribute by name.

    Lines need no vector, and vectors and payloads are ignored. Raises `InvalidArgumentError` with
    the line at fault.
    """
    ids: list[Any] = []
    attributes: dict[str, list[Any]] = {}
    for number, line in _lines(path):
        point = _object(path, number, line)
        ids.append(_id(path, number, point, ids))
        _add_values(path, number, point, attributes, len(ids) - 1)
    return None if not ids or ids[0] is None else ids, attributes


def _add_values(
    path: Path, number: int, point: dict[str, Any], columns: dict[str, list[Any]], before: int
) -> None:
    """Append the attributes of a point to `columns`; `before` is the number of points so far."""
    values = point.get("attributes", {})
    if not isinstance(values, dict):
        raise _wrong(path, number, "`attributes` must be an object")
    for name in values:
        columns.setdefault(name, [None] * before)
    for name, column in columns.items():
        column.append(values.get(name))


def write_points(records: Records) -> Iterator[str]:
    """Yield a line for each record."""
    for record in records:
        point = as_object(record, records)
        if records.has_vector is not None:
            point.setdefault("vector", None)
        yield json.dumps(point, ensure_ascii=False, separators=(",", ":")) + "\n"


def as_object(record: Record, records: Records) -> dict[str, Any]:
    """Return one of `records` as the object of its line."""
    point: dict[str, Any] = {"id": record.id}
    if isinstance(record.vector, SparseVector):
        indices, values = record.vector.indices.tolist(), _numbers(record.vector.values)
        dims = getattr(records.vectors, "dims", 0)
        point["vector"] = {"indices": indices, "values": values, "dims": dims}
    elif record.vector is not None:
        point["vector"] = _numbers(record.vector)
    # None and an empty list mean the same as no value.
    attributes = {n: v for n, v in record.attributes.items() if v is not None and v != ()}
    if attributes:
        point["attributes"] = attributes
    return point | _payload_fields(record.payload) | label_columns.values_of(record, records)


def payload_value(payload: bytes) -> Any:  # noqa: ANN401  # any JSON value
    """Return a payload as a JSON value; None if it is empty."""
    fields = _payload_fields(payload)
    return fields.get("payload", fields if fields else None)


def _numbers(vector: Any) -> list[float]:  # noqa: ANN401  # an array
    # The shortest decimal number that reads as the same float32.
    return [float(str(number)) for number in vector]


def _payload_fields(payload: bytes) -> dict[str, Any]:
    """Return a payload as a JSON value that `read_points` turns into the same bytes."""
    if not payload:
        return {}
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(payload).decode()}
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return {"payload": text}
    is_same = not isinstance(value, str) and value is not None and _json_bytes(value) == payload
    return {"payload": value if is_same else text}


def _refuse_constant(name: str) -> None:
    """Refuse NaN and Infinity, which Python reads as JSON and other programs do not."""
    raise ValueError(name)


def _json_bytes(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(
        errors="surrogatepass"
    )


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, line
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InvalidArgumentError("file", f"{path} cannot be read: {reason}") from None


def _object(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        point = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _wrong(path, number, f"is no JSON: {error}") from None
    if not isinstance(point, dict):
        raise _wrong(path, number, "must be an object")
    if unknown := sorted(point.keys() - set(_KEYS)):
        keys = ", ".join(_KEYS)
        rule = f"the keys of a point are {keys}; put others into attributes or payload"
        raise _wrong(path, number, f"has {unknown[0]!r:.60}; {rule}")
    return point


def _vector(path: Path, number: int, point: dict[str, Any]) -> Any:  # noqa: ANN401  # a row
    vector = point.get("vector")
    if isinstance(vector, dict):
        try:
            indices, values = (np.array(vector[key]) for key in ("indices", "values"))
        except (KeyError, ValueError):
            indices = values = np.empty(0, bool)
        dims = vector.get("dims")
        kinds = {part.dtype.kind for part in (indices, values) if part.size}
        has_kinds = kinds <= set("iuf") and not (indices.size and indices.dtype.kind == "f")
        is_size = isinstance(dims, int) and 1 <= dims <= LIMITS["sparse_dims_max"]
        if not has_kinds or not is_size or vector.keys() != {"indices", "values", "dims"}:
            rule = "a sparse `vector` must have lists of numbers `indices` and `values`, and `dims`"
            raise _wrong(path, number, f"{rule}, at most {LIMITS['sparse_dims_max']}")
        indices, values = indices.astype(np.int64), values.astype(np.float32)
        is_sorted = indices.ndim == 1 and bool((np.diff(indices) > 0).all())
        if (
            not is_sorted
            or indices.shape != values.shape
            or (len(indices) and not 0 <= indices[0] <= indices[-1] < dims)
        ):
            rule = "`indices` must ascend from 0 to `dims` - 1, with a value each"
            raise _wrong(path, number, rule)
        return indices, values, dims
    try:
        row = np.array(vector)
    except ValueError:
        row = np.empty(0)
    if not isinstance(vector, list) or row.ndim != 1 or not row.size or row.dtype.kind not in "iuf":
        hint = "; divgrpc build --vectors-optional keeps points without one" * (vector is None)
        raise _wrong(path, number, f"`vector` must be a list of numbers{hint}")
    return row.astype(np.float32)


def _payload(path: Path, number: int, point: dict[str, Any]) -> bytes | None:
    if "payload_base64" in point and "payload" in point:
        raise _wrong(path, number, "must have `payload` or `payload_base64`, not both")
    if "payload_base64" in point:
        try:
            return base64.b64decode(point["payload_base64"], validate=True)
        except (TypeError, ValueError):
            raise _wrong(path, number, "`payload_base64` must be a text in base64") from None
    value = point.get("payload")
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode(errors="surrogatepass")
    return _json_bytes(value)


def _id(path: Path, number: int, point: dict[str, Any], before: list[Any]) -> int | str | None:
    """Return the id of a point, which must be of the kind of the ids `before`."""
    point_id = point.get("id")
    if isinstance(point_id, bool) or not isinstance(point_id, int | str | None):
        raise _wrong(path, number, "`id` must be a text or a whole number")
    if before and type(point_id) is not type(before[0]):
        kinds = {str: "be a text", int: "be a whole number", type(None): "be left out"}
        rule = kinds[type(before[0])]
        raise _wrong(path, number, f"`id` must {rule}, as in the first point")
    return point_id


def _check_like(path: Path, number: int, first: Any, vector: Any) -> None:  # noqa: ANN401  # rows
    """Raise if a vector differs from the first vector in kind or number of dimensions."""
    if isinstance(first, tuple) != isinstance(vector, tuple):
        raise _wrong(path, number, "all vectors must be dense, or all sparse")
    dims, before = ((row[2] if isinstance(row, tuple) else len(row)) for row in (vector, first))
    if dims != before:
        raise _wrong(path, number, f"`vector` has {dims} dimensions, and the first has {before}")


def _check_parts(path: Path, number: int, first: dict[str, Any], point: dict[str, Any]) -> None:
    """Raise if only one of two points has a vector, or if both lack one and differ in other parts.

    Raises `InvalidArgumentError` with the number of the line.
    """
    if ("vector" in point) != ("vector" in first):
        has = "has a `vector`, and the first point has none"
        if "vector" in first:
            has = "has no `vector`, and the first point has one"
        rule = "put points with vectors and points without into different files"
        raise _wrong(path, number, f"{has}; {rule}")
    if "vector" not in first and _parts(point) != _parts(first):
        same = "without vectors, all points must have the same attributes"
        rule = f"{same}, and all or none must have a payload, labels, a category or a sub-topic"
        raise _wrong(path, number, f"{rule}; null removes a value")


def _parts(point: dict[str, Any]) -> set[str]:
    """Return what a point has beside its id and vector: attributes by name, and other parts."""
    attributes = point.get("attributes", {})
    names = {f"attributes.{a}" for a in attributes} if isinstance(attributes, dict) else set()
    if point.keys() & {"payload", "payload_base64"}:
        names.add("payload")
    return names | (point.keys() & {label_columns.LABELS, *label_columns.TOPICS})


def _matrix(rows: list[Any]) -> Matrix:
    """Return the rows as a dense matrix or, if they are tuples, as a sparse one."""
    if not isinstance(rows[0], tuple):
        return np.stack(rows)
    ends = np.cumsum([0, *(len(row[0]) for row in rows)])
    indices = np.concatenate([row[0] for row in rows]).astype(np.uint32)
    return Csr(ends, indices, np.concatenate([row[1] for row in rows]), rows[0][2])


def _wrong(path: Path, number: int, problem: str) -> InvalidArgumentError:
    return InvalidArgumentError("file", f"{path} line {number}: {problem}")
