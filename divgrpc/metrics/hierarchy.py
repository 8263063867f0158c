"""drank: how far apart labels are in a hierarchy. A directed graph is pruned to a tree first.

Srivastava, Kiran and Reddy, "Discovering diverse-frequent patterns in transactional databases"
(COMAD 2011), for balanced hierarchies; Swamy, Reddy and Srivastava, "Extracting diverse patterns
with unbalanced concept hierarchy" (PAKDD 2014). GFP(l) is the set of distinct ancestors of a set of
labels on level l of a tree of height h:

    MF(l) = (|GFP(l)| - 1) / (|GFP(l + 1)| - 1),  LF(l) = 2 (h - l) / (h (h - 1))
    drank = sum of MF(l) LF(l) for l = h - 1 down to 1, which ends when one node is left

It is 0 for labels that share a parent and 1 for labels that meet only at the root.

Conventions of this module:
- A graph, which may have cycles and nodes with several parents, becomes a tree by breadth-first
  search. A node belongs to the level that reaches it first. Of its parents on the level before, the
  one with the smallest id stays. Several roots get a common root.
- A label that no root reaches is unknown, and so are numbers outside 0 to L - 1. Unknown labels are
  left out of a set. A label that occurs twice counts once.
- h is the depth of the deepest label. A label above that depth continues downwards as a chain of
  its own dummy nodes.
- Fewer than two labels have a drank of 0. If h is 1, LF is 0 / 0, and two labels or more have 1.
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
# Labels of the rows that are measured at a time.
_BLOCK_LABELS: Final = 2**20
# Bounds the table of labels by levels. The categories of Wikipedia have about twenty levels.
_LEVELS_MAX: Final = 255


@dataclass(frozen=True, slots=True, eq=False)
class LabelTree:
    """A hierarchy as a tree over m nodes; the first L nodes are the labels.

    parents: (m,) int64, the parent of each node; -1 for roots and for nodes that no root reaches.
    depths: (m,) int64, -1 for nodes that no root reaches.
    ancestors: (L, h) int64, the ancestor of each label on levels 1 to h. From its own level on this
        is the label itself. Unknown labels have -1.
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

        Nodes are numbers from 0 up; those below L = `label_count` are the labels. By default every
        node with children and without parents is a root. Raises `InvalidArgumentError`, with the
        field hierarchy, for arrays that are not pairs of such numbers, for a graph without a root,
        and for more than 255 levels.
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
        # Below a common root the roots are on level 1.
        depths[tops] = level = int(len(tops) > 1)
        while True:
            edges = np.flatnonzero((depths[above] == level) & (depths[below] == _NONE))
            if not len(edges):
                break
            if level == _LEVELS_MAX:
                raise invalid("hierarchy", f"must have at most {_LEVELS_MAX} levels below its root")
            smallest = np.full(nodes, nodes)
            np.minimum.at(smallest, below[edges], above[edges])
            new = np.flatnonzero(smallest < nodes)
            level += 1
            tree[new], depths[new] = smallest[new], level
        return cls(tree, depths, _ancestors(tree, depths, label_count))

    @classmethod
    def of_tree(cls, parents: npt.ArrayLike, depths: npt.ArrayLike, label_count: int) -> Self:
        """Make a tree of `parents` and `depths` (m,), for instance from a file."""
        above, levels = np.asarray(parents, np.int64), np.asarray(depths, np.int64)
        return cls(above, levels, _ancestors(above, levels, label_count))

    @property
    def height(self) -> int:
        """The depth of the deepest label, h."""
        return int(self.ancestors.shape[1])

    @property
    def unknown(self) -> IntArray:
        """The labels that no root reaches, ascending, int64."""
        return np.flatnonzero(self.depths[: len(self.ancestors)] == _NONE)

    def drank(self, labels: npt.ArrayLike) -> Values:
        """Return the drank (nq,) float64, 0 to 1, of each row of `labels` (nq, k), -1 for none.

        Raises `InvalidArgumentError`, with the field labels, for another shape or dtype.
        """
        numbers = np.asarray(labels)
        if numbers.ndim != 2 or (numbers.dtype.kind not in "iu" and numbers.size):
            raise invalid("labels", "must be rows of whole numbers")
        rows = max(1, _BLOCK_LABELS // max(1, numbers.shape[1]))
        starts = range(0, len(numbers), rows)
        parts = [self._drank(numbers[start : start + rows]) for start in starts]
        return np.concatenate([np.empty(0), *parts])

    def _drank(self, labels: IntArray) -> Values:
        is_label = (labels >= 0) & (labels < len(self.ancestors))
        if not self.height:
            return np.zeros(len(labels))
        rows, height = np.where(is_label, labels, 0), self.height
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
    """Return the field `ancestors` of `LabelTree`, (L, h) int64."""
    height = int(depths[:label_count].max(initial=0))
    table = np.empty((label_count, height), np.int64)
    node = np.where(depths[:label_count] == _NONE, _NONE, np.arange(label_count))
    for level in range(height, 0, -1):
        deeper = (node != _NONE) & (depths[node] > level)
        node = np.where(deeper, parents[node], node)
        table[:, level - 1] = node
    return table


def _distinct(nodes: IntArray) -> IntArray:
    """Return the number of distinct nodes of each row, without -1."""
    if not nodes.shape[1]:
        return np.zeros(len(nodes), np.int64)
    nodes = np.sort(nodes, axis=1)
    is_new = np.diff(nodes, axis=1) != 0
    return np.asarray((is_new & (nodes[:, 1:] >= 0)).sum(axis=1) + (nodes[:, 0] >= 0))
