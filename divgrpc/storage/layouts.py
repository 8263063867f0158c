"""The file LAYOUT of the writes to a generation, which names the files of a merge.

`divgrpc.writes.layout` writes it, and says what the arrays of a layout hold.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from divgrpc.errors import IndexDamagedError
from divgrpc.storage.arrays import ArrayEntry, damage_errors, open_array
from divgrpc.storage.generations import read_manifest
from divgrpc.storage.manifest import checksum
from divgrpc.storage.published import LAYOUT, LAYOUTS, LOG, WRITES, Writes, bytes_in, was_written
from divgrpc.types import WritesInfo


@dataclass(frozen=True, slots=True)
class PartEntry:
    """The columns of a merge: number of their folder, first row, number of rows, and arrays.

    `crc32` is the checksum of the vectors of these rows. If they are sparse, `values` are the
    number of their first value and the number of their values, `crc32` is the checksum of the
    columns, and `values_crc32` that of the values.
    """

    number: int
    first: int
    rows: int
    crc32: int
    arrays: dict[str, ArrayEntry]
    values: tuple[int, int] | None = None
    values_crc32: int = 0

    @property
    def items(self) -> tuple[int, int]:
        """Number of the first item in the `point_files`, and number of items."""
        return self.values or (self.first, self.rows)

    @property
    def checksums(self) -> tuple[int, ...]:
        """Checksum of the items in each of the `point_files`."""
        return (self.crc32,) if self.values is None else (self.crc32, self.values_crc32)


@dataclass(frozen=True, slots=True)
class LayoutInfo:
    """The contents of the file LAYOUT.

    number: number of the layout.
    sequence: number of the last record that is in it.
    rows: number of rows, deleted ones included. `capacity` is the number of rows with room for
        later ones; the last of these is never used.
    live: number of points.
    displaced: whether a text id may have another key than its hash.
    arrays, parts: entries of the arrays, and of the columns.
    requests: the request ids that were seen last, with sequence number, number of rows and digest.
    values: number of values of all rows, and the number that there is room for; None if rows are
        dense.
    """

    number: int
    sequence: int
    rows: int
    capacity: int
    live: int
    displaced: bool
    arrays: dict[str, ArrayEntry]
    parts: tuple[PartEntry, ...]
    requests: tuple[tuple[str, int, int, str], ...] = ()
    values: tuple[int, int] | None = None

    @property
    def items(self) -> tuple[int, int]:
        """Number of items in the `point_files`, and the number that there is room for."""
        return self.values or (self.rows, self.capacity)

    @classmethod
    def from_json(cls, text: bytes) -> "LayoutInfo":
        """Parse the file; raises `IndexDamagedError`."""
        try:
            document = json.loads(text)
            if document.pop("crc32") != checksum(document):
                raise IndexDamagedError("the layout does not match its checksum")
            parts = tuple(
                PartEntry(**part | {"arrays": _entries(part["arrays"])} | _values_in(part))
                for part in document["parts"]
            )
            # Requests of earlier versions have no digest.
            requests = tuple((*request, "")[:4] for request in document["requests"])
            arrays = _entries(document["arrays"])
            fields = {"arrays": arrays, "parts": parts, "requests": requests}
            return cls(**document | fields | _values_in(document))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise IndexDamagedError("the layout cannot be read") from error


def _entries(documents: Mapping[str, Any]) -> dict[str, ArrayEntry]:
    return {
        name: ArrayEntry(entry["dtype"], tuple(entry["shape"]), entry["crc32"])
        for name, entry in documents.items()
    }


def _values_in(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry `values`, which earlier versions and dense rows lack."""
    values = document.get("values")
    return {} if values is None else {"values": tuple(values)}


def read_layout(folder: Path) -> LayoutInfo | None:
    """Return the current layout in the folder of the writes; None if nothing was ever written.

    Raises `IndexDamagedError`.
    """
    try:
        with damage_errors("the layout"):
            return LayoutInfo.from_json((folder / LAYOUT).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None


def layout_stamp(folder: Path) -> tuple[int, int] | None:
    """Return a value that changes with each layout in the folder of the writes.

    None if there is no layout.
    """
    try:
        status = os.stat(folder / LAYOUT)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_ino, status.st_mtime_ns


def read_merged(generation: Path) -> Writes | None:
    """Return the merged writes to a generation, whose folder is given; None if nothing was written.

    Raises `IndexDamagedError`.
    """
    if not was_written(generation):
        return None
    folder = generation / WRITES
    info = read_layout(folder)
    if info is None:
        raise IndexDamagedError("the layout is missing")
    alive, has_vector = _map(folder, info, "alive"), _map(folder, info, "has_vector")
    indptr = _map(folder, info, "indptr")
    searched = info.live if has_vector is None else int(np.count_nonzero(has_vector[alive]))
    nonzeros = searched * read_manifest(generation).dims
    if indptr is not None:
        nonzeros = int(np.diff(indptr[: info.rows + 1])[alive].sum())
    writes = None
    if info.sequence:
        writes = WritesInfo(info.sequence, 0, info.rows - info.live, bytes_in(folder / LOG))
    return Writes(info.live, nonzeros, info.live - searched, writes)


def _map(folder: Path, info: LayoutInfo, name: str) -> Any:  # noqa: ANN401  # None if there is none
    """Map an array of a layout, whose length is checked."""
    path = folder / LAYOUTS / str(info.number) / f"{name}.npy"
    return open_array(path, info.arrays[name], verify=False) if name in info.arrays else None
