"""Points of a part of an index: those of a shard, or those that shards have sent to a router."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from divgrpc.arrays import Array
from divgrpc.columns.annotations import INDICES, INDPTR
from divgrpc.columns.reader import PAYLOAD, RowReader
from divgrpc.columns.texts import BYTES, ENDS, Texts
from divgrpc.errors import invalid
from divgrpc.quotas.bounds import Bounds, QuotaColumn
from divgrpc.quotas.completions import Signatures
from divgrpc.search.arrays import points_of
from divgrpc.search.passing import PassingRows
from divgrpc.sharding import layouts
from divgrpc.sharding.cutting import columns_of_rows, values_of_rows
from divgrpc.sharding.messages import Buffer
from divgrpc.storage.manifest import Manifest
from divgrpc.stored_points import StoredPoints
from divgrpc.types import IntArray
from divgrpc.types.quotas import Quota
from divgrpc.types.records import Parts, SparseVectors
from divgrpc.vectors import Rows

# Records with nothing but ids, and with one part beside them, in the order of `Parts`.
_NO_PARTS: Final = Parts(attributes=False, payload=False)
_ONE_PART: Final = tuple(_NO_PARTS._replace(**{name: True}) for name in Parts._fields)


class PartPoints(StoredPoints):
    """Stored points, in the arrays of a generation."""

    def __init__(self, manifest: Manifest, arrays: Mapping[str, Array], rows: int) -> None:
        """Take arrays that have the columns of `rows` points, or those that are to be read."""
        self.manifest, self.rows, self.dims = manifest, rows, manifest.dims
        self.generation, self.sequence = manifest.generation, 0
        self._arrays = dict(arrays)
        self._reader = RowReader(arrays, rows, manifest.attributes)
        self._has_texts = manifest.id_kind == "string"
        self._visible = None
        description = layouts.describe_reply(
            manifest.attributes, has_texts=self._has_texts, has_payloads=manifest.has_payloads
        )
        self._layout = layouts.get_reply(description, tuple(manifest.arrays))

    @property
    def _points(self) -> Rows:
        return points_of(self._arrays, self.dims)

    def get(self, message: Buffer) -> bytes:
        """Answer a `GET_REQUEST`; raises `InvalidArgumentError` for a malformed one."""
        request = layouts.GET_REQUEST.unpack(message)
        flags = request["parts"].tolist()
        if len(flags) != len(Parts._fields):
            raise invalid("message", f"must have {len(Parts._fields)} parts, got {len(flags)}")
        rows = self._rows_requested(request)
        places = np.flatnonzero(rows >= 0)
        rows = rows[places]
        columns = self._columns(rows, Parts(*map(bool, flags)))
        columns |= {"places": places.astype(np.int32), "sizes": self._sizes(rows)}
        return self._layout.pack(columns | {"ids": self._reader.ids.keys_of_rows(rows)})

    def scroll(self, message: Buffer, passing: PassingRows | None) -> bytes:
        """Answer a `SCROLL_REQUEST`; `passing` are the points that pass its filter."""
        request = layouts.SCROLL_REQUEST.unpack(message)
        after, count = request["after"], request["count"]
        if len(after) != 1 or len(count) != 1 or after[0] < -1 or count[0] < 0:
            raise invalid("message", "must have a key and a number of points")
        rows, keys = self.following(int(after[0]), min(int(count[0]), self.rows), passing)
        return layouts.SCROLL_REPLY.pack({"ids": keys, "sizes": self._sizes(rows)})

    def values_of(self, passing: PassingRows, numbers: npt.NDArray[np.int32]) -> dict[str, Array]:
        """Return the different values of some attributes, for a reply to a `COUNT_REQUEST`.

        numbers: (a,) the numbers of the attributes. passing: at least one point.

        Raises `InvalidArgumentError` for a number that no attribute has.
        """
        names = [self.manifest.attributes[number].name for number in self._check(numbers)]
        rows = np.flatnonzero(passing.flags)
        rows = rows[np.argsort(self._reader.ids.keys_of_rows(rows))]
        columns = tuple(QuotaColumn(*self._reader.numbers(name, rows)) for name in names)
        quotas = tuple(Quota(name, max_each=1) for name in names)
        signatures = Signatures.of(Bounds.of(quotas, columns, 1).arrays)
        firsts = rows[signatures.firsts]
        values = self.values_at(firsts, numbers)
        keys = self._reader.ids.keys_of_rows(firsts)
        return values | {"keys": keys, "members": signatures.counts}

    def values_at(
        self, rows: npt.NDArray[np.integer[Any]], numbers: npt.NDArray[np.int32]
    ) -> dict[str, Array]:
        """Return the arrays of the attributes with some numbers for rows (m,).

        numbers: (a,), at least one; `layouts.TEXTS` stands for the text ids of the rows.

        Raises `InvalidArgumentError` for a number that no attribute has, and for text ids of an
        index without.
        """
        attributes, columns = self.manifest.attributes, dict[str, Array]()
        if layouts.TEXTS in numbers:
            if self.manifest.id_kind != "string":
                raise invalid("message", "asks for text ids, which the index does not have")
            columns = self._columns(rows.astype(np.int64), _NO_PARTS)
            numbers = numbers[numbers != layouts.TEXTS]
        if len(numbers):
            columns |= values_of_rows(attributes, self._arrays, rows, self._check(numbers))
        return columns

    def _check(self, numbers: npt.NDArray[np.int32]) -> list[int]:
        """Return different numbers of attributes; raises `InvalidArgumentError`."""
        if numbers.min() < 0 or numbers.max() >= len(self.manifest.attributes):
            raise invalid("message", "has an attribute that does not exist")
        return sorted(set(numbers.tolist()))

    def count_topics(self, passing: PassingRows | None) -> bytes:
        """Answer a `TOPICS_REQUEST`; `passing` are the points that pass its filter."""
        rows = np.arange(self.rows) if passing is None else np.flatnonzero(passing.flags)
        categories, subtopics = self._topics_at(rows).values()
        has_category = categories >= 0
        # One number for a pair: sub-topics are below 2**31, and from -1 up.
        pairs = categories[has_category].astype(np.int64) << 32 | (
            np.maximum(subtopics[has_category].astype(np.int64), -1) + 1
        )
        pairs, counts = np.unique(pairs, return_counts=True)
        columns: dict[str, Array] = {
            "categories": (pairs >> 32).astype(np.int32),
            "subtopics": ((pairs & 0xFFFFFFFF) - 1).astype(np.int32),
            "counts": counts,
        }
        return layouts.TOPICS_REPLY.pack(columns)

    def categories_at(self, rows: IntArray) -> bytes:
        """Return the `CATEGORIES_REPLY` about some rows."""
        ids = self._reader.ids.keys_of_rows(rows)
        return layouts.CATEGORIES_REPLY.pack({"ids": ids, **self._topics_at(rows)})

    def _topics_at(self, rows: IntArray) -> dict[str, Array]:
        """Return the categories and the sub-topics of some rows, -1 for none."""
        none = np.full(len(rows), -1, np.int32)
        arrays = ((name, self._arrays.get(name)) for name in ("categories", "subtopics"))
        return {name: none if array is None else array[rows] for name, array in arrays}

    def count_labels(self, passing: PassingRows | None) -> bytes:
        """Answer a `LABELS_REQUEST`; `passing` are the points that pass its filter."""
        labels = self._arrays.get(INDICES, np.empty(0, np.int32))
        if passing is not None and INDPTR in self._arrays:
            labels = self._annotations(np.flatnonzero(passing.flags))[INDICES]
        counts = np.bincount(labels)
        present = np.flatnonzero(counts)
        return layouts.LABELS_REPLY.pack({"labels": present, "counts": counts[present]})

    def _rows_requested(self, request: Mapping[str, Array]) -> IntArray:
        """Return the row of each id of a `GET_REQUEST`, -1 for an id that no point has."""
        ends, size = request["ends"], len(request["texts"])
        if not len(ends):
            return self._reader.ids.rows_of_keys(request["ids"])
        starts = np.concatenate(([0], ends))
        if (np.sort(starts) != starts).any() or starts[-1] != size:
            raise invalid("message", "has texts with impossible ends")
        texts = Texts({"ids" + BYTES: request["texts"], "ids" + ENDS: ends}, "ids")
        try:
            ids = [text.decode() for text in texts.take(np.arange(len(texts)))]
        except UnicodeDecodeError as error:
            raise invalid("message", "has texts that are not UTF-8") from error
        return self._reader.ids.rows_of(ids, "message")

    def _columns(self, rows: IntArray, parts: Parts) -> dict[str, Array]:
        """Return the text ids of some rows, and the columns of the parts."""
        arrays = dict(self._arrays)
        if not parts.payload:
            arrays.pop(PAYLOAD + ENDS, None)
        attributes = self.manifest.attributes if parts.attributes else ()
        columns = columns_of_rows(attributes, arrays, rows)
        if parts.labels:
            columns |= self._annotations(rows)
        if parts.vectors:
            vectors = self._vectors(rows)
            if isinstance(vectors, SparseVectors):
                columns |= {"indptr": vectors.indptr, "indices": vectors.indices}
                columns["values"] = vectors.values
            else:
                columns["vectors"] = vectors
        return columns

    def _sizes(self, rows: IntArray) -> IntArray:
        """Return the sizes (m, 5) of some rows."""
        alone = self.bytes_of_rows(rows, _NO_PARTS)
        further = (self.bytes_of_rows(rows, parts) - alone for parts in _ONE_PART)
        return np.stack([alone, *further], axis=1)
