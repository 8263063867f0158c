"""Writes the columns of a build into its store, one block of rows at a time.

id_texts.bytes, .ends            text ids in UTF-8; the array `ids` has their keys
id_order                         the rows in ascending order of their ids, unless ids ascend
attribute.I.values               numbers of attribute I (see `divgrpc.columns.values`)
attribute.I.ends                 end of each row's values, if the attribute is `multi`
attribute.I.order                places of the values in ascending order of the values
attribute.I.words.bytes, .ends   the texts that a keyword's numbers stand for
attribute.I.words.order          numbers of the keywords in ascending order of their texts
payload.bytes, .ends             payloads
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from divgrpc.arrays import Array
from divgrpc.columns.filters import Order, order_of, order_of_texts
from divgrpc.columns.ids import ID_ORDER, ID_TEXTS, ascends, keys_of, plain
from divgrpc.columns.reader import PAYLOAD, array_name
from divgrpc.columns.texts import BYTES, ENDS, Texts, TextWriter
from divgrpc.columns.values import DTYPES, Column
from divgrpc.errors import LimitExceededError, invalid
from divgrpc.parameters.limits import LIMITS
from divgrpc.types import IntArray
from divgrpc.types.records import Attribute

Mask = npt.NDArray[np.bool_] | slice


class RowStore(Protocol):
    """The methods of `divgrpc.storage.writers.Store` that rows need as they arrive."""

    def begin(self, name: str, dtype: Any, row_shape: tuple[int, ...], rows: int = 0) -> None:  # noqa: ANN401  # a dtype
        """Create an array for `append`."""

    def append(self, name: str, block: Array) -> None:
        """Append rows."""

    def read(self, name: str) -> Array:
        """Return the rows appended so far."""


class ColumnStore(RowStore, Protocol):
    """The methods of `divgrpc.storage.writers.Store` that columns need."""

    def create(self, name: str, dtype: Any, shape: tuple[int, ...]) -> Array:  # noqa: ANN401  # a dtype
        """Return a new array of this shape to be written in place."""


class ColumnWriter:
    """Writes text ids, attributes and payloads.

    store: takes the rows.
    attributes: the declarations. Every block has a column of each.
    first: number of the first attribute. The index may have others before it.
    has_texts, has_payloads: whether every block has text ids, and whether it has payloads.
    """

    def __init__(
        self,
        store: RowStore,
        attributes: Sequence[Attribute],
        *,
        first: int = 0,
        has_texts: bool = False,
        has_payloads: bool = False,
    ) -> None:
        self._store = store
        self._attributes = tuple(attributes)
        self._first = first
        self._ids = _begin_texts(store, ID_TEXTS) if has_texts else None
        self._payloads = _begin_texts(store, PAYLOAD) if has_payloads else None
        self._words: list[dict[str, int]] = [{} for _ in attributes]
        self._value_counts = [0 for _ in attributes]
        for number, attribute in enumerate(attributes):
            store.begin(self._name(number, "values"), DTYPES[attribute.type], ())
            if attribute.multi:
                store.begin(self._name(number, "ends"), np.int64, ())

    def append(
        self,
        mask: Mask,
        texts: Sequence[bytes],
        columns: Mapping[Attribute, Column],
        payloads: Sequence[bytes],
    ) -> None:
        """Append the rows that `mask` keeps."""
        if self._ids is not None:
            self._ids.append(keep_rows(texts, mask))
        if self._payloads is not None:
            self._payloads.append(keep_rows(payloads, mask))
        for number, attribute in enumerate(self._attributes):
            column = columns[attribute].take(mask, multi=attribute.multi)
            self._append_column(number, attribute, column)

    def words(self, number: int) -> tuple[str, ...]:
        """Return the texts that the numbers of an attribute stand for so far."""
        return tuple(self._words[number])

    def finish(
        self,
        store: ColumnStore,
        *,
        with_keys: bool = True,
        on_attribute: Callable[[int], None] | None = None,
    ) -> None:
        """Write what depends on all rows: words of keywords, orders, and keys of text ids.

        `store` has the rows. `with_keys`: whether to write the keys. `on_attribute` is called with
        the number of each attribute before its order is made. Raises `InvalidArgumentError` if a
        text id occurs twice.
        """
        for number in range(len(self._attributes)):
            if on_attribute is not None:
                on_attribute(number)
            self._write_words(store, number)
            write_value_order(store, self._first + number)
        if self._ids is not None and with_keys:
            stored = texts_in(store, ID_TEXTS)
            keys = keys_of([stored[row] for row in range(len(stored))])
            store.create("ids", np.int64, keys.shape)[:] = keys
            write_order(store, keys)

    def write_words(self, store: RowStore) -> None:
        """Write the texts that the numbers of keywords stand for."""
        for number in range(len(self._attributes)):
            self._write_words(store, number)

    def _write_words(self, store: RowStore, number: int) -> None:
        if self._attributes[number].type == "keyword":
            texts = [word.encode() for word in self._words[number]]
            _begin_texts(store, self._name(number, "words")).append(texts)
            _write(store, self._name(number, "words.order"), order_of_texts(texts))

    def _name(self, number: int, part: str) -> str:
        return array_name(self._first + number, part)

    def _append_column(self, number: int, attribute: Attribute, column: Column) -> None:
        values = column.values
        if attribute.type == "keyword":
            words = self._words[number]
            # Only words that rows of this block use get a number.
            used = np.unique(values[values >= 0]).tolist()
            numbers = np.full(len(column.words) + 1, -1, np.int32)  # the last is for missing values
            for place in used:
                numbers[place] = words.setdefault(column.words[place], len(words))
            values = numbers[values]
            if len(words) > LIMITS["keywords_max"]:
                most = LIMITS["keywords_max"]
                raise LimitExceededError(
                    f"attribute {attribute.name!r} has more than {most} different keywords"
                )
        self._store.append(self._name(number, "values"), values)
        if attribute.multi:
            ends = column.ends + self._value_counts[number]
            self._store.append(self._name(number, "ends"), ends)
            self._value_counts[number] += len(values)


def texts_in(store: ColumnStore, name: str) -> Texts:
    """Return the texts that were written to a store so far."""
    return Texts({part: store.read(part) for part in (name + BYTES, name + ENDS)}, name)


def write_value_order(store: ColumnStore, number: int) -> None:
    """Write the places of the values of an attribute in ascending order of the values."""
    values = store.read(array_name(number, "values"))
    _write(store, array_name(number, "order"), order_of(values))


def _begin_texts(store: RowStore, name: str) -> TextWriter:
    store.begin(name + BYTES, np.uint8, ())
    store.begin(name + ENDS, np.int64, ())
    return TextWriter(store.append, name)


def _write(store: RowStore, name: str, order: Order) -> None:
    store.begin(name, order.dtype, ())
    store.append(name, order)


def write_order(store: ColumnStore, ids: IntArray) -> None:
    """Write the rows in ascending order of their ids, unless the ids ascend.

    Raises `InvalidArgumentError` if an id occurs twice.
    """
    if ascends(ids):
        return
    order = np.argsort(ids)
    ascending = ids[order]
    equal = np.flatnonzero(ascending[1:] == ascending[:-1])
    if len(equal):
        raise invalid("ids", f"must be unique, {ascending[equal[0]]} occurs twice")
    store.create(ID_ORDER, np.int64, order.shape)[:] = order


def check_payloads(payloads: object, rows: int) -> list[bytes]:
    """Return payloads as bytes, one per row; None is b"", and texts are encoded as UTF-8.

    Raises `InvalidArgumentError` with the field `payloads`.
    """
    payloads = plain(payloads)
    if isinstance(payloads, str | bytes) or not isinstance(payloads, Sequence | np.ndarray):
        raise invalid("payloads", "must be a list with the bytes of each row")
    if len(payloads) != rows:
        raise invalid("payloads", f"must have one entry per row, {rows}, got {len(payloads)}")
    return [_payload(item) for item in payloads]


def _payload(item: object) -> bytes:
    if item is None:
        return b""
    if isinstance(item, str):
        item = item.encode(errors="surrogatepass")
    if not isinstance(item, bytes | bytearray | memoryview):
        hint = ": json.dumps makes a text" if isinstance(item, dict | list) else ""
        raise invalid("payloads", f"must be bytes, texts or None, got {type(item).__name__}{hint}")
    if len(item) > LIMITS["payload_bytes_max"]:
        most = LIMITS["payload_bytes_max"]
        raise invalid("payloads", f"must have at most {most} bytes each, got {len(item)}")
    return bytes(item)


def keep_rows(items: Sequence[bytes], mask: Mask) -> Sequence[bytes]:
    """Return the items of the rows that `mask` keeps."""
    if isinstance(mask, slice):
        return items[mask]
    return [item for item, keep in zip(items, mask.tolist(), strict=True) if keep]
