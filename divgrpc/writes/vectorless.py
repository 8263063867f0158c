"""Points without a vector, in a new generation.

A generation has only points with vectors, because its arrays are trained on them. The other points
are rows of the first layout of its writes, which Build and each renewal then make. So searches see
them no more than deleted points, and later writes treat all points alike.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from divgrpc.arrays import Array
from divgrpc.builder.builder import IndexBuilder, integer_column
from divgrpc.builder.labels import check_label_sets
from divgrpc.columns.absence import split_vectors
from divgrpc.columns.annotations import INDICES, INDPTR, Annotations, AnnotationWriter, take
from divgrpc.columns.filters import Flags
from divgrpc.columns.ids import (
    Ids,
    as_integers,
    encode_texts,
    is_texts,
    keys_of,
    next_key,
    plain,
)
from divgrpc.columns.reader import PAYLOAD, array_name
from divgrpc.columns.texts import BYTES, ENDS, Texts
from divgrpc.columns.values import (
    Column,
    check_column,
    check_row_bytes,
    missing_column,
    rows_of_column,
)
from divgrpc.columns.writer import ColumnWriter, check_payloads
from divgrpc.engine import Engine
from divgrpc.errors import invalid
from divgrpc.parameters import BuildParameters
from divgrpc.storage.arrays import ArrayFolder
from divgrpc.storage.generations import Generation, Staging, open_generation
from divgrpc.storage.writers import Store
from divgrpc.types import IntArray
from divgrpc.types.records import Attribute
from divgrpc.vectors import SparseRows
from divgrpc.writes.columns import Parts, StreamedPart
from divgrpc.writes.layout import Source
from divgrpc.writes.records import Rows, rows_of_columns
from divgrpc.writes.target import WriteTarget

_BLOCK_ROWS: Final = 65_536
_TOPICS: Final = ("categories", "subtopics")


@dataclass(frozen=True, slots=True)
class VectorlessRows:
    """Rows without a vector, which follow those of a generation.

    keys: (m,) their keys. `blocks` yields them in blocks, each time that it is called.
    """

    keys: IntArray
    blocks: Callable[[], Iterator[Rows]]

    def behind(self, source: Source, generation: Generation) -> Source:
        """Return the rows of a generation, and these rows behind them."""
        count, first = len(self.keys), len(source.alive)
        if not count:
            return source
        arrays = dict(source.arrays)
        if "indptr" in arrays:
            # These rows store no values.
            ends = np.full(count, arrays["indptr"][first])
            arrays["indptr"] = np.concatenate((arrays["indptr"], ends))
        manifest = generation.manifest
        part = StreamedPart(first, count, self.blocks, manifest.attributes)
        places = np.full(count, -1, np.int32)
        keys = np.concatenate((source.arrays["ids"], self.keys))
        has_neighbours = bool((np.diff(np.sort(keys)) == 1).any())
        return replace(
            source,
            alive=np.ones(first + count, np.bool_),
            has_vector=np.arange(first + count) < first,
            places=np.concatenate((source.places, places)),
            cells=np.concatenate((source.cells, places)) if len(source.cells) else source.cells,
            arrays=arrays | {"ids": keys},
            displaced=source.displaced or (manifest.id_kind == "string" and has_neighbours),
            parts=Parts([*source.parts, part]),
        )


def _kept(entries: Any, flags: Flags) -> Any:  # noqa: ANN401  # an array, a list or None
    """Return the entries whose flag is set."""
    if entries is None or isinstance(entries, np.ndarray | SparseRows):
        return entries if entries is None else entries[flags]
    return [entry for entry, flag in zip(entries, flags.tolist(), strict=True) if flag]


def _checked_ids(ids: Any, numbers: IntArray) -> Any:  # noqa: ANN401  # texts or integers
    """Return the ids of rows, by default `numbers` (m,); raises `InvalidArgumentError`."""
    ids = plain(ids)
    if ids is None:
        return numbers
    if not is_texts(ids):
        return as_integers(ids, "ids")
    encode_texts(ids)
    return ids


def _stored(annotations: Mapping[str, Any]) -> Annotations:
    """Return labels, categories and sub-topics by the names of their arrays."""
    arrays: dict[str, Array] = {n: v for n in _TOPICS if (v := annotations[n]) is not None}
    if (sets := annotations["labels"]) is not None:
        arrays |= {INDPTR: sets.indptr, INDICES: sets.indices}
    return arrays


def column_of(arrays: Mapping[str, Array], number: int, attribute: Attribute) -> Column:
    """Return the stored values of an attribute, the one with this number, of all rows."""
    ends = np.empty(0, np.int64)
    words: tuple[str, ...] = ()
    if attribute.multi:
        ends = arrays[array_name(number, "ends")]
    if attribute.type == "keyword":
        texts = Texts(arrays, array_name(number, "words"))
        words = tuple(texts[place].decode() for place in range(len(texts)))
    return Column(arrays[array_name(number, "values")], ends, words)


class VectorlessPoints:
    """Points without a vector that a build takes.

    store: the store of the build, whose scratch store has the points until the build ends.
    parameters: those of the build.
    attributes: the declarations of the attributes.
    """

    def __init__(
        self, store: Store, parameters: BuildParameters, attributes: Iterable[Attribute]
    ) -> None:
        self._store, self._attributes = store, tuple(attributes)
        self._is_allowed = parameters.vectors_optional
        # Number of rows of the build so far, with vectors or without.
        self._rows_taken = 0
        # The annotations that all rows have; None before the first rows.
        self._kinds: set[str] | None = None
        self._label_count: int | None = None
        self._numbers: list[IntArray] = []
        self._texts: list[bytes] = []
        self._scratch: ArrayFolder | None = None

    @property
    def has_any(self) -> bool:
        """Whether there are such points."""
        return self._scratch is not None

    def append_all(self, builder: IndexBuilder, vectors: Any, rows: Mapping[str, Any]) -> None:  # noqa: ANN401  # what callers pass
        """Take the points without a vector, and pass the others to `builder`.

        vectors, rows: as for `take`; None in a list of vectors is a point without one.
        """
        present, has_vector = split_vectors(vectors)
        if has_vector is None:
            builder.append_all(vectors, **rows)
            return
        present, rows = self.take(present, has_vector, rows)
        if present is not None:
            builder.append(present, **rows)

    def take(
        self,
        vectors: Any,  # noqa: ANN401  # what callers pass
        has_vector: Flags | None,
        rows: Mapping[str, Any],
    ) -> tuple[Any, dict[str, Any]]:
        """Take the points without a vector; return vectors and arguments of the other points.

        vectors: the vectors that are there; None if there are none.
        has_vector: (m,) whether each row has one; None if all have.
        rows: the arguments of `IndexBuilder.append` with an entry for each row.

        Raises `InvalidArgumentError` with the name of the argument as the field.
        """
        if has_vector is None:
            has_vector = np.ones(len(vectors), np.bool_)
        count = len(has_vector)
        numbers = np.arange(self._rows_taken, self._rows_taken + count)
        if not self._is_allowed:
            for row in numbers[~has_vector][:1].tolist():
                rule = "with vectors_optional, such points are kept"
                raise invalid("vectors", f"row {row} has no vector: {rule}")
            self._rows_taken += count
            return vectors, dict(rows)
        ids = _checked_ids(rows["ids"], numbers)
        self._rows_taken += count
        columns, payloads = rows["columns"] or {}, plain(rows["payloads"])
        for name, column in (("ids", ids), ("payloads", payloads)):
            if column is not None and len(column) != count:
                rule = f"must have one entry per row, {count}, got {len(column)}"
                raise invalid(name, rule)
        annotations = self._annotations(rows, count)
        self._append(
            _kept(ids, ~has_vector),
            {a: column.take(~has_vector, multi=a.multi) for a, column in columns.items()},
            _kept(payloads, ~has_vector),
            {name: _kept(values, ~has_vector) for name, values in annotations.items()},
            numbers[~has_vector],
        )
        kept_columns = {a: c.take(has_vector, multi=a.multi) for a, c in columns.items()}
        kept = {"ids": _kept(ids, has_vector), "payloads": _kept(payloads, has_vector)}
        kept |= {name: _kept(values, has_vector) for name, values in annotations.items()}
        kept |= {"columns": kept_columns, "row_numbers": numbers[has_vector]}
        return vectors, {**rows, **kept}

    def _annotations(self, rows: Mapping[str, Any], count: int) -> dict[str, Any]:
        """Return the labels, categories and sub-topics of `count` rows, None for those not given.

        Raises `InvalidArgumentError` if the rows have other kinds than those before them.
        """
        annotations: dict[str, Any] = {name: rows.get(name) for name in (*_TOPICS, "labels")}
        for name in _TOPICS:
            if annotations[name] is not None:
                annotations[name] = integer_column(name, annotations[name], count)
        if annotations["labels"] is not None:
            sets = check_label_sets(annotations["labels"], count, self._label_count)
            annotations["labels"], self._label_count = sets, sets.dims
        kinds = {name for name, values in annotations.items() if values is not None}
        if self._kinds is None:
            self._kinds = kinds
        for name in sorted(kinds ^ self._kinds):
            raise invalid(name, "must come with every row or with none")
        return annotations

    def _append(
        self,
        ids: Sequence[str] | IntArray,
        columns: Mapping[Attribute, Column],
        payloads: object,
        annotations: Mapping[str, Any],
        numbers: IntArray,
    ) -> None:
        """Store points without a vector; error messages name rows by `numbers` (m,)."""
        count = len(ids)
        if not count:
            return
        if self._scratch is None:
            if not isinstance(self._store, Staging):
                raise invalid("path", "must be given: points without a vector need a folder")
            self._scratch = self._store.scratch("scratch")
            self._store.on_whole = self.begin_writes
            self._writer = ColumnWriter(self._scratch, self._attributes, has_payloads=True)
            self._annotation_writer = AnnotationWriter(self._scratch, _stored(annotations))
        if is_texts(ids):
            self._texts += encode_texts(ids)
        else:
            self._numbers.append(as_integers(ids, "ids"))
        if self._texts and self._numbers:
            raise invalid("ids", "must be all texts or all integers")
        block = {a: columns.get(a) or missing_column(a, count) for a in self._attributes}
        for attribute, column in block.items():
            check_column(attribute, column, count)
        check_row_bytes(block, count, numbers)
        stored_payloads = check_payloads([None] * count if payloads is None else payloads, count)
        self._writer.append(slice(None), (), block, stored_payloads)
        self._annotation_writer.append(_stored(annotations))

    def begin_writes(self, folder: Path) -> None:
        """Make the writes of a generation, which is complete in `folder`, with these points."""
        if self._scratch is None:
            return
        self._writer.finish(self._scratch)
        arrays = self._arrays(self._scratch)
        annotations = {n: self._scratch.read(n) for n in self._annotation_writer.names}
        self._scratch.discard()
        if isinstance(self._store, Staging):
            # A cycle of references would keep the removed files mapped, and so on the disk.
            self._store.on_whole = None
        generation = open_generation(folder, verify=False)
        keys = self._keys(generation)

        def blocks() -> Iterator[Rows]:
            columns = {a: column_of(arrays, n, a) for n, a in enumerate(self._attributes)}
            payloads = Texts(arrays, PAYLOAD)
            for start in range(0, len(keys), _BLOCK_ROWS):
                rows = np.arange(start, min(len(keys), start + _BLOCK_ROWS))
                yield rows_of_columns(
                    keys[rows],
                    self._texts[start : start + _BLOCK_ROWS],
                    {a: rows_of_column(a, column, rows) for a, column in columns.items()},
                    payloads.take(rows),
                    take(annotations, rows),
                )

        target = WriteTarget(Engine(generation), folder)
        try:
            target.open()
            source = Source.of_build(generation)
            target.begin(VectorlessRows(keys, blocks).behind(source, generation))
            target.publish(0)
        finally:
            target.close(is_synced=True)

    def _arrays(self, scratch: ArrayFolder) -> dict[str, Array]:
        names = [PAYLOAD + BYTES, PAYLOAD + ENDS]
        for number, attribute in enumerate(self._attributes):
            names.append(array_name(number, "values"))
            if attribute.multi:
                names.append(array_name(number, "ends"))
            if attribute.type == "keyword":
                words = array_name(number, "words")
                names += [words + BYTES, words + ENDS]
        return {name: scratch.read(name) for name in names}

    def _keys(self, generation: Generation) -> IntArray:
        """Return the keys of the points, which differ from those of a generation.

        Raises `InvalidArgumentError` if an id occurs twice.
        """
        stored_ids = Ids(generation.arrays, generation.manifest.rows)
        if (stored_ids.kind == "string") != bool(self._texts):
            raise invalid("ids", "must be all texts or all integers")
        names: Sequence[str] | IntArray
        keys: IntArray
        if self._texts:
            names = [text.decode() for text in self._texts]
            keys = keys_of(self._texts)
        else:
            names = keys = np.concatenate(self._numbers)
            if keys.min() < 0:
                raise invalid("ids", f"must be at least 0, got {keys.min()}")
        order = np.argsort(keys, kind="stable")
        equal = order[1:][keys[order][1:] == keys[order][:-1]]
        collisions = np.flatnonzero(stored_ids.rows_of(names) >= 0)
        for place in [*equal[:1].tolist(), *collisions[:1].tolist()]:
            raise invalid("ids", f"must be unique, {names[place]} occurs twice")
        used_keys = set(keys.tolist())
        for place in np.flatnonzero(stored_ids.rows_of_keys(keys) >= 0).tolist():
            # Another text has the same hash.
            key = int(keys[place])
            while key in used_keys or (stored_ids.rows_of_keys(np.array([key])) >= 0).any():
                key = next_key(key)
            used_keys.add(key)
            keys[place] = key
        return keys
