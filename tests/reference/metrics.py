"""Slow reference implementations of `divgrpc.metrics`, from the definitions, query by query."""

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
    """One result list.

    `ids` are the returned ids, -1 for an empty place. `points` maps every id to its category and
    sub-topic. `relevant` holds the ids of the relevant points.
    """

    ids: Sequence[int]
    points: Mapping[int, Point]
    relevant: set[int]

    @property
    def hits(self) -> list[bool]:
        """Whether each place holds a relevant result that occurs at no earlier place."""
        return [i in self.relevant and i not in self.ids[:at] for at, i in enumerate(self.ids)]

    @property
    def subtopics(self) -> list[int]:
        """The sub-topic at each place; -1 if the result is not relevant or has no sub-topic."""
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
    """Return the harmonic mean; 0 if either value is 0."""
    return 2 / (1 / a + 1 / b) if a and b else 0.0 * (a + b)


def f_score(one: List) -> float:
    """Return the harmonic mean of precision and recall."""
    return harmonic(precision(one), recall(one))


def average_precision(one: List) -> float:
    """Return the sum of the precisions at the hits, divided by the number of relevant points."""
    at = [sum(one.hits[: n + 1]) / (n + 1) for n, hit in enumerate(one.hits) if hit]
    return sum(at) / len(one.relevant)


def reciprocal_rank(one: List) -> float:
    """Return one over the rank of the first hit."""
    return 1 / (one.hits.index(True) + 1) if any(one.hits) else 0.0


def one_call(one: List) -> float:
    """Return 1 if any result is a hit, else 0."""
    return float(any(one.hits))


def n_call(one: List) -> float:
    """Return 1 if all results are hits, else 0."""
    return float(all(one.hits))


def majority_accuracy(one: List, category: int) -> float:
    """Return 1 if the most frequent category, the first of several, is `category`, else 0."""
    votes = [one.points[i][0] for i in dict.fromkeys(one.ids) if i >= 0 and one.points[i][0] >= 0]
    # The first of equally frequent categories wins, because Counter keeps insertion order and
    # most_common is stable.
    return float(bool(votes) and Counter(votes).most_common(1)[0][0] == category)


def subtopic_recall(one: List) -> float:
    """Return the share of the relevant points' sub-topics that the results cover."""
    if not one.possible:
        return math.nan
    return len(set(one.subtopics) - {-1}) / len(one.possible)


def normalised_entropy(one: List) -> float:
    """Return the entropy of the results' sub-topics divided by the greatest possible entropy."""
    if len(one.possible) < 2:
        return math.nan
    counts = Counter(s for s in one.subtopics if s >= 0).values()
    shares = [count / sum(counts) for count in counts]
    return -sum(s * math.log(s) for s in shares) / math.log(len(one.possible))


def h_score(one: List) -> float:
    """Return the harmonic mean of precision and normalised entropy."""
    return harmonic(precision(one), normalised_entropy(one))


def alpha_dcg(subtopics: Sequence[int], alpha: float) -> float:
    """Return the discounted cumulative gain of a list of sub-topics."""
    return sum(
        (1 - alpha) ** subtopics[:at].count(s) / math.log2(2 + at)
        for at, s in enumerate(subtopics)
        if s >= 0
    )


def alpha_ndcg(one: List, alpha: float = 0.5) -> float:
    """Return the gain divided by the gain of a list with the best relevant point at each place."""
    rest = [one.points[i][1] for i in sorted(one.relevant) if one.points[i][1] >= 0]
    best: list[int] = []
    while rest and len(best) < len(one.ids):
        best.append(min(rest, key=best.count))
        rest.remove(best[-1])
    return alpha_dcg(one.subtopics, alpha) / alpha_dcg(best, alpha) if best else math.nan


def err_ia(one: List, alpha: float = 0.5) -> float:
    """Return the mean expected reciprocal rank over sub-topics, divided by its maximum."""
    if not one.possible:
        return math.nan

    def expected(hits: Sequence[bool]) -> float:
        value, going_on = 0.0, 1.0
        for at, hit in enumerate(hits):
            if hit:
                value += going_on / (at + 1)
                going_on *= 1 - alpha
        return value

    values = [expected([s == subtopic for s in one.subtopics]) for subtopic in one.possible]
    return sum(values) / len(values) / expected([True] * len(one.ids))


def list_distances(points: Floats, query: Floats, rows: Sequence[int], metric: str) -> list[float]:
    """Return the mean distance to the query, and the mean and minimum distance between results."""

    def cosine(a: Floats, b: Floats) -> float:
        lengths = np.linalg.norm(a.astype(float)) * np.linalg.norm(b.astype(float))
        return float(a.astype(float) @ b.astype(float) / lengths) if lengths else 0.0

    def apart(a: Floats, b: Floats) -> float:
        if metric == "euclidean":
            return distance(a, b)
        return (2 if metric == "cosine" else 1) * (1 - cosine(a, b))

    results = [points[row] for row in rows if row >= 0]
    pairs = [apart(a, b) for a, b in combinations(results, 2)]
    near = [apart(query, a) if metric != "inner_product" else math.nan for a in results]
    return [
        sum(near) / len(near) if near else math.nan,
        sum(pairs) / len(pairs) if pairs else math.nan,
        min(pairs, default=math.nan),
    ]


def pareto_front(h: Sequence[float], seconds: Sequence[float]) -> list[bool]:
    """Tell for each setting whether it is on the Pareto front.

    A setting is on the front if no other setting is better in one of quality and speed and at least
    as good in the other.
    """
    both = list(zip(h, seconds, strict=True))
    return [
        not any(h1 >= h0 and t1 <= t0 and (h1 > h0 or t1 < t0) for h1, t1 in both)
        and not math.isnan(h0 + t0)
        for h0, t0 in both
    ]


def cluster_t(
    gains: Sequence[float], possible: Sequence[float], groups: Sequence[int]
) -> tuple[float, float, float]:
    """Return sum(gains) / sum(possible), its standard error, and its degrees of freedom.

    Error and degrees are computed as in a regression on a constant with clustered errors, by Bell
    and McCaffrey's matrix formulas. A residual is a gain minus the ratio times the possible gain.
    Queries whose values are all 0 are left out. With one group the error is NaN.
    """
    rows = [row for row in zip(gains, possible, groups, strict=True) if row[0] or row[1]]
    whole = math.fsum(a for a, _, _ in rows) / math.fsum(b for _, b, _ in rows)
    clusters = sorted({group for _, _, group in rows})
    if len(clusters) == 1:
        return whole, math.nan, math.nan
    n = len(rows)
    members = [np.array([group == g for _, _, g in rows]) for group in clusters]
    residuals = np.array([a - whole * b for a, b, _ in rows])
    annihilator = np.eye(n) - np.full((n, n), 1 / n)
    influences = []
    for member in members:
        values, vectors = np.linalg.eigh(annihilator[np.ix_(member, member)])
        root = vectors @ np.diag(values**-0.5) @ vectors.T
        influences.append(annihilator[:, member] @ root @ np.full(member.sum(), 1 / n))
    error = math.sqrt(sum((influence @ residuals) ** 2 for influence in influences))
    products = np.array([[a @ b for a in influences] for b in influences])
    degrees = np.trace(products) ** 2 / np.trace(products @ products)
    return whole, error * n / abs(math.fsum(b for _, b, _ in rows)), float(degrees)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the least level at which Holm's procedure rejects each hypothesis."""
    levels = sorted(
        {min(p * m, 1.0) for p in p_values for m in range(1, len(p_values) + 1)} | {1.0}
    )
    adjusted_p = []
    for p in p_values:
        for level in levels:
            remaining = sorted(p_values)
            while remaining and remaining[0] * len(remaining) <= level:
                remaining.pop(0)
            if not remaining or p < remaining[0]:
                break
        adjusted_p.append(level)
    return adjusted_p


def cut(labels: Sequence[int], k: int) -> list[int]:
    """Return the labels in the first k places, without repetitions, in order."""
    return list(dict.fromkeys(label for label in labels[:k] if label >= 0))


def label_hits(labels: Sequence[int], truth: set[int]) -> int:
    """Count the predicted labels that are true."""
    return len(truth.intersection(labels))


def label_ndcg(labels: Sequence[int], truth: set[int], k: int) -> float:
    """Return the nDCG of the first k places."""
    hits = [label in truth and label not in labels[:at] for at, label in enumerate(labels[:k])]
    gain = sum(hit / math.log2(at + 2) for at, hit in enumerate(hits))
    best = sum(1 / math.log2(at + 2) for at in range(min(k, len(truth))))
    return gain / best if best else 0.0


def propensity_scored(
    predictions: Sequence[Sequence[int]], truths: Sequence[set[int]], inverse: Floats, k: int
) -> float:
    """Return the propensity-weighted sum of the true labels found, divided by its maximum."""
    both = list(zip(predictions, truths, strict=True))
    gain = sum(float(inverse[label]) for labels, true in both for label in labels if label in true)
    best = sum(sum(sorted((float(inverse[t]) for t in true), reverse=True)[:k]) for true in truths)
    return gain / best if best else 0.0


def coverage(predictions: Sequence[Sequence[int]], truths: Sequence[set[int]]) -> float:
    """Return the share of all true labels that are predicted correctly for some document."""
    both = zip(predictions, truths, strict=True)
    hits = {label for labels, true in both for label in labels if label in true}
    return len(hits) / max(1, len(set().union(*truths)))


def bfs_tree(edges: Sequence[tuple[int, int]], roots: Sequence[int]) -> dict[int, int]:
    """Return the parent of each node reached by a breadth-first search; a root's parent is -1."""
    parents = dict.fromkeys(roots, -1)
    level = set(roots)
    while level:
        new_parents: dict[int, int] = {}
        for above, below in sorted(edges):
            if above in level and below not in parents:
                new_parents.setdefault(below, above)
        parents |= new_parents
        level = set(new_parents)
    return parents


def drank(labels: Sequence[int], edges: Sequence[tuple[int, int]], roots: Sequence[int]) -> float:
    """Return the drank of a set of labels on the tree of a graph, where every label is a node.

    Every path from the root is made equally long: a path that is too short is extended by unique
    nodes below its end.
    """
    parents = bfs_tree(edges, roots)

    def path(node: int) -> list[object]:
        names: list[object] = []
        while node >= 0:
            names.insert(0, node)
            node = parents[node]
        return names if len(roots) == 1 else ["root", *names]

    height = max(len(path(node)) for node in parents) - 1
    nodes = sorted({label for label in labels if label in parents})
    paths = [path(label) for label in nodes]
    equal_paths = [p + [("below", p[-1], i) for i in range(height + 1 - len(p))] for p in paths]
    if len(equal_paths) < 2:
        return 0.0
    if height == 1:
        return 1.0
    counts = [len({tuple(p[: level + 1]) for p in equal_paths}) for level in range(height + 1)]
    value = 0.0
    for level in range(height - 1, 0, -1):
        if counts[level + 1] == 1:
            break
        factor = 2 * (height - level) / (height * (height - 1))
        value += (counts[level] - 1) / (counts[level + 1] - 1) * factor
    return value
