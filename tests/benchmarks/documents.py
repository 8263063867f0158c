"""Documents with labels, to train on and to test with; digits where there are no data sets."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from scipy import sparse

from divgrpc.metrics import JudgedLabels, LabelTree, precision_at
from divgrpc.types import IntArray
from divgrpc_client.reports.topics import sha256

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


@dataclass(frozen=True, eq=False)
class Split:
    """Documents (n, d) with labels (n, L), and what is `asked` with its `truth`; scipy's or dense.

    `tree` is of the labels, where they have one.
    """

    name: str
    sha256: str
    documents: Any
    labels: sparse.csr_array
    asked: Any
    truth: sparse.csr_array
    tree: LabelTree | None = None

    def precisions(self, labels: IntArray) -> list[float]:
        """Return P@1, P@3 and P@5 in percent."""
        means = precision_at(JudgedLabels.of(labels, self.truth)).mean(axis=0)
        return [float(100 * means[k - 1]) for k in (1, 3, 5)]


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
        asked = _matrix(arrays, "x_test", "n_features")
        if name in _MEASURED:
            centre, scale = rows.mean(axis=0), rows.std(axis=0)
            scale[scale == 0] = 1
            rows, asked = ((each - centre) / scale for each in (rows, asked))
        return Split(
            name,
            sha256(folder / file),
            rows,
            sparse.csr_array(sparse.vstack(labels)),
            asked,
            _matrix(arrays, f"{kind}_test", "n_labels"),
            _tree(folder / hierarchy) if hierarchy else None,
        )


def load(names: list[str]) -> list[Split]:
    """Read the sets of the folder that DIVGRPC_DATA names; without it digits alone."""
    folder = os.environ.get("DIVGRPC_DATA")
    return [read(Path(folder), name) for name in names] if folder else [_digits()]


def _matrix(arrays: Arrays, name: str, width: str) -> Any:  # noqa: ANN401  # dense, or scipy's
    if name in arrays:
        return arrays[name].astype(np.float32)
    ends, columns = arrays[f"{name}_indptr"], arrays[f"{name}_indices"].astype(np.int32)
    ones = np.ones(len(columns), np.float32)
    return sparse.csr_array((ones, columns, ends), (len(ends) - 1, int(arrays[width])))


def _tree(path: Path) -> LabelTree:
    with np.load(path, allow_pickle=False) as arrays:
        edges = arrays["edge_parent"], arrays["edge_child"]
        return LabelTree.of_edges(*edges, int(arrays["n_labels"]), [int(arrays["root"])])


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
    parents = [p for digit in range(10) for p in (10 + (digit >= 5), 12 + digit % 2)]
    tree = LabelTree.of_edges(
        [*parents, *[14] * 4], [*np.repeat(np.arange(10), 2), *range(10, 14)], 14, [14]
    )
    own, told = sparse.csr_array(labels[:1400]), sparse.csr_array(labels[1400:])
    return Split(
        "digits", "shipped with scikit-learn", images[:1400], own, images[1400:], told, tree
    )
