"""Reads the files that a command line names, as arguments of the client's methods."""

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from divgrpc.errors import InvalidArgumentError, invalid
from divgrpc.types import IndexInfo, IntArray
from divgrpc_client.formats.column_files import with_types
from divgrpc_client.formats.files import read_column, read_lines, read_vectors
from divgrpc_client.formats.json_lines import PointLines
from divgrpc_client.formats.record_files import has_records, read_records
from divgrpc_client.formats.sparse_text import line_of, read_labelled, read_split, widened
from divgrpc_client.messages.vectors import PointVectors
from divgrpc_protos.arrays import Csr, Matrix, picked, row_count, take, without_zeros

# Files with these suffixes hold a matrix and nothing else. All other files are text, with one
# document and its labels per line.
_MATRICES: Final = (".npy", ".npz", ".fvecs")
_LEML: Final = "leml"


@dataclass(frozen=True, slots=True)
class Documents:
    """Documents of a file, n in number.

    `rows` (n, d) are the features, and `numbers` (n,) the positions in the file, from 0 up.
    `labels` (n, L) and `groups` (n,) may be None. Points of a build may lack a vector.
    """

    path: Path
    rows: Any  # a matrix, or `PointVectors`
    labels: Matrix | None
    numbers: IntArray
    groups: IntArray | None = None

    @property
    def is_text(self) -> bool:
        """Whether the file is text, so that the index may have more columns than the file shows."""
        return self.path.suffix not in _MATRICES

    def taken(self, numbers: IntArray | range) -> "Documents":
        """Return the documents at the positions `numbers`; a range gives views, not copies."""

        def pick(matrix: Matrix) -> Matrix:
            if isinstance(numbers, range):
                return take(matrix, numbers.start, numbers.stop)
            return picked(matrix, numbers)

        labels = None if self.labels is None else pick(self.labels)
        groups = None if self.groups is None else self.groups[numbers]
        return Documents(self.path, pick(self.rows), labels, self.numbers[numbers], groups)

    def for_index(self, info: IndexInfo, arguments: argparse.Namespace) -> "Documents":
        """Return the documents of a text file, widened to the columns of an index.

        Labels from the same file are widened to the labels of the index. Raises
        `InvalidArgumentError` with the line if a document has no nonzero feature or has a feature
        that the index lacks.
        """
        self.refuse_empty("documents")
        rows = cast(Csr, self.rows)
        if len(unknown := np.flatnonzero(rows.indices >= info.dims)):
            row = int(np.searchsorted(rows.indptr, unknown[0], side="right")) - 1
            line, features = line_of(self.path, int(self.numbers[row]))
            # The greatest feature number in the line and the greatest column of the row mean the
            # same feature. Their difference is the number of the file's first feature.
            greatest = max(features)
            first = greatest - int(rows.indices[rows.indptr[row + 1] - 1])
            raise InvalidArgumentError(
                "documents",
                f"{self.path} line {line} (document {self.numbers[row]}) has feature {greatest}, "
                f"and the index has {info.dims}, from {first} on in this file; --index-base sets "
                "the number of the first feature, for this file and for a build",
            )
        labels = self.labels
        if labels is not None and info.labels is not None and not vars(arguments).get("labels"):
            labels = widened(labels, info.labels.label_count)
        columns = info.dims if arguments.dims is None else arguments.dims
        return replace(self, rows=widened(rows, columns), labels=labels)

    def refuse_empty(self, field: str) -> None:
        """Raise `InvalidArgumentError` with the line number if a document has no feature."""
        counts = np.diff(without_zeros(cast(Csr, self.rows)).indptr)
        if len(empty := np.flatnonzero(counts == 0)):
            number = int(self.numbers[empty[0]])
            line, _ = line_of(self.path, number)
            raise InvalidArgumentError(
                field, f"{self.path} line {line} (document {number}) has no feature that is not 0"
            )


def read_documents(path: Path, arguments: argparse.Namespace) -> Documents:
    """Return the documents of a file that --split selects, or all documents without --split.

    Labels come from --labels if given, else from the file itself.

    Raises `InvalidArgumentError` as `read_vectors` and `read_labelled` do.
    """
    base, dims, labels = arguments.index_base, arguments.dims, None
    if path.suffix in _MATRICES:
        rows: Matrix = read_vectors(path, arguments.key, base=base, dims=dims)
    elif arguments.key is not None:
        raise InvalidArgumentError("key", f"only an .npz has arrays to choose from, not {path}")
    else:
        rows, labels = read_labelled(path, base=base, dims=dims)
    return _with_labels(path, rows, labels, arguments)


def read_label_matrix(path: Path) -> Matrix:
    """Return the matrix (n, L) that --labels names.

    Raises `InvalidArgumentError` for points that have labels, because their vectors are no labels.
    """
    if has_records(path) and "labels" in read_records(path, needs_vectors=False).annotations:
        rule = "names a matrix of labels, one row for each point"
        raise InvalidArgumentError("labels", f"--labels {rule}; {path} has points with labels")
    return read_vectors(path)


def _with_labels(
    path: Path, rows: Matrix | PointVectors, labels: Matrix | None, arguments: argparse.Namespace
) -> Documents:
    """Return the documents after applying --labels, --groups and --split."""
    if file := vars(arguments).get("labels"):
        labels = read_label_matrix(Path(file))
    count = rows.rows if isinstance(rows, PointVectors) else row_count(rows)
    groups = None
    if source := vars(arguments).get("groups"):
        groups = read_column(source, path)
        if len(groups) != count:
            raise invalid("groups", f"must be {count}, one for each document, got {len(groups)}")
    documents = Documents(path, rows, labels, np.arange(count), groups)
    if arguments.split is None:
        return documents
    # The format is FILE or FILE:COLUMN.
    name, colon, column = arguments.split.rpartition(":")
    if not (colon and column.isdecimal()):
        name, column = arguments.split, "0"
    return documents.taken(read_split(Path(name), count, int(column)))


def read_build(arguments: argparse.Namespace) -> tuple[Path, Any, dict[str, Any]]:
    """Return the file of a build, the rows, and further arguments of `Client.build`."""
    if (arguments.file is None) == (arguments.features is None):
        raise InvalidArgumentError("file", "set either FILE or --features")
    columns: dict[str, Any] = {}
    labels: Matrix | None = None
    if arguments.features is None:
        path = Path(arguments.file)
        if has_records(path):
            _refuse_options(path, arguments)
            is_optional = bool(vars(arguments).get("vectors_optional"))
            points = read_records(path, vectors_optional=is_optional)
            if points.has_vector is not None and arguments.split:
                raise InvalidArgumentError("split", "does not go with points without a vector")
            rows = points.rows
            columns = _columns_of(path, points)
            labels = columns.get("labels")
        else:
            rows = read_vectors(path, arguments.key, base=arguments.index_base, dims=arguments.dims)
        documents = _with_labels(path, rows, labels, arguments)
    else:
        path = Path(arguments.features)
        if has_records(path):
            raise invalid("features", f"are for documents alone: name {path} as FILE")
        documents = read_documents(path, arguments)
        values = vars(arguments)
        rejects = values.get("metric", "cosine"), values.get("zero_vectors", "reject")
        # An error of the server names only the number of the row, so empty documents are refused
        # here with the line of the file.
        if rejects == ("cosine", "reject") and documents.is_text:
            documents.refuse_empty("features")
    names, edges = arguments.label_names, arguments.hierarchy
    fields = columns | {
        "labels": documents.labels,
        "label_model": _model(arguments.label_model),
        "label_names": None if names is None else read_lines("label_names", Path(names)),
        "hierarchy": None if edges is None else read_edges(Path(edges)),
        "roots": arguments.roots,
    }
    return documents.path, documents.rows, fields


def _columns_of(path: Path, points: PointLines) -> dict[str, Any]:
    """Return what a file has beside vectors as arguments of `Client.build`."""
    labels = points.annotations.get("labels")
    if labels is not None and not labels.cols:
        rule = "no point has a label: give label_count, or leave out labels"
        raise InvalidArgumentError("file", f"{path}: {rule}")
    columns = {"ids": points.ids, "payloads": points.payloads} | with_types(points.attributes)
    return columns | points.annotations


def _refuse_options(path: Path, arguments: argparse.Namespace) -> None:
    """Raise for options that do not apply to a file of whole points."""
    for option, default in (("key", None), ("dims", None), ("index_base", "auto")):
        if getattr(arguments, option) != default:
            flag = f"--{option.replace('_', '-')}"
            raise InvalidArgumentError(option, f"{flag} is not for a file such as {path}")


def read_edges(path: Path) -> IntArray:
    """Return edges (m, 2) from parent to child, read from an .npy or a text file.

    A line of a text file holds two numbers, the parent and the child.

    Raises `InvalidArgumentError` that names the first malformed line.
    """
    if path.suffix == ".npy":
        return np.asarray(read_vectors(path))
    edges = []
    for number, line in enumerate(read_lines("hierarchy", path), 1):
        words = line.partition("#")[0].replace(",", " ").split()
        # Every number of 18 digits fits an int64.
        if words and (len(words) != 2 or not all(w.isdecimal() and len(w) < 19 for w in words)):
            raise InvalidArgumentError("hierarchy", f"{path} line {number} is not: parent child")
        edges += [int(word) for word in words]
    return np.array(edges, np.int64).reshape(-1, 2)


def _model(values: list[str] | None) -> Any:  # noqa: ANN401  # what `Client.build` takes
    if values is None or values == [_LEML]:
        return values and _LEML
    if len(values) != 2:
        raise InvalidArgumentError(
            "label_model", "--label-model takes leml, or two files: label factors and feature map"
        )
    return tuple(read_vectors(Path(name)) for name in values)
