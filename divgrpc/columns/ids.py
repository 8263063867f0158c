"""Ids of points, and the rows that have them.

An index has either integer ids or texts. Kernels know integers only, so each text has an integer
key: 63 bits of its BLAKE2b hash. If two texts have the same hash, the smaller text keeps it, and
the other text takes the next key that is free. So the key of a text depends on the set of texts,
and not on their order.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from divgrpc.arrays import Array
from divgrpc.columns.texts import ENDS, Texts
from divgrpc.errors import invalid
from divgrpc.parameters.limits import LIMITS
from divgrpc.types import IntArray
from divgrpc.types.records import IdArray, IdKind

# Name of the two arrays of texts, and of the array of rows in ascending order of their ids.
ID_TEXTS: Final = "id_texts"
ID_ORDER: Final = "id_order"
_KEY_MASK: Final = 2**63 - 1
_ABSENT: Final = -1
# A text whose hash another text has is sought until so many keys are free. That two keys in a row
# are taken is unlikely even among billions of points.
_MISSES_MAX: Final = 32
# Maximum number of bytes of an integer, or of what precedes a text, in a message.
_ID_BYTES: Final = 10


def plain(column: Any) -> Any:  # noqa: ANN401  # any sequence
    """Return a column of pandas, polars or pyarrow as an array, and anything else unchanged."""
    return column.to_numpy() if hasattr(column, "to_numpy") else column


def as_ids(ids: Any, field: str = "ids") -> Any:  # noqa: ANN401  # one id or several
    """Return one id as a list of it, and several as a sequence or an array.

    Raises `InvalidArgumentError` with the field `field` for anything else.
    """
    if isinstance(ids, int | str | np.integer):
        return [ids]
    ids = plain(ids)
    if isinstance(ids, bytes) or not isinstance(ids, Sequence | np.ndarray):
        raise invalid(field, f"must be an id or a list of ids, got {type(ids).__name__}")
    return ids


def has_vectors(shown: Any) -> bool:  # noqa: ANN401  # ids or vectors
    """Whether points are given as vectors: rows of numbers, dense or sparse, rather than ids."""
    if hasattr(shown, "tocsr") or hasattr(shown, "indptr"):
        return True
    shown = plain(shown)
    if isinstance(shown, np.ndarray):
        return shown.ndim > 1
    is_list = isinstance(shown, Sequence) and not isinstance(shown, str | bytes) and len(shown) > 0
    return is_list and (hasattr(shown[0], "tocsr") or np.ndim(shown[0]) > 0)


def is_texts(ids: object) -> bool:
    """Whether `ids` are texts: a sequence or an array whose first item is a text."""
    if isinstance(ids, np.ndarray):
        return ids.dtype.kind in "UT" or (ids.dtype.kind == "O" and _begins_with_text(ids.ravel()))
    return _begins_with_text(ids)


def _begins_with_text(ids: Any) -> bool:  # noqa: ANN401  # any sequence
    try:
        return len(ids) > 0 and isinstance(ids[0], str)
    except (TypeError, KeyError, IndexError):
        return False


def encode_texts(ids: Iterable[object], field: str = "ids") -> list[bytes]:
    """Return text ids as UTF-8; raises `InvalidArgumentError` with the field `field`."""
    most = LIMITS["id_bytes_max"]
    texts = []
    for row, text in enumerate(ids):
        if not isinstance(text, str):
            rule = "must be all texts or all integers"
            raise invalid(field, f"{rule}, got {text!r:.80} in row {row}")
        try:
            encoded = text.encode()
        except UnicodeEncodeError:
            rule = "must be valid Unicode"
            raise invalid(field, f"{rule}, got {text!r:.80} in row {row}") from None
        if not 0 < len(encoded) <= most:
            sentence = f"must have 1 to {most} bytes each as UTF-8, got {len(encoded)}"
            raise invalid(field, f"{sentence} in row {row} ({text[:40]!r})")
        texts.append(encoded)
    return texts


def hash_of(text: bytes) -> int:
    """Return the hash of a text, from 0 to 2**63 - 1."""
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little") & _KEY_MASK


def next_key(key: int) -> int:
    """Return the key to try for a text if another text has `key`."""
    return (key + 1) & _KEY_MASK


def hashes_of(texts: Sequence[bytes]) -> IntArray:
    """Return the hashes (n,) of texts."""
    return np.fromiter(map(hash_of, texts), np.int64, len(texts))


def keys_of(texts: Sequence[bytes]) -> IntArray:
    """Return the keys (n,) of the texts of a build.

    Raises `InvalidArgumentError` if a text occurs twice.
    """
    (keys,) = keys_of_parts([hashes_of(texts)], lambda _, row: texts[row])
    return keys


def keys_of_parts(
    hashes: Sequence[IntArray], text_at: Callable[[int, int], bytes]
) -> Sequence[IntArray]:
    """Return the keys of the texts of a build that are in several parts.

    hashes: (m,) for each part, the hashes of its texts. Texts with the same hash are in one part.
    text_at: returns the text with a number of a part.

    Returns `hashes` unless two texts have the same one, which is rare. Raises
    `InvalidArgumentError` if a text occurs twice.
    """
    shared: list[tuple[int, int, list[int]]] = []
    for part, hashes_of_part in enumerate(hashes):
        for rows in _rows_with_equal(hashes_of_part):
            rows.sort(key=lambda row: text_at(part, row))  # called at once
            texts = [text_at(part, row) for row in rows]
            for before, text in pairwise(texts):
                if before == text:
                    raise invalid("ids", f"must be unique, {text.decode()!r} occurs twice")
            shared.append((int(hashes_of_part[rows[0]]), part, rows))
    if not shared:
        return hashes
    keys, used = [np.array(part) for part in hashes], set(np.concatenate(hashes).tolist())
    for key, part, rows in sorted(shared):
        for row in rows[1:]:
            free = key
            while free in used:
                free = next_key(free)
            used.add(free)
            keys[part][row] = free
    return keys


def _rows_with_equal(hashes: IntArray) -> Iterator[list[int]]:
    """Yield the rows of each hash that several rows have."""
    order = np.argsort(hashes, kind="stable")
    ascending = hashes[order]
    for key in np.unique(ascending[1:][ascending[1:] == ascending[:-1]]).tolist():
        first, last = np.searchsorted(ascending, [key, key + 1])
        yield order[first:last].tolist()


def ascends(keys: IntArray) -> bool:
    """Whether each key is greater than the key before it."""
    return bool((keys[1:] > keys[:-1]).all())


class Ids:
    """The ids of the points of one generation."""

    def __init__(self, arrays: Mapping[str, Array], rows: int) -> None:
        """Read the ids of `rows` points from the arrays of a generation."""
        self._rows = rows
        self._keys = arrays.get("ids")
        self._texts = Texts(arrays, ID_TEXTS) if ID_TEXTS + ENDS in arrays else None
        # None if the ids ascend.
        self._order: IntArray | None = arrays.get(ID_ORDER)
        if self._order is None and self._keys is not None and not ascends(self._keys):
            self._order = np.argsort(self._keys)  # an index of an older version

    @property
    def kind(self) -> IdKind:
        """The kind of the ids."""
        return "int64" if self._texts is None else "string"

    def of_rows(self, rows: IntArray) -> IdArray:
        """Return the ids of `rows` (m,)."""
        if self._texts is not None:
            return self.of_results(rows)
        return rows if self._keys is None else self._keys[rows]

    def of_results(self, rows: IntArray) -> npt.NDArray[np.object_]:
        """Return the text ids of `rows`, an array of any shape; "" for the padding of -1."""
        assert self._texts is not None  # noqa: S101  # callers check
        if not rows.size or not len(self._texts):
            return np.full(rows.shape, "", object)
        flat = rows.ravel()
        has_padding = bool(flat.min() < 0)
        texts = [text.decode() for text in self._texts.take(np.maximum(flat, 0))]
        if has_padding:
            texts = ["" if row < 0 else t for row, t in zip(flat.tolist(), texts, strict=True)]
        return np.array(texts, object).reshape(rows.shape)

    def bytes_of_rows(self, rows: IntArray) -> IntArray:
        """Return an upper bound of the bytes that the id of each row takes in a message."""
        if self._texts is None:
            return np.full(len(rows), _ID_BYTES)
        return self._texts.lengths(rows) + _ID_BYTES

    def rows_of(self, ids: Sequence[int | str] | IdArray, field: str = "ids") -> IntArray:
        """Return the row of each id (m,), -1 for an id that no point has.

        Raises `InvalidArgumentError` with the field `field` for ids of another kind.
        """
        if self._texts is None:
            return self.rows_of_keys(as_integers(ids, field))
        if len(ids) and not is_texts(ids):
            raise invalid(field, "must be texts, as the ids of this index are")
        return self._rows_of_texts(encode_texts(ids, field))

    def rows_of_keys(self, keys: IntArray) -> IntArray:
        """Return the row of each integer id, or of each key of a text; -1 where there is none."""
        if self._keys is None:
            return np.where((keys >= 0) & (keys < self._rows), keys, _ABSENT)
        if not keys.size or not len(self._keys):
            return np.full(keys.shape, _ABSENT)
        places = np.searchsorted(self._keys, keys, sorter=self._order)
        places = np.minimum(places, self._rows - 1)
        rows = places if self._order is None else self._order[places]
        return np.where(self._keys[rows] == keys, rows, _ABSENT)

    def keys_of_rows(self, rows: IntArray) -> IntArray:
        """Return the integer id, or the key of the text id, of each row (m,)."""
        return rows if self._keys is None else self._keys[rows]

    def after(self, key: int, count: int) -> tuple[IntArray, IntArray]:
        """Return the rows and the keys of the next `count` keys above `key`, ascending."""
        if self._keys is None:
            rows = np.arange(key + 1, min(self._rows, key + 1 + count))
            return rows, rows
        start = int(np.searchsorted(self._keys, key, side="right", sorter=self._order))
        stop = min(self._rows, start + count)
        rows = np.arange(start, stop) if self._order is None else self._order[start:stop]
        return rows, self._keys[rows]

    def _rows_of_texts(self, texts: list[bytes]) -> IntArray:
        assert self._texts is not None  # noqa: S101  # callers check
        rows = self.rows_of_keys(np.fromiter(map(hash_of, texts), np.int64, len(texts)))
        stored = self._texts.take(np.maximum(rows, 0))
        for place, row in enumerate(rows.tolist()):
            # Two texts may have the same hash.
            if row >= 0 and stored[place] != texts[place]:
                rows[place] = self._row_of_text(texts[place])
        return rows

    def _row_of_text(self, text: bytes) -> int:
        assert self._texts is not None  # noqa: S101  # callers check
        key, misses = hash_of(text), 0
        # On a shard, the keys in between may be those of points of other shards.
        while misses <= _MISSES_MAX:
            row = int(self.rows_of_keys(np.array([key]))[0])
            if row == _ABSENT:
                misses += 1
            elif self._texts[row] == text:
                return row
            key = next_key(key)
        return _ABSENT


def as_integers(ids: object, field: str) -> IntArray:
    """Return integer ids (n,) int64; raises `InvalidArgumentError` with the field `field`."""
    if isinstance(ids, Sequence | np.ndarray) and len(ids) and is_texts(ids):
        raise invalid(field, "must be integers, as the ids of this index are")
    try:
        numbers = np.asarray(ids)
        if numbers.size == 0:
            return np.empty(0, np.int64)
        if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
            raise invalid(field, "must be a list of integers below 2**63")
        return numbers.astype(np.int64)
    except (TypeError, ValueError, OverflowError):
        raise invalid(field, "must be a list of integers") from None
