"""Data sets of labelled documents; without a data folder, the digits of scikit-learn."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import sparse
from sklearn.datasets import load_digits
from sklearn.preprocessing import StandardScaler

from divgrpc.types import IntArray
from divgrpc_lab.data.topics import DATA_VARIABLE, sha256

Arrays: TypeAlias = Mapping[str, npt.NDArray[Any]]

# For each data set: the name of the hierarchy's file and the prefix of the label arrays. The prefix
# selects the labels as annotated, without the ancestors that some sets add.
_SETS: Final = {
    "bibtex": ("", "y"),
    "delicious": ("delicious_wordnet_hierarchy", "y"),
    "enron_hier": ("enron_hier", "yspec"),
    "yeast_seq_go": ("yeast_seq_go", "yspec"),
}
SETS: Final = tuple(_SETS)
# Data sets whose features are measurements on different scales.
_MEASUREMENT_SETS: Final = ("yeast_seq_go",)
# Name of the data set that is used if there is no folder of data sets.
DIGITS: Final = "digits"
_DIGITS_TRAINING: Final = 1_400


@dataclass(frozen=True, eq=False)
class Split:
    """A data set with training documents, test documents and their labels.

    `documents` (n, d) have the `labels` (n, L), and `test_documents` (m, d) have the labels `truth`
    (m, L). These matrices are sparse or dense. `hierarchy` (e, 2) has edges from parent to child
    and starts at the nodes `roots`. It is None if there is no hierarchy.
    """

    name: str
    sha256: str
    documents: Any
    labels: Any
    test_documents: Any
    truth: Any
    hierarchy: IntArray | None = None
    roots: tuple[int, ...] = ()

    def with_features(self) -> "Split":
        """Return the set without documents that have no features: no method can label them."""
        rows, queries = (
            np.flatnonzero(abs(documents).sum(axis=1))
            for documents in (self.documents, self.test_documents)
        )
        return replace(
            self,
            documents=self.documents[rows],
            labels=self.labels[rows],
            test_documents=self.test_documents[queries],
            truth=self.truth[queries],
        )

    def described(self) -> dict[str, str]:
        """Return the facts about the data for a report."""
        (rows, dims), tests, rest = (
            self.documents.shape,
            self.test_documents.shape[0],
            self.with_features(),
        )
        empty = rows + tests - rest.documents.shape[0] - rest.test_documents.shape[0]
        facts = {
            "documents": f"{rows:,} x {dims:,}, {tests:,} more to test with",
            "labels": f"{self.labels.shape[1]:,}, {self.labels.nnz / rows:.1f} a document",
            "sha256": self.sha256,
        }
        return facts | ({"without a feature, left out": str(empty)} if empty else {})


def read(folder: Path, name: str) -> Split:
    """Read one of the data sets.

    Training documents include the validation part, if there is one. If the features are
    measurements, they are standardised.
    """
    hierarchy, prefix = _SETS[name]
    path = folder / f"{name}.npz"
    with np.load(path, allow_pickle=False) as arrays:
        parts = [part for part in ("train", "valid") if f"{prefix}_{part}_indptr" in arrays]
        documents = [_matrix(arrays, f"x_{part}", "n_features") for part in parts]
        labels = [_matrix(arrays, f"{prefix}_{part}", "n_labels") for part in parts]
        tests = _matrix(arrays, "x_test", "n_features")
        truth = _matrix(arrays, f"{prefix}_test", "n_labels")
    all_labels = sparse.csr_array(sparse.vstack(labels))
    if sparse.issparse(tests):
        rows = sparse.csr_array(sparse.vstack(documents))
    else:
        rows = np.concatenate(documents)
    if name in _MEASUREMENT_SETS:
        scaler = StandardScaler().fit(rows)
        rows, tests = scaler.transform(rows), scaler.transform(tests)
    tree = _edges(folder / f"{hierarchy}.npz") if hierarchy else ()
    return Split(name, sha256(path), rows, all_labels, tests, truth, *tree)


def load(names: Sequence[str], folder: str | None = None) -> list[Split]:
    """Read the named data sets.

    `folder` is by default the environment variable DIVGRPC_DATA. If that is not set, scikit-learn's
    digits are returned instead.
    """
    folder = folder or os.environ.get(DATA_VARIABLE)
    return [read(Path(folder), name) for name in names] if folder else [_digits()]


def _matrix(arrays: Arrays, name: str, width: str) -> Any:
    if name in arrays:
        return arrays[name].astype(np.float32)
    ends, columns = arrays[f"{name}_indptr"], arrays[f"{name}_indices"].astype(np.int32)
    ones = np.ones(len(columns), np.float32)
    return sparse.csr_array((ones, columns, ends), (len(ends) - 1, int(arrays[width])))


def _edges(path: Path) -> tuple[IntArray, tuple[int]]:
    with np.load(path, allow_pickle=False) as arrays:
        edges = np.stack([arrays["edge_parent"], arrays["edge_child"]], axis=1).astype(np.int64)
        return edges, (int(arrays["root"]),)


def _digits() -> Split:
    """Return scikit-learn's digits with labels for value (0-9), half (10, 11) and parity (12, 13).

    In the hierarchy, halves and parities are parents of values and children of the root 14.
    """
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images, values = digits.data[order].astype(np.float32), digits.target[order]
    parents = np.column_stack((10 + (np.arange(10) >= 5), 12 + np.arange(10) % 2))
    labels = np.zeros((len(values), 14), np.float32)
    np.put_along_axis(labels, np.column_stack((values, parents[values])), 1, axis=1)
    edges = [(parent, digit) for digit in range(10) for parent in parents[digit].tolist()]
    edges += [(14, parent) for parent in range(10, 14)]
    training, test = slice(_DIGITS_TRAINING), slice(_DIGITS_TRAINING, None)
    return Split(
        DIGITS,
        "shipped with scikit-learn",
        images[training],
        sparse.csr_array(labels[training]),
        images[test],
        sparse.csr_array(labels[test]),
        np.array(edges),
        (14,),
    )
