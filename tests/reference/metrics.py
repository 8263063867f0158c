"""Slow, obvious twins of `divgrpc.metrics`: one query at a time, from the definitions."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from reference.definitions import Floats, distance

Point = tuple[int, int]


@dataclass
class List:
    """One result list: ids with -1 for none, and of all points the category and the sub-topic.

    `relevant` holds the ids that count as such.
    """

    ids: Sequence[int]
    points: Mapping[int, Point]
    relevant: set[int]

    @property
    def hits(self) -> list[bool]:
        """Whether each place has a relevant result that was not there before."""
        return [i in self.relevant and i not in self.ids[:at] for at, i in enumerate(self.ids)]

    @property
    def subtopics(self) -> list[int]:
        """The sub-topic at each place, -1 where the result is not relevant or has none."""
        both = zip(self.hits, self.ids, strict=True)
        return [self.points[i][1] if hit else -1 for hit, i in both]

    @property
    def possible(self) -> set[int]:
        """The sub-topics of all relevant points."""
        return {self.points[i][1] for i in self.relevant} - {-1}


def precision(one: List) -> float:
    """Return the share of places with a hit."""
    return sum(one.hits) / len(one.ids)


def recall(one: List) -> float:
    """Return the share of relevant points that are hits."""
    return sum(one.hits) / len(one.relevant)


def harmonic(a: float, b: float) -> float:
    """Return the harmonic mean, 0 of two zeros."""
    return 2 / (1 / a + 1 / b) if a and b else 0.0 * (a + b)


def f_score(one: List) -> float:
    """Return the harmonic mean of precision and recall."""
    return harmonic(precision(one), recall(one))


def average_precision(one: List) -> float:
    """Return the mean of the precision at every hit, over all relevant points."""
    at = [sum(one.hits[: n + 1]) / (n + 1) for n, hit in enumerate(one.hits) if hit]
    return sum(at) / len(one.relevant)


def reciprocal_rank(one: List) -> float:
    """Return one over the rank of the first hit."""
    return 1 / (one.hits.index(True) + 1) if any(one.hits) else 0.0


def one_call(one: List) -> float:
    """Return 1 where there is a hit."""
    return float(any(one.hits))


def n_call(one: List) -> float:
    """Return 1 where there are only hits."""
    return float(all(one.hits))


def majority_accuracy(one: List, asked: int) -> float:
    """Return 1 where the most frequent category, the first of equals, is the one asked for."""
    votes = [one.points[i][0] for i in dict.fromkeys(one.ids) if i >= 0 and one.points[i][0] >= 0]
    # Counter keeps the order in which things came, and most_common is stable.
    return float(bool(votes) and Counter(votes).most_common(1)[0][0] == asked)


def subtopic_recall(one: List) -> float:
    """Return the share of sub-topics that are there."""
    if not one.possible:
        return math.nan
    return len(set(one.subtopics) - {-1}) / len(one.possible)


def normalised_entropy(one: List) -> float:
    """Return the entropy of the sub-topics that are there, over the greatest."""
    if len(one.possible) < 2:
        return math.nan
    counts = Counter(s for s in one.subtopics if s >= 0).values()
    shares = [count / sum(counts) for count in counts]
    return -sum(s * math.log(s) for s in shares) / math.log(len(one.possible))


def h_score(one: List) -> float:
    """Return the harmonic mean of precision and entropy."""
    return harmonic(precision(one), normalised_entropy(one))


def alpha_dcg(subtopics: Sequence[int], alpha: float) -> float:
    """Return the discounted gain of a list of sub-topics."""
    return sum(
        (1 - alpha) ** subtopics[:at].count(s) / math.log2(2 + at)
        for at, s in enumerate(subtopics)
        if s >= 0
    )


def alpha_ndcg(one: List, alpha: float = 0.5) -> float:
    """Return that gain over the gain of the list that takes the best relevant point each time."""
    left = [one.points[i][1] for i in sorted(one.relevant) if one.points[i][1] >= 0]
    best: list[int] = []
    while left and len(best) < len(one.ids):
        best.append(min(left, key=best.count))
        left.remove(best[-1])
    return alpha_dcg(one.subtopics, alpha) / alpha_dcg(best, alpha) if best else math.nan


def err_ia(one: List, alpha: float = 0.5) -> float:
    """Return the mean over sub-topics of the expected reciprocal rank, over the greatest."""
    if not one.possible:
        return math.nan

    def expected(hits: Sequence[bool]) -> float:
        value, going_on = 0.0, 1.0
        for at, hit in enumerate(hits):
            if hit:
                value += going_on / (at + 1)
                going_on *= 1 - alpha
        return value

    each = [expected([s == own for s in one.subtopics]) for own in one.possible]
    return sum(each) / len(each) / expected([True] * len(one.ids))


def list_distances(points: Floats, query: Floats, rows: Sequence[int], metric: str) -> list[float]:
    """Return the mean distance to the query, and the mean and least between results."""

    def cosine(a: Floats, b: Floats) -> float:
        lengths = np.linalg.norm(a.astype(float)) * np.linalg.norm(b.astype(float))
        return float(a.astype(float) @ b.astype(float) / lengths) if lengths else 0.0

    def apart(a: Floats, b: Floats) -> float:
        if metric == "euclidean":
            return distance(a, b)
        return (2 if metric == "cosine" else 1) * (1 - cosine(a, b))

    chosen = [points[row] for row in rows if row >= 0]
    pairs = [apart(a, b) for a, b in combinations(chosen, 2)]
    near = [apart(query, a) if metric != "inner_product" else math.nan for a in chosen]
    return [
        sum(near) / len(near) if near else math.nan,
        sum(pairs) / len(pairs) if pairs else math.nan,
        min(pairs, default=math.nan),
    ]


def pareto_front(h: Sequence[float], seconds: Sequence[float]) -> list[bool]:
    """Compare each setting with every other."""
    both = list(zip(h, seconds, strict=True))
    return [
        not any(h1 >= h0 and t1 <= t0 and (h1 > h0 or t1 < t0) for h1, t1 in both)
        and not math.isnan(h0 + t0)
        for h0, t0 in both
    ]


def bootstrap(columns: Floats, draws: int, seed: int) -> list[Floats]:
    """Return the means (draws, m) of the rows, each time of as many drawn with replacement."""
    rng = np.random.default_rng(seed)
    return [columns[rng.integers(len(columns), size=len(columns))].mean(0) for _ in range(draws)]


def cut(labels: Sequence[int], k: int) -> list[int]:
    """Return the labels of the first k places, each once, in order."""
    return list(dict.fromkeys(label for label in labels[:k] if label >= 0))


def label_hits(predicted: Sequence[int], truth: set[int]) -> int:
    """Count the labels that are right."""
    return len(truth.intersection(predicted))


def label_ndcg(labels: Sequence[int], truth: set[int], k: int) -> float:
    """Return nDCG of the first k places."""
    hits = [label in truth and label not in labels[:at] for at, label in enumerate(labels[:k])]
    gained = sum(hit / math.log2(at + 2) for at, hit in enumerate(hits))
    best = sum(1 / math.log2(at + 2) for at in range(min(k, len(truth))))
    return gained / best if best else 0.0


def propensity_scored(
    predicted: Sequence[Sequence[int]], truths: Sequence[set[int]], inverse: Floats, k: int
) -> float:
    """Divide the sum of what was found by that of what could be."""
    both = list(zip(predicted, truths, strict=True))
    gained = sum(float(inverse[label]) for own, true in both for label in own if label in true)
    best = sum(sum(sorted((float(inverse[t]) for t in true), reverse=True)[:k]) for true in truths)
    return gained / best if best else 0.0


def coverage(predicted: Sequence[Sequence[int]], truths: Sequence[set[int]]) -> float:
    """Return the share of the labels that occur that were found right anywhere."""
    both = zip(predicted, truths, strict=True)
    found = {label for own, true in both for label in own if label in true}
    return len(found) / max(1, len(set().union(*truths)))


def bfs_tree(edges: Sequence[tuple[int, int]], roots: Sequence[int]) -> dict[int, int]:
    """Return the parent of each node that is reached, -1 of the roots, level by level."""
    parents = dict.fromkeys(roots, -1)
    level = set(roots)
    while level:
        found: dict[int, int] = {}
        for above, below in sorted(edges):
            if above in level and below not in parents:
                found.setdefault(below, above)
        parents |= found
        level = set(found)
    return parents


def drank(labels: Sequence[int], edges: Sequence[tuple[int, int]], roots: Sequence[int]) -> float:
    """Return the drank of a set on the tree of a graph, all labels being its nodes.

    Every node has a path from the root of the same length: what is too short is drawn out by
    names of its own.
    """
    parents = bfs_tree(edges, roots)

    def path(node: int) -> list[object]:
        names: list[object] = []
        while node >= 0:
            names.insert(0, node)
            node = parents[node]
        return names if len(roots) == 1 else ["root", *names]

    height = max(len(path(node)) for node in parents) - 1
    chosen = sorted({label for label in labels if label in parents})
    paths = [path(label) for label in chosen]
    drawn = [p + [("below", p[-1], i) for i in range(height + 1 - len(p))] for p in paths]
    if len(drawn) < 2:
        return 0.0
    if height == 1:
        return 1.0
    counts = [len({tuple(p[: level + 1]) for p in drawn}) for level in range(height + 1)]
    value = 0.0
    for level in range(height - 1, 0, -1):
        if counts[level + 1] == 1:
            break
        factor = 2 * (height - level) / (height * (height - 1))
        value += (counts[level] - 1) / (counts[level + 1] - 1) * factor
    return value
