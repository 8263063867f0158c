"""`drank` agrees with worked examples and a slow reference, on random graphs and a thesaurus."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from divgrpc.metrics import JudgedLabels, LabelTree, measure_labels
from divgrpc.types import IntArray
from reference import metrics as reference
from support.checks.refusals import refused

examples = settings(max_examples=200)

# The tree of the worked examples. Labels below A1 are called x, labels below A2 y, and all others
# by other letters.
ABOVE = {
    "A": "root",
    "B": "root",
    "C": "root",
    "A1": "A",
    "A2": "A",
    "A3": "A",
    "B1": "B",
    "C1": "C",
    **dict.fromkeys(("x1", "x2", "x3"), "A1"),
    **dict.fromkeys(("y1",), "A2"),
    **dict.fromkeys(("z1",), "A3"),
    **dict.fromkeys(("b1", "b2"), "B1"),
    **dict.fromkeys(("c1",), "C1"),
}


def numbered(above: dict[str, str]) -> tuple[LabelTree, dict[str, int]]:
    names = {name: number for number, name in enumerate(sorted({*above, *above.values()}))}
    edges = [(names[parent], names[child]) for child, parent in above.items()]
    parents, children = zip(*edges, strict=True)
    return LabelTree.of_edges(parents, children, len(names)), names


def drank(above: dict[str, str], labels: str) -> float:
    tree, names = numbered(above)
    return float(tree.drank([[names[label] for label in labels.split()]])[0])


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ("x1 x2 x3", Fraction(0)),
        ("x1 x2 y1", Fraction(1, 6)),
        ("x1 y1 z1", Fraction(1, 3)),
        ("x1 x2 y1 b1", Fraction(5, 9)),
        ("x1 y1 b1", Fraction(2, 3)),
        ("x1 b1 c1", Fraction(1)),
        # Labels that have children are padded to the depth of the deepest labels.
        ("A x1", Fraction(1, 3)),
        ("A A1 x1", Fraction(1, 6)),
        ("root x1", Fraction(1)),
    ],
)
def test_worked_examples(labels: str, expected: Fraction) -> None:
    assert drank(ABOVE, labels) == pytest.approx(float(expected), abs=1e-12)


def test_a_shallow_label_is_padded() -> None:
    """A leaf directly below A gets a dummy child, so drank with x1 and b1 is 1/3 + 1/2 * 2/3."""
    assert drank(ABOVE | {"y": "A"}, "x1 y b1") == pytest.approx(2 / 3)


@pytest.mark.parametrize("labels", [[], [-1, -1], [4], [4, 4, -1], [4, 99, -5]])
def test_fewer_than_two_labels_have_zero(labels: list[int]) -> None:
    tree, _ = numbered(ABOVE)
    assert tree.drank(np.array([labels], np.int64)).tolist() == [0]


def test_graphs_are_pruned_breadth_first() -> None:
    """A node keeps the smallest of its parents on the level above, so cycles are removed."""
    edges = [(6, 3), (6, 5), (5, 2), (3, 2), (2, 0), (3, 0), (0, 6), (0, 0), (5, 1), (5, 1), (2, 5)]
    parents, children = zip(*edges, strict=True)
    tree = LabelTree.of_edges(parents, children, 3, roots=[6])
    # Label 2 has parents 3 and 5. Label 0 gets parent 3, because its other parent 2 is on a lower
    # level. Node 4 is unknown.
    assert tree.parents.tolist() == [3, 5, 3, 6, -1, 6, -1]
    assert tree.depths.tolist() == [2, 2, 2, 1, -1, 1, 0]
    again = LabelTree.of_edges(parents[::-1], children[::-1], 3, roots=[6])
    assert np.array_equal(tree.parents, again.parents)
    assert tree.height == 2


def test_labels_outside_the_tree_are_ignored_and_listed() -> None:
    tree = LabelTree.of_edges([4, 4, 2], [0, 1, 3], 4, roots=[4])
    assert tree.unknown.tolist() == [2, 3]
    assert tree.drank([[0, 1, 2, 3, 77]]).tolist() == tree.drank([[0, 1]]).tolist() == [1]


@pytest.mark.parametrize(
    ("parents", "children", "roots", "message"),
    [
        ([0, 1], [1, 0], None, "every node has a parent"),
        ([0], [1, 2], None, "as many parents as children"),
        ([0], [-1], None, "from 0 up"),
        ([0.5], [1], None, "whole numbers"),
        ([0], [1], [], "a root"),
        ([0], [1], [7], "roots from 0 to 2"),
        (range(300), range(1, 301), None, "at most 255 levels"),
    ],
)
def test_wrong_hierarchies_are_refused(
    parents: list[int], children: list[int], roots: list[int] | None, message: str
) -> None:
    with refused("hierarchy", message):
        LabelTree.of_edges(parents, children, 3, roots)


nodes = st.integers(0, 7)


@given(
    st.lists(st.tuples(nodes, nodes), max_size=20),
    st.lists(nodes, min_size=1, max_size=2, unique=True),
    st.lists(st.lists(st.integers(-1, 9), min_size=5, max_size=5), min_size=1, max_size=4),
)
@examples
def test_random_graphs_agree_with_the_reference(
    edges: list[tuple[int, int]], roots: list[int], sets: list[list[int]]
) -> None:
    parents, children = ([pair[end] for pair in edges] for end in (0, 1))
    tree = LabelTree.of_edges(
        np.array(parents, np.int64), np.array(children, np.int64), 8, roots=roots
    )
    expected = reference.bfs_tree(edges, roots)
    assert {n: p for n, p in enumerate(tree.parents) if tree.depths[n] >= 0} == expected
    result = tree.drank(sets)
    assert result.tolist() == pytest.approx([reference.drank(s, edges, roots) for s in sets])
    assert ((result >= 0) & (result <= 1 + 1e-12)).all()


def test_h_combines_precision_and_drank() -> None:
    """Drank counts all predicted labels, right or wrong."""
    tree, names = numbered(ABOVE)
    labels: IntArray = np.array([[names["x1"], names["b1"]], [names["x1"], names["x2"]]])

    class Truth:
        indptr = np.array([0, 1, 3])
        indices = np.array([names["x1"], names["x1"], names["x2"]])
        shape = (2, len(names))

    values = measure_labels(JudgedLabels.of(labels, Truth()), tree.drank)
    assert values["drank"].tolist() == [1, 0]
    assert values["h_score"].tolist() == pytest.approx([2 / 3, 0])


def test_a_cyclic_thesaurus_becomes_a_tree(data_folder: Path) -> None:
    """In EuroVoc, related pairs of terms are linked in both directions."""
    with np.load(data_folder / "eurovoc_hierarchy.npz", allow_pickle=False) as file:
        a, b, count, root = (file[n] for n in ("related_a", "related_b", "n_labels", "root"))
        parents = np.concatenate([file["edge_parent"], a, b])
        children = np.concatenate([file["edge_child"], b, a])
    tree = LabelTree.of_edges(parents, children, int(count), roots=[int(root)])
    plain = LabelTree.of_edges(parents[: -2 * len(a)], children[: -2 * len(a)], int(count))
    assert len(tree.unknown) == 0
    assert (tree.depths <= plain.depths).all()
    # Links to related terms bring some nodes nearer to the root.
    assert (tree.depths < plain.depths).any()
    siblings = np.flatnonzero(tree.parents[: int(count)] == tree.parents[0])[:5]
    assert tree.depths[siblings].max() == tree.depths[siblings].min()
    rng = np.random.default_rng(0)
    values = tree.drank(rng.integers(int(count), size=(1_000, 5)))
    assert 0.8 < values.mean() < 1
    assert tree.drank(siblings[None])[0] < values.min()
