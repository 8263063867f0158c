"""How far apart labels are in a hierarchy: drank, on the tree that is left of any directed graph.

drank (Swamy, Reddy and Srivastava, PAKDD 2014, in the form for balanced hierarchies, which
Srivastava, Kiran and Reddy gave first, COMAD 2011) asks level by level, from the leaves up, how
many of a set's nodes still have parents of their own. With GFP(l) the distinct ancestors of a set
on level l of a tree of height h:

    MF(l) = (|GFP(l)| - 1) / (|GFP(l + 1)| - 1),  LF(l) = 2 (h - l) / (h (h - 1))
    drank = sum of MF(l) LF(l) from l = h - 1 up to 1, ended where one node is left

It is 0 for labels that share a parent and 1 for labels that meet at the root alone.

Decided here. A graph, which may have cycles and nodes of several parents, becomes a tree by
breadth-first search: a node belongs to the level where it is first reached, and of its parents on
the level before the one with the smallest id stays. Several roots hang under one that is added.
What cannot be reached is unknown, as is any label below -1 or past the end: unknown labels are left
out of a set. A label above the lowest level, whether it has children or not, goes on below itself
by dummy nodes of its own; h is the depth of the deepest label. Labels are a set: what comes twice
counts once. Fewer than two labels have a drank of 0; where h is 1, and LF is 0 / 0, two have 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from divgrpc.errors import InvalidArgumentError
from divgrpc.metrics.judging import Values
from divgrpc.types import IntArray

_NONE: Final = -1
# Rows whose ancestors are looked at together, times their labels.
_BLOCK: Final = 2**20
# Wikipedia's categories have some twenty levels; a table of labels by levels must stay bounded.
_LEVELS_MAX: Final = 255


@dataclass(frozen=True, slots=True, eq=False)
class LabelTree:
    """A hierarchy as a tree over m nodes, of which the first L are the labels.

    `parents` (m,) int64: of each node, -1 of a root and of what no root reaches; `depths` (m,)
    int64, -1 for the latter; `ancestors` (L, h) int64: each label's on levels 1 to h, itself from
    its own level on, and -1 where it is unknown.
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
        """Prune the graph of edges parents[i] -> children[i] from its `roots` down.

        Nodes are numbers from 0 up, labels those below `label_count`. Without `roots` they are all
        nodes with children and without parents. Raises `InvalidArgumentError`, with the field
        `hierarchy`, where the edges are no such pairs, where there is no root, and for more than
        255 levels.
        """
        above, below = _edges(parents, children)
        nodes = max(label_count, int(max(above.max(initial=-1), below.max(initial=-1))) + 1)
        if roots is None:
            tops = np.setdiff1d(above, below)
        else:
            tops = np.unique(np.asarray(roots))
            if len(tops) and not (tops.dtype.kind in "iu" and 0 <= tops[0] <= tops[-1] < nodes):
                raise _wrong(f"must have roots from 0 to {nodes - 1}")
        if not len(tops):
            raise _wrong("must have a root: every node has a parent, so say where to begin")
        tree = np.full(nodes, _NONE)
        depths = np.full(nodes, _NONE)
        # Under an added root the given ones are on level 1.
        depths[tops] = level = int(len(tops) > 1)
        while True:
            reached = (depths[above] == level) & (depths[below] == _NONE)
            if not reached.any():
                break
            if level == _LEVELS_MAX:
                raise _wrong(f"must have at most {_LEVELS_MAX} levels below its root")
            found = np.full(nodes, nodes)
            np.minimum.at(found, below[reached], above[reached])
            new = np.flatnonzero(found < nodes)
            level += 1
            tree[new], depths[new] = found[new], level
        return cls(tree, depths, _ancestors(tree, depths, label_count))

    @classmethod
    def of_tree(cls, parents: npt.ArrayLike, depths: npt.ArrayLike, label_count: int) -> Self:
        """Take a tree as `parents` and `depths` (m,) have it, for instance from a file."""
        above, levels = np.asarray(parents, np.int64), np.asarray(depths, np.int64)
        return cls(above, levels, _ancestors(above, levels, label_count))

    @property
    def height(self) -> int:
        """The depth of the deepest label, the h of the formula."""
        return int(self.ancestors.shape[1])

    @property
    def unknown(self) -> IntArray:
        """The labels that no root reaches, ascending."""
        return np.flatnonzero(self.depths[: len(self.ancestors)] == _NONE)

    def drank(self, labels: npt.ArrayLike) -> Values:
        """Return the drank of each row of `labels` (nq, k), -1 for none: (nq,) float64, 0 to 1."""
        given = np.asarray(labels)
        if given.ndim != 2 or (given.dtype.kind not in "iu" and given.size):
            raise InvalidArgumentError("labels", "labels must be rows of whole numbers")
        rows = max(1, _BLOCK // max(1, given.shape[1]))
        parts = [self._drank(given[at : at + rows]) for at in range(0, len(given), rows)]
        return np.concatenate([np.empty(0), *parts])

    def _drank(self, labels: IntArray) -> Values:
        known = (labels >= 0) & (labels < len(self.ancestors))
        if not self.height:
            return np.zeros(len(labels))
        own = np.where(known, labels, 0)
        height = self.height
        below = _distinct(np.where(known, self.ancestors[own, height - 1], _NONE)) - 1
        if height == 1:
            return (below > 0).astype(np.float64)
        result = np.zeros(len(labels))
        for level in range(height - 1, 0, -1):
            here = _distinct(np.where(known, self.ancestors[own, level - 1], _NONE)) - 1
            merging = np.divide(here, below, out=np.zeros(len(labels)), where=below > 0)
            result += merging * (2 * (height - level) / (height * (height - 1)))
            below = here
        return result


def _edges(parents: npt.ArrayLike, children: npt.ArrayLike) -> tuple[IntArray, IntArray]:
    above, below = np.asarray(parents), np.asarray(children)
    if above.ndim != 1 or above.shape != below.shape:
        raise _wrong("must have as many parents as children")
    for ends in (above, below):
        if len(ends) and (ends.dtype.kind not in "iu" or ends.min() < 0):
            raise _wrong("must have whole numbers from 0 up")
    return above.astype(np.int64), below.astype(np.int64)


def _ancestors(parents: IntArray, depths: IntArray, label_count: int) -> IntArray:
    """Return (L, h): the ancestors on levels 1 to h, a label itself where it is a dummy's top."""
    height = int(depths[:label_count].max(initial=0))
    table = np.empty((label_count, height), np.int64)
    node = np.where(depths[:label_count] == _NONE, _NONE, np.arange(label_count))
    for level in range(height, 0, -1):
        deeper = (node != _NONE) & (depths[node] > level)
        node = np.where(deeper, parents[node], node)
        table[:, level - 1] = node
    return table


def _distinct(nodes: IntArray) -> IntArray:
    """Count the distinct nodes of each row, -1 left out."""
    if not nodes.shape[1]:
        return np.zeros(len(nodes), np.int64)
    ordered = np.sort(nodes, axis=1)
    new = np.diff(ordered, axis=1) != 0
    return np.asarray((new & (ordered[:, 1:] >= 0)).sum(axis=1) + (ordered[:, 0] >= 0))


def _wrong(what: str) -> InvalidArgumentError:
    return InvalidArgumentError("hierarchy", f"hierarchy {what}")
