"""The documents with labels of the reports, and what benchmarks measure on them."""

from divgrpc.metrics import JudgedLabels, LabelTree, precision_at
from divgrpc.types import IntArray
from divgrpc_lab.data.documents import SETS, Split, load, read

__all__ = ["SETS", "Split", "load", "precisions", "read", "tree"]


def tree(split: Split) -> LabelTree | None:
    """Return the tree of the labels, where they have one."""
    if split.hierarchy is None:
        return None
    above, below = split.hierarchy.T
    return LabelTree.of_edges(above, below, split.labels.shape[1], split.roots)


def precisions(split: Split, labels: IntArray) -> list[float]:
    """Return P@1, P@3 and P@5 in percent."""
    means = precision_at(JudgedLabels.of(labels, split.truth)).mean(axis=0)
    return [float(100 * means[k - 1]) for k in (1, 3, 5)]
