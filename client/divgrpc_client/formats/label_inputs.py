"""Documents and labels as the command line names them: files to what the client takes."""

import argparse
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from divgrpc.errors import InvalidArgumentError
from divgrpc_client.formats.files import read_vectors
from divgrpc_client.formats.sparse_text import (
    IndexBase,
    line_of,
    read_labelled,
    read_split,
    widened,
)
from divgrpc_protos.arrays import Csr, Matrix, picked, row_count, without_zeros

# Files that hold a matrix and nothing else; all others are text, a document with its labels a line.
_MATRICES: Final = (".npy", ".npz", ".fvecs")
_LEML: Final = "leml"

# Documents, their labels if they have any, and their numbers in the file.
Chosen = tuple[Matrix, Matrix | None, npt.NDArray[np.int64]]


def is_text(path: Path) -> bool:
    """Tell whether a file has a document a line, so that columns it does not use are not there."""
    return path.suffix not in _MATRICES


def read_documents(path: Path, arguments: argparse.Namespace) -> tuple[Matrix, Matrix | None]:
    """Return the documents of a file, and their labels where it has them.

    Raises `InvalidArgumentError` as `read_vectors` and `read_labelled` do.
    """
    base: IndexBase = arguments.index_base
    if not is_text(path):
        return read_vectors(path, arguments.key, base=base, dims=arguments.dims), None
    if arguments.key is not None:
        raise InvalidArgumentError("key", f"only an .npz has arrays to choose from, not {path}")
    return read_labelled(path, base=base, dims=arguments.dims)


def for_index(
    path: Path,
    arguments: argparse.Namespace,
    documents: Matrix,
    numbers: npt.NDArray[np.int64],
    dims: int,
) -> Matrix:
    """Return documents of a text file, `numbers` in it, with the columns of an index, `dims`.

    Raises `InvalidArgumentError` naming the line of the first that has no feature, or one that the
    index has not.
    """
    rows = cast(Csr, documents)
    _refuse_empty("documents", path, rows, numbers)
    beyond = np.flatnonzero(rows.indices >= dims)
    if len(beyond):
        row = int(np.searchsorted(rows.indptr, beyond[0], side="right")) - 1
        number = int(numbers[row])
        line, features = line_of(path, number)
        # The greatest of the line is that of the row, wherever they begin.
        greatest = max(features)
        first = greatest - int(rows.indices[rows.indptr[row + 1] - 1])
        raise InvalidArgumentError(
            "documents",
            f"{path} line {line} (document {number}) has feature {greatest}, and the index has "
            f"{dims}, from {first} on as this file is read; --index-base says where features "
            "begin, here and where an index is built",
        )
    return widened(documents, dims) if arguments.dims is None else documents


def _refuse_empty(field: str, path: Path, rows: Csr, numbers: npt.NDArray[np.int64]) -> None:
    empty = np.flatnonzero(np.diff(without_zeros(rows).indptr) == 0)
    if len(empty):
        number = int(numbers[empty[0]])
        line, _ = line_of(path, number)
        raise InvalidArgumentError(
            field, f"{path} line {line} (document {number}) has no feature that is not 0"
        )


def read_build(arguments: argparse.Namespace) -> tuple[Path, Matrix, dict[str, Any]]:
    """Return the file that a build is of, its rows, and what is told of labels beside them."""
    if (arguments.file is None) == (arguments.features is None):
        raise InvalidArgumentError("file", "set either FILE or --features")
    if arguments.features is None:
        path = Path(arguments.file)
        rows = read_vectors(path, arguments.key, base=arguments.index_base, dims=arguments.dims)
        rows, labels, _ = _labelled(arguments, rows, None)
    else:
        path = Path(arguments.features)
        rows, labels, numbers = read_labelled_documents(arguments)
        values = vars(arguments)
        rejects = values.get("metric", "cosine"), values.get("zero_vectors", "reject")
        # What the server refuses, by the number of the row.
        if rejects == ("cosine", "reject") and is_text(path):
            _refuse_empty("features", path, cast(Csr, rows), numbers)
    names, edges = arguments.label_names, arguments.hierarchy
    fields = {
        "labels": labels,
        "label_model": _model(arguments.label_model),
        "label_names": None if names is None else read_names(Path(names)),
        "hierarchy": None if edges is None else read_edges(Path(edges)),
        "roots": arguments.roots,
    }
    return path, rows, fields


def read_labelled_documents(arguments: argparse.Namespace) -> Chosen:
    """Return the documents of --features, and their labels, those of --labels if it is given."""
    return _labelled(arguments, *read_documents(Path(arguments.features), arguments))


def _labelled(arguments: argparse.Namespace, rows: Matrix, labels: Matrix | None) -> Chosen:
    """Return what --labels and --split make of rows and labels."""
    if arguments.labels is not None:
        labels = read_vectors(Path(arguments.labels))
    rows, chosen = split(arguments, rows)
    if arguments.split is not None and labels is not None:
        labels = picked(labels, chosen)
    return rows, labels, chosen


def read_names(path: Path) -> list[str]:
    """Return the lines of a text file, the first that of label 0; only line feeds end them."""
    try:
        return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, ValueError) as error:
        raise InvalidArgumentError(
            "label_names", f"{path} must hold a name a line: {error}"
        ) from None


def read_edges(path: Path) -> npt.NDArray[np.integer]:
    """Return the edges (m, 2), parent and child, of an .npy or of a text file, two numbers a line.

    Raises `InvalidArgumentError` naming the first line that is anything else.
    """
    if path.suffix == ".npy":
        return np.asarray(read_vectors(path))
    edges = []
    try:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            words = line.partition("#")[0].replace(",", " ").split()
            if words:
                if len(words) != 2 or not all(map(_is_number, words)):
                    raise InvalidArgumentError(
                        "hierarchy", f"{path} line {number} is not: parent child"
                    )
                edges.append([int(word) for word in words])
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgumentError("hierarchy", f"{path} cannot be read: {error}") from None
    return np.array(edges, np.int64).reshape(-1, 2)


def _is_number(word: str) -> bool:
    """Tell what an int64 holds."""
    return word.isdecimal() and len(word) < 19


def split(arguments: argparse.Namespace, rows: Matrix) -> tuple[Matrix, npt.NDArray[np.int64]]:
    """Return the rows that --split takes, all where it is not given, and their numbers."""
    count = row_count(rows)
    if arguments.split is None:
        return rows, np.arange(count)
    # A file, and after a colon the number of one of its columns.
    name, colon, column = arguments.split.rpartition(":")
    if colon and column.isdecimal():
        chosen = read_split(Path(name), count, int(column))
    else:
        chosen = read_split(Path(arguments.split), count)
    return picked(rows, chosen), chosen


def _model(values: list[str] | None) -> Any:  # noqa: ANN401  # what `Client.build` takes
    if values is None:
        return None
    if values == [_LEML]:
        return _LEML
    if len(values) != 2:
        raise InvalidArgumentError(
            "label_model", "--label-model takes leml, or two files: label factors and feature map"
        )
    return tuple(read_vectors(Path(name)) for name in values)
