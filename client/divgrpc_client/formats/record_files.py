"""Files of whole points: JSON Lines, archives of numpy, and Parquet if pyarrow is installed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from divgrpc.types import IndexInfo
from divgrpc.types.records import Records
from divgrpc_client.formats.archives import ARCHIVE, archive_writer, is_archive, read_archive
from divgrpc_client.formats.json_lines import JSON_LINES, PointLines, read_points, write_points
from divgrpc_client.formats.parquet import PARQUET, parquet_writer, read_parquet

# The suffixes of files that export writes.
EXPORT_FILES: Final = (*JSON_LINES, *PARQUET, ARCHIVE)


def has_records(path: Path) -> bool:
    """Return whether a file has whole points; an .npz may have arrays of vectors instead."""
    return path.suffix in (*JSON_LINES, *PARQUET) or is_archive(path)


def read_records(
    path: Path, *, needs_vectors: bool = True, vectors_optional: bool = False
) -> PointLines:
    """Return the points of a file; raises `InvalidArgumentError` and `UnsupportedError`.

    Without `needs_vectors`, the points of JSON Lines and Parquet may all lack vectors. With
    `vectors_optional`, any of them may.
    """
    if path.suffix == ARCHIVE:
        return read_archive(path)
    read = read_parquet if path.suffix in PARQUET else read_points
    return read(path, needs_vectors=needs_vectors, vectors_optional=vectors_optional)


@contextmanager
def record_writer(path: Path, suffix: str, info: IndexInfo) -> Iterator[Callable[[Records], None]]:
    """Yield a function that writes `Records` to a new file in the format of `suffix`."""
    if suffix in PARQUET:
        with parquet_writer(path, info) as write:
            yield write
        return
    if suffix == ARCHIVE:
        with archive_writer(path, info) as write:
            yield write
        return
    with path.open("w", encoding="utf-8") as file:
        yield lambda records: file.writelines(write_points(records))
