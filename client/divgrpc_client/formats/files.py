"""Reads vectors, and columns such as categories, from .npy, .npz, .fvecs, svmlight and text files.

.npy and .fvecs files are memory-mapped, so a file larger than memory can be sent. A faulty file
raises `InvalidArgumentError`. Pickled objects are never read. Files of `scipy.sparse.save_npz` are
read without scipy, because a client need not have it.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from divgrpc.errors import InvalidArgumentError, invalid
from divgrpc_client.formats.record_files import has_records, read_records
from divgrpc_client.formats.sparse_text import (
    COLUMN_MAX,
    SVMLIGHT,
    IndexBase,
    canonical,
    read_labels,
    read_svmlight,
    wrong,
)
from divgrpc_protos.arrays import Csr, Matrix

Array = npt.NDArray[Any]

FORMATS: Final = (
    ".npy, .npz (numpy's or scipy's), .fvecs, .jsonl, .parquet or .svm (.svmlight, .libsvm)"
)
_LABELS: Final = "labels"
# A line that numpy reads as a whole number, or skips.
_INTEGER: Final = re.compile(r"\s*[-+]?\d*\s*(#.*)?")
# Arrays of an .npz that `scipy.sparse.save_npz` writes, whatever the format of the matrix.
_SCIPY_KEYS: Final = {"format", "shape", "data"}


def read_vectors(
    path: Path, key: str | None = None, *, base: IndexBase = "auto", dims: int | None = None
) -> Matrix:
    """Return the (rows, dims) array of a file, or its compressed sparse rows.

    `key` names one array of an .npz. `base` and `dims` apply to svmlight only, see `read_svmlight`.
    Raises `InvalidArgumentError` if the file is missing or its content does not match its suffix.
    """
    if path.suffix in SVMLIGHT and key is None:
        return read_svmlight(path, base=base, dims=dims)
    if base != "auto" or dims is not None:
        option = "dims" if base == "auto" else "index_base"
        flag = f"--{option.replace('_', '-')}"
        raise InvalidArgumentError(option, f"{flag} is for svmlight alone, not for {path}")
    vectors = _read(path, key)
    if isinstance(vectors, Csr):
        return vectors
    if vectors.ndim != 2:
        raise wrong(path, f"must hold a two-dimensional array, got shape {vectors.shape}")
    return vectors


def read_column(source: str, vectors_path: Path) -> Array:
    """Return the (rows,) array that `source` names.

    `source` is one of: the name of an array in the .npz that holds the vectors, ``labels`` for the
    labels of the svmlight file that holds the vectors, an .npy file, or a text file with one number
    per line.
    """
    if vectors_path.suffix in SVMLIGHT and source == _LABELS:
        return read_labels(vectors_path)
    if vectors_path.suffix == ".npz" and not Path(source).suffix:
        return np.asarray(_from_npz(vectors_path, source))
    path = Path(source)
    if path.suffix == ".npy":
        return _load(path)
    try:
        return np.loadtxt(path, dtype=np.int64, ndmin=1)
    except (OSError, ValueError) as error:
        raise wrong(path, f"must hold one whole number per line: {_reason(error)}") from None


def read_ids(source: str, vectors_path: Path) -> Array | list[str]:
    """Return the ids that `source` names, as `read_column` does, or the lines of a text file.

    If a line of the text file is no whole number, all lines are text ids.
    """
    path = Path(source)
    is_text = path.suffix != ".npy" and path.is_file()
    if not is_text or (vectors_path.suffix == ".npz" and not path.suffix):
        return read_column(source, vectors_path)
    lines = read_lines("ids", path)
    if all(_INTEGER.fullmatch(line) for line in lines):
        return read_column(source, vectors_path)
    return lines


def read_lists(path: Path) -> list[Any]:
    """Return the ids on each line of a text file, as an array of numbers or as a list of texts.

    Ids are separated by tabs if the file has any, else by spaces. They are texts if one of them is
    no whole number. A line may be empty. Raises `InvalidArgumentError` if the file is missing or
    has a number above 64 bits.
    """
    lines = read_lines("file", path)
    separator = "\t" if any("\t" in line for line in lines) else None
    lists = [line.split(separator) for line in lines]
    if not all(_INTEGER.fullmatch(word) for words in lists for word in words):
        return lists
    try:
        return [np.array([int(word) for word in words if word], np.int64) for words in lists]
    except OverflowError as error:
        raise wrong(path, f"must hold whole numbers of 64 bits: {error}") from None


def read_lines(field: str, path: Path) -> list[str]:
    r"""Return the lines of a text file in UTF-8; \n, \r\n and \r end a line.

    Raises `InvalidArgumentError` for `field` if the file cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise InvalidArgumentError(
            field, f"{path} cannot be read as text: {_reason(error)}"
        ) from None
    return text.removesuffix("\n").split("\n") if text else []


def pick_rows(text: str | None, count: int) -> range:
    """Return the rows that `text` selects: a slice (3:5, :10, -2:) or the number of one row.

    None selects all rows. Raises `InvalidArgumentError` if no row is selected.
    """
    if text is None:
        return range(count)
    first, colon, last = text.partition(":")
    try:
        start, stop = (int(part) if part else None for part in (first, last))
    except ValueError:
        raise invalid("rows", f"must be START:STOP or a number, got {text!r}") from None
    if not colon and start is not None:
        stop = start + 1 if start != -1 else None
    rows = range(count)[start:stop]
    if not rows:
        raise invalid("rows", f"{text!r} selects none of the file's {count} rows")
    return rows


def _read(path: Path, key: str | None) -> Array | Csr:
    if key is None and has_records(path):
        vectors = read_records(path).vectors
        return vectors if isinstance(vectors, Csr) else np.asarray(vectors)
    if key is not None and path.suffix != ".npz":
        raise InvalidArgumentError("key", f"only an .npz has arrays to choose from, not {path}")
    match path.suffix:
        case ".npy":
            return _load(path)
        case ".npz":
            return _from_npz(path, key)
        case ".fvecs":
            return _from_fvecs(path)
    raise wrong(path, f"must be {FORMATS}")


def _load(path: Path) -> Array:
    try:
        return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except (OSError, ValueError, EOFError) as error:
        raise wrong(path, f"cannot be read as .npy: {_reason(error)}") from None


def _from_npz(path: Path, key: str | None) -> Array | Csr:
    """Return the array named `key`, or the result of `_only_matrix` without `key`."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            if key is None:
                return _only_matrix(path, archive)
            if key in archive.files:
                return np.asarray(archive[key])
    except InvalidArgumentError:
        raise
    except Exception as error:  # noqa: BLE001  # zipfile and numpy raise many kinds on bad bytes
        raise wrong(path, f"cannot be read as .npz: {_reason(error)}") from None
    raise InvalidArgumentError("key", f"{path} holds no array named {key!r}")


def _only_matrix(path: Path, archive: Mapping[str, Array]) -> Array | Csr:
    """Return the matrix that `scipy.sparse.save_npz` wrote, else the only two-dimensional array.

    `archive[name]` reads the array from the file each time. So the search for the matrix holds one
    array in memory at a time.
    """
    if set(archive) >= _SCIPY_KEYS and archive["format"].ndim == 0:
        return _from_scipy(path, archive)
    matrices = [name for name in archive if archive[name].ndim == 2]
    if len(matrices) != 1:
        names = ", ".join(archive) or "nothing"
        raise InvalidArgumentError(
            "key",
            f"{path} holds {len(matrices)} two-dimensional arrays among {names}: "
            "name one with --key",
        )
    return np.asarray(archive[matrices[0]])


def _from_fvecs(path: Path) -> Array:
    # Each row is its number of dimensions as int32, followed by its values as float32.
    try:
        numbers = np.memmap(path, dtype="<i4", mode="r")
    except (OSError, ValueError) as error:
        raise wrong(path, f"cannot be read as .fvecs: {_reason(error)}") from None
    dims = int(numbers[0])
    if dims < 1 or numbers.size % (dims + 1):
        raise wrong(path, f"is no .fvecs: rows of {dims} dimensions do not fill it")
    rows = numbers.reshape(-1, dims + 1)
    faulty = np.flatnonzero(rows[:, 0] != dims)
    if len(faulty):
        row = int(faulty[0])
        raise wrong(path, f"is no .fvecs: row {row} has {rows[row, 0]} dimensions, not {dims}")
    return rows.view("<f4")[:, 1:]


def _from_scipy(path: Path, archive: Mapping[str, Array]) -> Csr:
    """Return the matrix of an .npz that `scipy.sparse.save_npz` wrote, in canonical form.

    Entries out of order are sorted, and repeated entries are summed. Raises `InvalidArgumentError`
    if the matrix is not in CSR format, or if its arrays do not match.
    """
    kind = archive["format"].item()
    kind = kind.decode("ascii", "replace") if isinstance(kind, bytes) else str(kind)
    if kind != "csr":
        raise wrong(path, f"holds a sparse matrix of format {kind!r}: save it after .tocsr()")
    indptr, indices, data = (archive[name] for name in ("indptr", "indices", "data"))
    shape = archive["shape"]
    is_valid = all(part.ndim == 1 for part in (indptr, indices, data, shape)) and len(shape) == 2
    if is_valid:
        rows, cols = map(int, shape)
        is_valid = (
            len(indptr) == rows + 1
            and indptr.dtype.kind == indices.dtype.kind == "i"
            and data.dtype.kind in "fiub"
            and indptr[0] == 0
            and bool((np.diff(indptr) >= 0).all())
            and indptr[-1] == len(indices) == len(data)
            and (not len(indices) or 0 <= indices.min() <= indices.max() < cols <= COLUMN_MAX)
        )
    if not is_valid:
        raise wrong(path, "holds an invalid CSR matrix: its arrays do not match its shape")
    return canonical(indptr.astype(np.int64), indices, data, cols)


def _reason(error: Exception) -> str:
    # An OSError's text repeats the path.
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)
