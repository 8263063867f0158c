"""The metric drank, which measures how far apart a set of labels is in a hierarchy.

Balanced hierarchies: Srivastava, Kiran and Reddy, "Discovering diverse-frequent patterns in
transactional databases" (COMAD 2011). Unbalanced hierarchies: Swamy, Reddy and Srivastava,
"Extracting diverse patterns with unbalanced concept hierarchy" (PAKDD 2014).

Let h be the height of the tree, and GFP(l) the set of distinct ancestors on level l of a set of
labels. The merging factor MF, the level factor LF and drank are

    MF(l) = (|GFP(l)| - 1) / (|GFP(l + 1)| - 1),  LF(l) = 2 (h - l) / (h (h - 1))
    drank = sum of MF(l) LF(l) for l = h - 1 down to 1

The sum ends at the first level with a single ancestor. drank is 0 for labels on level h that share
a parent, and 1 for labels that meet only at the root.

Conventions of this module:
- The hierarchy may be given as a directed graph, which may have cycles and nodes with several
  parents. A breadth-first search prunes it to a tree. Several roots become children of a common
  root. The depth of a node is the minimum number of edges from the root of the tree to the node. If
  a node has several parents one level above, the parent with the smallest id is kept.
- A label is unknown if no path leads from a root to it, or if its number is outside 0 to L - 1.
  Unknown labels are ignored. A label that occurs twice counts once.
- h is the depth of the deepest label. On levels deeper than its own, a label counts as its own
  ancestor.
- drank is 0 for fewer than two labels. If h is 1, LF is 0 / 0, and drank is 1 for two or more
  labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from divgrpc.errors import invalid
from divgrpc.metrics.judging import Values
from divgrpc.types import IntArray

_NONE: Final = -1
# Maximum number of labels that `drank` handles at a time.
_BLOCK_LABELS: Final = 2**20
# Maximum number of levels in a hierarchy. This limits the size of the array `LabelTree.ancestors`.
# The categories of Wikipedia have about twenty levels.
_LEVELS_MAX: Final = 255


@dataclass(frozen=True, slots=True, eq=False)
class LabelTree:
    """A hierarchy as a tree over m nodes; the first L nodes are the labels.

    parents: (m,) int64, the parent of each node; -1 for roots and for nodes that no root reaches.
    depths: (m,) int64, the level of each node; -1 for nodes that no root reaches.
    ancestors: (L, h) int64, the ancestor of each label on levels 1 to h. On its own level and on
        deeper levels a label is its own ancestor. Unknown labels have -1.
    """

    parents: IntArray
    depths: IntArray
    ancestors: IntArray

    @classmethod
    def of_edges(
        cls,
        parents: npt.ArrayLike,
        children: npt.ArrayLike,
        label_count: int,
        roots: Sequence[int] | None = None,
    ) -> Self:
        """Prune the graph with the edges parents[i] -> children[i] to a tree below its `roots`.

        Nodes are integers from 0 up, and nodes 0 to `label_count` - 1 are the labels. By default
        every node that has children and no parents is a root.

        Raises `InvalidArgumentError`, with the field hierarchy, for edges that are not integers
        from 0 up, for roots that are not nodes, for a graph without a root, and for more than 255
        levels.
        """
        above, below = _edges(parents, children)
        nodes = max(label_count, int(max(above.max(initial=-1), below.max(initial=-1))) + 1)
        if roots is None:
            tops = np.setdiff1d(above, below)
        else:
            tops = np.unique(np.asarray(roots))
            if len(tops) and not (tops.dtype.kind in "iu" and 0 <= tops[0] <= tops[-1] < nodes):
                raise invalid("hierarchy", f"must have roots from 0 to {nodes - 1}")
        if not len(tops):
            raise invalid(
                "hierarchy", "must have a root: every node has a parent, so say where to begin"
            )
        tree = np.full(nodes, _NONE)
        depths = np.full(nodes, _NONE)
        # A single root has level 0. Several roots have level 1, as children of a common root.
        depths[tops] = level = int(len(tops) > 1)
        while True:
            edges = np.flatnonzero((depths[above] == level) & (depths[below] == _NONE))
            if not len(edges):
                break
            if level == _LEVELS_MAX:
                raise invalid("hierarchy", f"must have at most {_LEVELS_MAX} levels below its root")
            smallest = np.full(nodes, nodes)
            np.minimum.at(smallest, below[edges], above[edges])
            next_level = np.flatnonzero(smallest < nodes)
            level += 1
            tree[next_level], depths[next_level] = smallest[next_level], level
        return cls(tree, depths, _ancestors(tree, depths, label_count))

    @classmethod
    def of_tree(cls, parents: npt.ArrayLike, depths: npt.ArrayLike, label_count: int) -> Self:
        """Make a tree from `parents` and `depths` (m,), for instance as stored in a file."""
        above, levels = np.asarray(parents, np.int64), np.asarray(depths, np.int64)
        return cls(above, levels, _ancestors(above, levels, label_count))

    @property
    def height(self) -> int:
        """The depth of the deepest label, h."""
        return int(self.ancestors.shape[1])

    @property
    def unknown(self) -> IntArray:
        """The labels that no root reaches, int64 in ascending order."""
        return np.flatnonzero(self.depths[: len(self.ancestors)] == _NONE)

    def drank(self, labels: npt.ArrayLike) -> Values:
        """Return the drank (nq,) of each row of `labels` (nq, k), float64 from 0 to 1.

        Rows with fewer than k labels are padded with -1. Raises `InvalidArgumentError`, with the
        field labels, for another shape or dtype.
        """
        numbers = np.asarray(labels)
        if numbers.ndim != 2 or (numbers.dtype.kind not in "iu" and numbers.size):
            raise invalid("labels", "must be rows of whole numbers")
        rows = max(1, _BLOCK_LABELS // max(1, numbers.shape[1]))
        starts = range(0, len(numbers), rows)
        parts = [self._drank(numbers[start : start + rows]) for start in starts]
        return np.concatenate([np.empty(0), *parts])

    def _drank(self, labels: IntArray) -> Values:
        height = self.height
        if not height:
            return np.zeros(len(labels))
        is_label = (labels >= 0) & (labels < len(self.ancestors))
        rows = np.where(is_label, labels, 0)
        below = _distinct(np.where(is_label, self.ancestors[rows, height - 1], _NONE)) - 1
        if height == 1:
            return (below > 0).astype(np.float64)
        result = np.zeros(len(labels))
        for level in range(height - 1, 0, -1):
            above = _distinct(np.where(is_label, self.ancestors[rows, level - 1], _NONE)) - 1
            merging = np.divide(above, below, out=np.zeros(len(labels)), where=below > 0)
            result += merging * (2 * (height - level) / (height * (height - 1)))
            below = above
        return result


def _edges(parents: npt.ArrayLike, children: npt.ArrayLike) -> tuple[IntArray, IntArray]:
    above, below = np.asarray(parents), np.asarray(children)
    if above.ndim != 1 or above.shape != below.shape:
        raise invalid("hierarchy", "must have as many parents as children")
    for ends in (above, below):
        if len(ends) and (ends.dtype.kind not in "iu" or ends.min() < 0):
            raise invalid("hierarchy", "must have whole numbers from 0 up")
    return above.astype(np.int64), below.astype(np.int64)


def _ancestors(parents: IntArray, depths: IntArray, label_count: int) -> IntArray:
    """Return the field `LabelTree.ancestors`, (L, h) int64."""
    height = int(depths[:label_count].max(initial=0))
    table = np.empty((label_count, height), np.int64)
    node = np.where(depths[:label_count] == _NONE, _NONE, np.arange(label_count))
    for level in range(height, 0, -1):
        deeper = (node != _NONE) & (depths[node] > level)
        node = np.where(deeper, parents[node], node)
        table[:, level - 1] = node
    return table


def _distinct(nodes: IntArray) -> IntArray:
    """Return the number of distinct nodes in each row; -1 does not count."""
    if not nodes.shape[1]:
        return np.zeros(len(nodes), np.int64)
    nodes = np.sort(nodes, axis=1)
    is_new = np.diff(nodes, axis=1) != 0
    return np.asarray((is_new & (nodes[:, 1:] >= 0)).sum(axis=1) + (nodes[:, 0] >= 0))
