"""Documents with labels, to train on and to test with; digits where there are no data sets."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from scipy import sparse

from divgrpc.types import IntArray
from divgrpc_lab.data.topics import DATA_VARIABLE, sha256

Arrays = Mapping[str, npt.NDArray[Any]]

# The files of each set, the one of its hierarchy last where that is another; and which labels:
# where ancestors were added to them, those as they were annotated.
_SETS: Final = {
    "bibtex": ("bibtex.npz", "", "y"),
    "delicious": ("delicious.npz", "delicious_wordnet_hierarchy.npz", "y"),
    "enron_hier": ("enron_hier.npz", "enron_hier.npz", "yspec"),
    "yeast_seq_go": ("yeast_seq_go.npz", "yeast_seq_go.npz", "yspec"),
}
# Their features are measured, on scales of their own: standardised, by the documents to train on.
_MEASURED: Final = ("yeast_seq_go",)
SETS: Final = tuple(_SETS)
# What stands in for them where there are none.
DIGITS: Final = "digits"


@dataclass(frozen=True, eq=False)
class Split:
    """A data set with labels: `documents` (n, d) and `labels` (n, L), sparse or dense.

    `asked` (m, d) are the test documents, and `truth` (m, L) their labels. `hierarchy` (e, 2) has
    edges from parent to child, and begins at `roots`; None without a hierarchy.
    """

    name: str
    sha256: str
    documents: Any
    labels: Any
    asked: Any
    truth: Any
    hierarchy: IntArray | None = None
    roots: tuple[int, ...] = ()

    def with_features(self) -> "Split":
        """Return the set without documents that have no feature, which no method can label."""
        rows, queries = (np.flatnonzero(_lengths(item)) for item in (self.documents, self.asked))
        return replace(
            self,
            documents=self.documents[rows],
            labels=self.labels[rows],
            asked=self.asked[queries],
            truth=self.truth[queries],
        )

    def described(self) -> dict[str, str]:
        """Return what a report says of the data."""
        rows, dims = self.documents.shape
        kept = self.with_features()
        empty = sum(
            item.shape[0] - whole.shape[0]
            for item, whole in ((self.documents, kept.documents), (self.asked, kept.asked))
        )
        facts = {
            "documents": f"{rows:,} x {dims:,}, {self.asked.shape[0]:,} more to test with",
            "labels": f"{self.labels.shape[1]:,}, {self.labels.nnz / rows:.1f} a document",
            "sha256": self.sha256,
        }
        return facts | ({"without a feature, left out": str(empty)} if empty else {})


def read(folder: Path, name: str) -> Split:
    """Read one of the sets; training and validation parts are one."""
    file, hierarchy, kind = _SETS[name]
    with np.load(folder / file, allow_pickle=False) as arrays:
        parts = [part for part in ("train", "valid") if f"x_{part}" in arrays or part == "train"]
        documents, labels = (
            [_matrix(arrays, f"{what}_{part}", width) for part in parts]
            for what, width in (("x", "n_features"), (kind, "n_labels"))
        )
        rows = np.concatenate(documents) if len(documents) > 1 else documents[0]
        queries = _matrix(arrays, "x_test", "n_features")
        if name in _MEASURED:
            centre, scale = rows.mean(axis=0), rows.std(axis=0)
            scale[scale == 0] = 1
            rows, queries = ((item - centre) / scale for item in (rows, queries))
        return Split(
            name,
            sha256(folder / file),
            rows,
            sparse.csr_array(sparse.vstack(labels)),
            queries,
            _matrix(arrays, f"{kind}_test", "n_labels"),
            *(_edges(folder / hierarchy) if hierarchy else ()),
        )


def load(names: Sequence[str], folder: str | None = None) -> list[Split]:
    """Read named sets from `folder`, else that in DIVGRPC_DATA; else scikit-learn's digits."""
    folder = folder or os.environ.get(DATA_VARIABLE)
    return [read(Path(folder), name) for name in names] if folder else [_digits()]


def _lengths(rows: Any) -> npt.NDArray[Any]:  # dense, or scipy's
    return np.asarray(abs(rows).sum(axis=1)).ravel()


def _matrix(arrays: Arrays, name: str, width: str) -> Any:  # dense, or scipy's
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
    """Make labels of what a digit is: itself, its half, its parity."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    values, images = digits.target[order], digits.data[order].astype(np.float32)
    labels = np.zeros((len(values), 14), np.float32)
    for label in (values, 10 + (values >= 5), 12 + values % 2):
        labels[np.arange(len(values)), label] = 1
    # Halves and parities are parents of their digits.
    edges = [
        (parent, digit) for digit in range(10) for parent in (10 + (digit >= 5), 12 + digit % 2)
    ]
    edges += [(14, parent) for parent in range(10, 14)]
    train, test = sparse.csr_array(labels[:1400]), sparse.csr_array(labels[1400:])
    return Split(
        DIGITS,
        "shipped with scikit-learn",
        images[:1400],
        train,
        images[1400:],
        test,
        np.array(edges),
        (14,),
    )
