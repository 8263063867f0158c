"""Checks write requests and turns them into records of the log."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, get_args

import numpy as np

from divgrpc.arrays import Array
from divgrpc.builder.row_encoder import RowEncoder
from divgrpc.columns.annotations import Annotations
from divgrpc.columns.annotations import spread as spread_annotations
from divgrpc.columns.filters import Flags
from divgrpc.columns.ids import as_ids, as_integers, encode_texts, is_texts, plain
from divgrpc.columns.values import (
    Column,
    check_column,
    check_row_bytes,
    columns_of,
    missing_column,
    unknown_attribute,
)
from divgrpc.columns.writer import check_payloads
from divgrpc.errors import (
    ConditionFailedError,
    InvalidArgumentError,
    LimitExceededError,
    invalid,
)
from divgrpc.parameters.limits import LIMITS
from divgrpc.storage.manifest import Manifest
from divgrpc.types import Durability, IntArray, WriteMode
from divgrpc.types.filters import Filter
from divgrpc.types.records import Attribute
from divgrpc.vectors import Rows as Vectors
from divgrpc.vectors import SparseRows, as_rows, no_rows, prepare
from divgrpc.writes.annotation_arguments import NOT_GIVEN, AnnotationArguments, complete
from divgrpc.writes.columns import LiveIds
from divgrpc.writes.live_annotations import annotations_of
from divgrpc.writes.records import Record, Rows, spread, spread_vectors
from divgrpc.writes.state import State

_MODES: Final = get_args(WriteMode)
NEEDS_OPTION: Final = "only an index built with vectors_optional has points without a vector"
NO_KEYS: Final = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Upsert:
    """The arguments of an upsert; `divgrpc.Collection.upsert` describes them.

    Without `vectors` and `has_vector`, points keep their vectors. `has_vector` (m,) is whether each
    point gets a vector, None if all do. `vectors` has a row for each point that gets one, and is
    None if none does. `columns` are values of declared attributes.
    """

    ids: Any
    vectors: Any = None
    columns: Mapping[Attribute, Column] | None = None
    payloads: Any = None
    mode: WriteMode = "upsert"
    if_sequence: int | None = None
    write_id: str = ""
    annotations: AnnotationArguments = NOT_GIVEN
    has_vector: Flags | None = None

    @property
    def keeps_vectors(self) -> bool:
        """Whether points keep their vectors."""
        return self.vectors is None and self.has_vector is None


@dataclass(frozen=True, slots=True)
class Delete:
    """The arguments of a deletion: ids, a filter, or both to delete what passes both."""

    ids: Any = None
    condition: Filter | None = None
    if_sequence: int | None = None
    write_id: str = ""


def check_write_id(write_id: str) -> str:
    """Return a valid request id; raises `InvalidArgumentError`."""
    most = LIMITS["write_id_bytes_max"]
    if not isinstance(write_id, str) or len(write_id.encode(errors="replace")) > most:
        raise invalid("write_id", f"must be a text of at most {most} bytes, got {write_id!r:.80}")
    return write_id


def check_durability(durability: Durability) -> Durability:
    """Return a valid durability; raises `InvalidArgumentError`."""
    names = get_args(Durability)
    if durability not in names:
        rule = f"must be one of {', '.join(names)}"
        raise invalid("durability", f"{rule}, got {durability!r:.80}")
    return durability


def columns_from(
    attributes: object, manifest: Manifest, ids: object
) -> dict[Attribute, Column] | None:
    """Return columns of Python values for `ids`, None if `attributes` is None.

    Raises `InvalidArgumentError` with the field `ids`, `attributes` or `attributes.NAME`.
    """
    if attributes is None:
        return None
    return _columns_from(attributes, manifest, len(as_ids(ids)))


def _columns_from(attributes: object, manifest: Manifest, rows: int) -> dict[Attribute, Column]:
    declared = {attribute.name: attribute for attribute in manifest.attributes}
    if not isinstance(attributes, Mapping):
        columns_of(attributes, rows)  # type: ignore[arg-type]  # raises the error that fits
        raise invalid("attributes", "must be a mapping")
    columns: dict[Attribute, Column] = {}
    for name, value in attributes.items():
        if name not in declared:
            raise unknown_attribute(name, manifest.attributes)
        attribute, values = declared[name], plain(value)
        if attribute.multi and not isinstance(values, str) and isinstance(values, Sequence):
            values = [_as_list(item) for item in values]
        ((declaration, column),) = columns_of({name: values}, rows, {name: attribute.type}).items()
        if declaration.multi and not attribute.multi:
            raise invalid(f"attributes.{name}", "must have one value per row, got a list")
        if attribute.multi and not declaration.multi:
            column = missing_column(attribute, rows)  # there are no rows or no values at all
        columns[attribute] = column
    return columns


_LISTS: Final = (list, tuple, set, frozenset, np.ndarray)


def _as_list(item: object) -> object:
    """Return the values of a row as a list."""
    if item is None:
        return []
    return item if isinstance(item, _LISTS) else [item]


class Requests:
    """Turns requests into records, for one state after another."""

    def __init__(self, manifest: Manifest, encoder: RowEncoder) -> None:
        self._manifest, self._encoder = manifest, encoder

    def upsert(self, request: Upsert, state: State) -> Record:
        """Return the record of an upsert.

        Raises `InvalidArgumentError`, `ConditionFailedError` and `LimitExceededError`.
        """
        check_sequence(request.if_sequence, state)
        if request.mode not in _MODES:
            raise invalid("mode", f"must be one of {', '.join(_MODES)}, got {request.mode!r:.80}")
        ids = state.ids()
        keys, texts, rows = self._find(request.ids, ids)
        count = len(keys)
        if not count:
            raise invalid("ids", "must have at least one id")
        if count > LIMITS["write_rows_max"]:
            most = LIMITS["write_rows_max"]
            raise LimitExceededError(f"ids has {count} rows; one write may have at most {most}")
        is_optional = self._manifest.parameters.vectors_optional
        _check_mode(request, rows, keys, texts, is_optional=is_optional)
        keeps = request.keeps_vectors
        # Wrong vectors are named before wrong attributes.
        flags, vectors, encoded = self._encoded(request, rows, state)
        columns = self._columns(request.columns, count, rows, state, keeps=keeps)
        payloads = self._payloads(request.payloads, count, rows, state, keeps=keeps)
        annotations = self._annotations(request, count, rows, state)
        new_rows = Rows(keys, texts, vectors, *encoded, columns, payloads, annotations, flags)
        return Record(new_rows, NO_KEYS, request.write_id)

    def _encoded(
        self, request: Upsert, rows: IntArray, state: State
    ) -> tuple[Flags | None, Vectors, tuple[Array, Array, Array]]:
        """Return which points have a vector, the vectors, and cells, scan terms and codes.

        rows: (m,) the rows of the points, -1 for new ones.
        """
        if request.keeps_vectors:
            has_vector = rows >= 0
            has_vector[has_vector] = state.has_vector(rows[has_vector])
            old_rows = rows[has_vector]
            vectors, encoded = state.vectors(old_rows), state.encoded(old_rows)
        else:
            has_vector = self._has_vector(request, len(rows))
            vectors = self._vectors(request.vectors, np.flatnonzero(has_vector))
            encoded = self._encoder.encode(vectors)
        flags = None if has_vector.all() else has_vector
        cells, terms, codes = (spread(array, flags) for array in encoded)
        return flags, spread_vectors(vectors, flags), (cells, terms, codes)

    def delete(self, request: Delete, state: State) -> Record:
        """Return the record of a deletion; ids that no point has are left out.

        Raises `InvalidArgumentError` and `ConditionFailedError`.
        """
        check_sequence(request.if_sequence, state)
        if request.ids is None and request.condition is None:
            raise invalid("ids", "must be given if there is no filter")
        rows: IntArray | None = None
        if request.ids is not None:
            ids = as_ids(request.ids)
            if len(ids) > LIMITS["delete_ids_max"]:
                most = LIMITS["delete_ids_max"]
                raise invalid("ids", f"must be at most {most}, got {len(ids)}")
            rows = state.ids().rows_of(ids)
            rows = rows[rows >= 0]
        if request.condition is not None:
            flags = state.flags(request.condition)
            rows = np.flatnonzero(flags) if rows is None else rows[flags[rows]]
        assert rows is not None  # noqa: S101  # one of the two was given
        return Record(None, np.unique(state.keys_of(rows)), request.write_id)

    def encode(self, rows: Rows) -> Rows:
        """Return rows with the cells, scan terms and codes that this encoder gives them."""
        encoded = self._encoder.encode(rows.vectors[rows.with_vector])
        cells, terms, codes = (spread(array, rows.has_vector) for array in encoded)
        return replace(rows, cells=cells, terms=terms, codes=codes)

    def _find(self, ids: Any, live: LiveIds) -> tuple[IntArray, tuple[bytes, ...], IntArray]:  # noqa: ANN401
        """Return keys (m,), text ids, and rows (m,) with -1 for new ids."""
        ids = as_ids(ids)
        if live.kind == "int64":
            keys = as_integers(ids, "ids")
            if len(keys) and keys.min() < 0:
                raise invalid("ids", f"must not be negative, got {keys.min()}")
            _check_different(keys, [str(key) for key in keys.tolist()])
            return keys, (), live.rows_of_keys(keys)
        if len(ids) and not is_texts(ids):
            raise invalid("ids", "must be texts, as the ids of this index are")
        texts = tuple(encode_texts(ids))
        pairs = [live.row_of_text(text) for text in texts]
        keys = np.array([key for _, key in pairs], np.int64)
        if len(set(texts)) == len(texts):
            keys = _with_free_keys(keys, live)
        _check_different(keys, [text.decode() for text in texts])
        return keys, texts, np.array([row for row, _ in pairs], np.int64)

    def _has_vector(self, request: Upsert, count: int) -> Flags:
        """Return whether each point of a request gets a vector."""
        if request.has_vector is None:
            return np.ones(count, np.bool_)
        if len(request.has_vector) != count:
            rule = f"must have one row per id, {count}, got {len(request.has_vector)}"
            raise invalid("vectors", rule)
        if not self._manifest.parameters.vectors_optional and not request.has_vector.all():
            row = int(np.argmin(request.has_vector))
            hint = "; upsert(ids, attributes=...) keeps vectors"
            raise invalid("vectors", f"row {row} has no vector: {NEEDS_OPTION}{hint}")
        return request.has_vector

    def _vectors(self, values: object, numbers: IntArray) -> Vectors:
        """Return vectors (m, d), scaled for the metric.

        numbers: (m,) the numbers of their points in the request.

        Raises `InvalidArgumentError` with the field `vectors`.
        """
        if values is None:
            # All points lack a vector.
            return no_rows(self._manifest.dims, sparse=self._manifest.points == "sparse")
        rows = as_rows("vectors", values, self._manifest.dims, row_numbers=numbers)
        if isinstance(rows, SparseRows) != (self._manifest.points == "sparse"):
            kind = self._manifest.points
            raise invalid("vectors", f"must be {kind}, as the points of this index are")
        if len(rows) != len(numbers):
            raise invalid("vectors", f"must have one row per id, {len(numbers)}, got {len(rows)}")
        zero = prepare("vectors", rows, self._manifest.parameters.metric, row_numbers=numbers)
        if zero >= 0:
            raise invalid("vectors", f"row {numbers[zero]} is all zeros, which has no direction")
        return rows

    def _columns(
        self,
        columns: Mapping[Attribute, Column] | None,
        count: int,
        rows: IntArray,
        state: State,
        *,
        keeps: bool,
    ) -> dict[Attribute, Column]:
        """Return a column of each attribute; without new values, points may keep theirs."""
        columns = columns or {}
        for attribute, column in columns.items():
            if attribute not in self._manifest.attributes:
                raise unknown_attribute(attribute.name, self._manifest.attributes)
            check_column(attribute, column, count)
        old_values: Mapping[str, Sequence[Any]] = {}
        if keeps and len(columns) < len(self._manifest.attributes):
            old_values = _values_of(state, rows, self._manifest.attributes)
        result: dict[Attribute, Column] = {}
        for attribute in self._manifest.attributes:
            if attribute in columns:
                result[attribute] = columns[attribute]
            elif attribute.name in old_values:
                values = {attribute.name: old_values[attribute.name]}
                result |= _columns_from(values, self._manifest, count)
            else:
                result[attribute] = missing_column(attribute, count)
        check_row_bytes(result, count)
        return result

    def _payloads(
        self, payloads: object, count: int, rows: IntArray, state: State, *, keeps: bool
    ) -> tuple[bytes, ...]:
        if payloads is not None:
            return tuple(check_payloads(payloads, count))
        if not keeps:
            return ()
        has_point = rows >= 0
        stored = iter(state.reader().payloads(rows[has_point]))
        return tuple(next(stored, b"") if has else b"" for has in has_point.tolist())

    def _annotations(
        self, request: Upsert, count: int, rows: IntArray, state: State
    ) -> dict[str, Array]:
        kept: Annotations | None = None
        if request.keeps_vectors:
            # New points, which then have no vector, have none.
            has_point = rows >= 0
            kept = spread_annotations(annotations_of(state.parts, rows[has_point]), has_point)
        return complete(request.annotations, self._manifest, count, kept)


def _values_of(
    state: State, rows: IntArray, attributes: Sequence[Attribute]
) -> dict[str, list[Any]]:
    """Return the values of all attributes for `rows` (m,); a row of -1 has none."""
    missing = {a.name: () if a.multi else None for a in attributes}
    places = np.flatnonzero(rows >= 0)
    values: dict[str, list[Any]] = {n: [value] * len(rows) for n, value in missing.items()}
    for name, column in state.reader().values(rows[places]).items():
        for place, value in zip(places.tolist(), column, strict=True):
            values[name][place] = value
    return values


def check_sequence(expected: int | None, state: State) -> None:
    """Raise `ConditionFailedError` unless the last write has the number `expected`."""
    if expected is not None and expected != state.sequence:
        raise ConditionFailedError(
            "if_sequence", f"if_sequence is {expected}, but the last write is {state.sequence}"
        )


def _check_mode(
    request: Upsert,
    rows: IntArray,
    keys: IntArray,
    texts: Sequence[bytes],
    *,
    is_optional: bool,
) -> None:
    def name(place: int) -> str:
        return repr(texts[place].decode()) if texts else str(keys[place])

    absent, present = np.flatnonzero(rows < 0), np.flatnonzero(rows >= 0)
    if request.mode == "insert_only" and len(present):
        raise ConditionFailedError(
            "ids", f"id {name(present[0])} exists already, and the mode is insert_only"
        )
    if request.mode == "update_only" and len(absent):
        raise ConditionFailedError(
            "ids", f"there is no point with id {name(absent[0])}, and the mode is update_only"
        )
    if request.keeps_vectors and len(absent) and not is_optional:
        rule = f"vectors must be given for new points, such as id {name(absent[0])}"
        raise InvalidArgumentError("vectors", f"{rule}: {NEEDS_OPTION}")


def _check_different(keys: IntArray, names: Sequence[str]) -> None:
    order = np.argsort(keys, kind="stable")
    equal = np.flatnonzero(keys[order][1:] == keys[order][:-1])
    if len(equal):
        raise invalid("ids", f"must be unique, {names[order[equal[0]]]} occurs twice")


def _with_free_keys(keys: IntArray, live: LiveIds) -> IntArray:
    """Give different texts of one request different keys, if their hashes are equal."""
    if len(np.unique(keys)) == len(keys):
        return keys
    used_keys: set[int] = set()
    free_keys = keys.copy()
    for place in range(len(free_keys)):
        while int(free_keys[place]) in used_keys:
            free_keys[place] = live.free_key(int(free_keys[place]))
        used_keys.add(int(free_keys[place]))
    return free_keys
