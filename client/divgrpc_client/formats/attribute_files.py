"""Reads the values of new attributes from CSV files, JSON Lines and Parquet files."""

from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

from divgrpc.errors import InvalidArgumentError
from divgrpc_client.formats.column_files import ID, read_columns
from divgrpc_client.formats.json_lines import JSON_LINES, read_values
from divgrpc_client.formats.parquet import PARQUET, read_parquet_values

_CSV: Final = ".csv"
# The suffixes of files with values of attributes.
ATTRIBUTE_FILES: Final = (_CSV, *JSON_LINES, *PARQUET)
Ids = list[Any] | None


def read_attributes(
    path: Path, texts: Collection[str], *, has_text_ids: bool
) -> tuple[Ids, dict[str, list[Any]]]:
    """Return the ids, None if the file has none, and the values of each attribute by name.

    texts: names of the attributes whose values in a CSV file are texts, even if all are numbers.
    has_text_ids: whether ids in a CSV file are texts, even if all are numbers.

    Raises `InvalidArgumentError` with the line at fault, and `UnsupportedError`.
    """
    if path.suffix not in ATTRIBUTE_FILES:
        raise InvalidArgumentError("file", f"{path} must end in {' or '.join(ATTRIBUTE_FILES)}")
    if path.suffix in JSON_LINES:
        ids, columns = read_values(path)
    elif path.suffix in PARQUET:
        ids, columns = read_parquet_values(path)
    else:
        as_texts = {*texts, ID} if has_text_ids else {*texts}
        ids, columns = read_columns(path, "file", as_texts)
    if not columns:
        raise InvalidArgumentError("file", f"{path} has no attribute")
    if not len(next(iter(columns.values()))):
        raise InvalidArgumentError("file", f"{path} has no values")
    return ids, columns
