"""Labels on real documents; skipped where DIVGRPC_DATA names no folder."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from scipy import sparse

from divgrpc.labels import train
from divgrpc.metrics import JudgedLabels, precision_at
from divgrpc.types import IntArray


class Split(NamedTuple):
    """Documents and labels to train on and to test with."""

    documents: sparse.csr_array
    labels: sparse.csr_array
    asked: sparse.csr_array
    truth: sparse.csr_array

    def precisions(self, labels: IntArray) -> list[float]:
        """Return P@1, P@3 and P@5 in percent."""
        means = precision_at(JudgedLabels.of(labels, self.truth)).mean(axis=0)
        return [100 * means[k - 1] for k in (1, 3, 5)]


def read(path: Path) -> Split:
    """Read one of the multi-label sets."""
    with np.load(path, allow_pickle=False) as file:

        def matrix(name: str, width: str) -> sparse.csr_array:
            ends, columns = file[f"{name}_indptr"], file[f"{name}_indices"].astype(np.int32)
            ones = np.ones(len(columns), np.float32)
            return sparse.csr_array((ones, columns, ends), (len(ends) - 1, int(file[width])))

        names = ("x_train", "y_train", "x_test", "y_test")
        widths = {"x": "n_features", "y": "n_labels"}
        return Split(*(matrix(name, widths[name[0]]) for name in names))


@pytest.mark.parametrize(
    ("name", "least"),
    [("bibtex", [62.5, 38.2, 28.0]), ("delicious", [65.7, 60.1, 55.5])],
)
def test_default_training_reaches_the_published(
    data_folder: Path, name: str, least: list[float]
) -> None:
    """P@1, P@3 and P@5 on the test documents are no worse than what LEML's authors report."""
    split = read(data_folder / f"{name}.npz")
    model = train(split.documents, split.labels).model
    found = split.precisions(model.predict(split.asked).labels)
    assert all(ours >= theirs for ours, theirs in zip(found, least, strict=True)), found
