"""Reads and writes points as Parquet files, if pyarrow is installed.

A file has the columns `id`, `vector` (lists of numbers of one length), `payload`, `divgrpc.labels`,
`divgrpc.label_count`, `divgrpc.category` and `divgrpc.subtopic`; only `vector` is required. Every
other column is an attribute, whose name has no dot. pyarrow is no dependency, because its wheel is
larger than everything else that divgrpc installs.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

from divgrpc.errors import InvalidArgumentError, UnsupportedError
from divgrpc.types import IndexInfo
from divgrpc.types.records import Records
from divgrpc_client.formats import label_columns
from divgrpc_client.formats.json_lines import PointLines
from divgrpc_client.formats.label_columns import LabelColumns

PARQUET: Final = (".parquet",)
_ID, _VECTOR, _PAYLOAD = "id", "vector", "payload"
# Prefix of the columns of `label_columns`. Names of attributes have no dot.
_PREFIX: Final = "divgrpc."


def read_parquet(
    path: Path, *, needs_vectors: bool = True, vectors_optional: bool = False
) -> PointLines:
    """Return the points of a file; raises `InvalidArgumentError` and `UnsupportedError`.

    Without `needs_vectors`, the file may lack the column of vectors, and vectors may be null. With
    `vectors_optional`, vectors may be null too.
    """
    columns = _columns(path)
    if needs_vectors and _VECTOR not in columns:
        names = ", ".join(columns) or "none"
        raise InvalidArgumentError("file", f"{path} has no column {_VECTOR!r}, but {names}")
    vectors = has_vector = None
    if _VECTOR in columns:
        column = columns.pop(_VECTOR).combine_chunks()
        if column.null_count and (vectors_optional or not needs_vectors):
            has_vector = np.asarray(column.is_valid().to_numpy(zero_copy_only=False), np.bool_)
            column = column.drop_null()
        vectors = _vectors(path, column) if len(column) or has_vector is None else None
    ids, payloads = (
        columns.pop(name).to_pylist() if name in columns else None for name in (_ID, _PAYLOAD)
    )
    annotations = _annotations(path, columns)
    attributes = {name: column.to_pylist() for name, column in columns.items()}
    return PointLines(vectors, ids, attributes, payloads, has_vector, annotations)


def _annotations(path: Path, columns: dict[str, Any]) -> dict[str, Any]:
    """Take labels, categories and sub-topics from the columns of a file, and return them."""
    names = [name for name in label_columns.NAMES if _PREFIX + name in columns]
    lists = [columns.pop(_PREFIX + name).to_pylist() for name in names]
    annotations = LabelColumns(path)
    for row, values in enumerate(zip(*lists, strict=True)):
        annotations.append(dict(zip(names, values, strict=True)), f"row {row}")
    return annotations.arguments()


def read_parquet_values(path: Path) -> tuple[list[Any] | None, dict[str, list[Any]]]:
    """Return the ids of a file, None if it has none, and the values of each attribute by name.

    Vectors and payloads are ignored. Raises `InvalidArgumentError` and `UnsupportedError`.
    """
    columns = _columns(path)
    for name in (_VECTOR, _PAYLOAD, *(_PREFIX + name for name in label_columns.NAMES)):
        columns.pop(name, None)
    ids = columns.pop(_ID).to_pylist() if _ID in columns else None
    return ids, {name: column.to_pylist() for name, column in columns.items()}


def _columns(path: Path) -> dict[str, Any]:
    """Return the columns of a file by name."""
    pyarrow = _pyarrow()
    try:
        table = pyarrow.parquet.read_table(path)
    except (OSError, pyarrow.ArrowException) as error:
        reason = error if path.is_file() else "no such file"
        raise InvalidArgumentError("file", f"{path} cannot be read as Parquet: {reason}") from None
    return {name: table.column(name) for name in table.column_names}


@contextmanager
def parquet_writer(path: Path, info: IndexInfo) -> Iterator[Any]:
    """Yield a function that writes `Records` to a new file.

    Raises `InvalidArgumentError` for an index whose points a file cannot have.
    """
    pyarrow = _pyarrow()
    if info.points == "sparse":
        raise InvalidArgumentError("file", "sparse points are exported as .jsonl, not as Parquet")
    schema = _schema(pyarrow, info)

    def write(records: Records) -> None:
        columns = {
            _ID: pyarrow.array(records.ids.tolist(), schema.field(_ID).type),
            _VECTOR: _as_lists(pyarrow, records, schema.field(_VECTOR).type),
        }
        for name, values in records.attributes.items():
            columns[name] = pyarrow.array(map(_plain, values), schema.field(name).type)
        if info.has_payloads:
            payloads = [payload or None for payload in records.payloads]
            columns[_PAYLOAD] = pyarrow.array(payloads, pyarrow.binary())
        lines = [label_columns.values_of(record, records) for record in records]
        for name in label_columns.NAMES:
            if (column := _PREFIX + name) in schema.names:
                numbers = [line[name] for line in lines]
                columns[column] = pyarrow.array(numbers, schema.field(column).type)
        writer.write_table(pyarrow.table(columns, schema=schema))

    with pyarrow.parquet.ParquetWriter(path, schema) as writer:
        yield write


def _as_lists(pyarrow: Any, records: Records, kind: Any) -> Any:  # noqa: ANN401  # pyarrow has no types
    """Return the vectors of records as lists, null for a point without one."""
    if records.has_vector is not None:
        return pyarrow.array([record.vector for record in records], kind)
    numbers = pyarrow.array(np.asarray(records.vectors).ravel())
    return pyarrow.FixedSizeListArray.from_arrays(numbers, kind.list_size)


def _schema(pyarrow: Any, info: IndexInfo) -> Any:  # noqa: ANN401  # pyarrow has no types
    types = {
        "keyword": pyarrow.string(),
        "integer": pyarrow.int64(),
        "float": pyarrow.float64(),
        "bool": pyarrow.bool_(),
    }
    fields = [
        (_ID, pyarrow.string() if info.id_kind == "string" else pyarrow.int64()),
        (_VECTOR, pyarrow.list_(pyarrow.float32(), info.dims)),
    ]
    for attribute in info.attributes:
        if attribute.name in (_ID, _VECTOR, _PAYLOAD):
            text = f"the attribute {attribute.name!r} has the name of another column; use .jsonl"
            raise InvalidArgumentError("file", text)
        kind = types[attribute.type]
        fields.append((attribute.name, pyarrow.list_(kind) if attribute.multi else kind))
    if info.has_payloads:
        fields.append((_PAYLOAD, pyarrow.binary()))
    integer, has_labels = pyarrow.int32(), info.labels is not None and info.labels.has_label_sets
    for name, kind, is_present in (
        (label_columns.LABELS, pyarrow.list_(integer), has_labels),
        (label_columns.LABEL_COUNT, integer, has_labels),
        ("category", integer, info.has_categories),
        ("subtopic", integer, info.has_subtopics),
    ):
        if is_present:
            fields.append((_PREFIX + name, kind))
    return pyarrow.schema(fields)


def _plain(value: Any) -> Any:  # noqa: ANN401  # the value of any attribute
    return list(value) if isinstance(value, tuple) else value


def _vectors(path: Path, column: Any) -> Any:  # noqa: ANN401  # a column of pyarrow
    """Return an array of lists as a matrix."""
    flat = column
    try:
        numbers = flat.flatten().to_numpy(zero_copy_only=False)
    except AttributeError:
        raise InvalidArgumentError("file", f"{path}: `vector` must hold lists of numbers") from None
    rows = len(flat)
    dims, rest = divmod(len(numbers), rows) if rows else (0, 0)
    lengths = set(flat.value_lengths().to_pylist()) if rows else {0}
    if rest or lengths != {dims} or numbers.dtype.kind not in "iuf":
        text = f"{path}: `vector` must hold lists of numbers, all of one length and none missing"
        raise InvalidArgumentError("file", text)
    return numbers.reshape(rows, dims)


def _pyarrow() -> Any:  # noqa: ANN401  # pyarrow has no types
    try:
        import pyarrow as pa
        import pyarrow.parquet
    except ModuleNotFoundError:
        text = "Parquet files need pyarrow, which divgrpc does not bring: pip install pyarrow"
        raise UnsupportedError("file", text) from None
    return pa
