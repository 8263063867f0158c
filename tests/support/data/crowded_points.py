"""Collections of points in which many items occur several times, as near-copies.

`made` generates topics, stories of each topic and near-copies of each story. The cosine of two
copies of a story is 0.98, of two stories of a topic 0.61, and of two topics near 0. `injected`
takes real points and replaces some rows by exact or jittered copies of other rows. Each `Crowd` has
four kinds of queries.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from scipy import sparse

from divgrpc.metrics import Labels
from divgrpc.types import FloatArray, IntArray
from divgrpc_lab.data.topics import Topics

# A dense (n, d) float32 array, or scipy's csr_array of float32.
Points: TypeAlias = Any

DIMS: Final = 128
STORIES: Final = 20
# The kinds of queries, in the order in which reports list them.
KINDS: Final = ("documents", "new documents", "topics", "hyperplanes")
# Norms of the random parts that are added to a topic of norm 1. With these norms, the cosines are
# those in the module's docstring.
_STORY: Final = 0.8
_COPY: Final = (1.64 * (1 / 0.98 - 1)) ** 0.5
# Norm of the noise that is added to a topic to get a query near it. The cosine with the topic is
# then about 0.96.
_NEAR_TOPIC: Final = 0.3
# Norm of the noise in a jittered copy of a real point. With this norm, two jittered copies have
# cosine 0.98.
_JITTER: Final = (1 / 0.98 - 1) ** 0.5
# A topic vector is the mean of this many rows.
_MEAN_OF: Final = 30
# Rows are generated in blocks of this size.
_BLOCK: Final = 1 << 16


class Queries(NamedTuple):
    """Unit vectors `rows` (nq, d), dense or sparse, and the `categories` (nq,) they ask for."""

    rows: Points
    categories: IntArray

    def half(self, odd: bool) -> "Queries":
        """Return every second query, starting with the first or, if `odd`, with the second."""
        return Queries(self.rows[int(odd) :: 2], self.categories[int(odd) :: 2])


@dataclass(frozen=True, eq=False)
class Crowd:
    """Unit points (n, d), the item (n,) that each point is a copy of, labels, and queries."""

    name: str
    points: Points
    items: IntArray
    labels: Labels
    queries: Mapping[str, Queries]
    sha256: str

    @property
    def crowded(self) -> bool:
        """Whether any item occurs more than once."""
        return len(np.unique(self.items)) < len(self.items)

    def described(self) -> dict[str, str]:
        """Return the entries of the environment record that describe the data."""
        rows, dims = self.points.shape
        copies = np.bincount(self.items)
        copies = copies[copies > 0]
        return {
            "data": f"{self.name}, {rows:,} x {dims:,}",
            "data sha256": self.sha256,
            "items": f"{len(copies):,}, {copies.mean():.1f} copies each, at most {copies.max():,}",
        }


def even_copies(count: int, copies: int) -> IntArray:
    """Return the number of copies of each item: `copies` for all, and about `count` in total."""
    topics = max(2, round(count / (STORIES * copies)))
    return np.full(topics * STORIES, copies)


def power_law_copies(count: int, mean: int = 10, seed: int = 0) -> IntArray:
    """Return numbers of copies, shuffled; the r-th greatest is about proportional to 1 / r."""
    topics = max(2, round(count / (STORIES * mean)))
    ranks = np.arange(1, topics * STORIES + 1)
    shares = (1 / ranks) / (1 / ranks).sum()
    copies = 1 + np.floor(shares * (count - len(ranks))).astype(np.int64)
    return np.random.default_rng(seed).permutation(copies)


def made(name: str, copies: IntArray, queries: int, seed: int = 0) -> Crowd:
    """Generate a crowd with STORIES stories per topic and `copies` (items,) copies per story."""
    rng = np.random.default_rng(seed)
    topics = _unit(_normal(rng, len(copies) // STORIES))
    topic_of_story = np.repeat(np.arange(len(topics)), STORIES)
    stories = topics[topic_of_story] + _STORY * _unit(_normal(rng, len(copies)))
    items = rng.permutation(np.repeat(np.arange(len(copies)), copies))
    points = _copies(stories, items, rng)
    query_topics = rng.integers(len(topics), size=queries)
    rows = rng.integers(len(points), size=(2, queries))
    means = [
        stories[topic * STORIES + rng.permutation(STORIES)[: STORIES // 2]].mean(axis=0)
        for topic in query_topics
    ]
    near_topics = topics[query_topics] + _NEAR_TOPIC * _unit(_normal(rng, queries))
    return Crowd(
        name=name,
        points=points,
        items=items,
        labels=Labels.of(topic_of_story[items], items),
        queries={
            "documents": Queries(points[rows[0]], topic_of_story[items[rows[0]]]),
            "new documents": Queries(
                _copies(stories, items[rows[1]], rng), topic_of_story[items[rows[1]]]
            ),
            "topics": Queries(_unit(near_topics), query_topics),
            "hyperplanes": Queries(_unit(np.array(means) - stories.mean(axis=0)), query_topics),
        },
        sha256=f"seed {seed}",
    )


def injected(data: Topics, share: float, queries: int, seed: int = 0) -> Crowd:
    """Return real points in which a `share` of the rows is replaced by copies of other rows.

    The remaining rows are the items, and each is copied with the same probability. Every second
    copy is exact; the others are jittered. In dense rows jitter is noise in all directions, in
    sparse rows it is noise on the stored values. With a share of 0 the points do not change.
    """
    rng = np.random.default_rng(seed)
    count = data.points.shape[0]
    points, originals = data.points, np.arange(count)
    if share:
        items = rng.permutation(count)[: max(1, round(count * (1 - share)))]
        copies = rng.choice(items, count - len(items))
        originals = np.concatenate([items, copies])
        jitter_mask = np.zeros(count, bool)
        jitter_mask[len(items) :: 2] = True
        order = rng.permutation(count)
        originals, jitter_mask = originals[order], jitter_mask[order]
        points = _jittered(data.points[originals], jitter_mask, rng)
    labels = Labels.of(data.labels.categories[originals], data.labels.subtopics[originals])
    some = rng.choice(np.flatnonzero(np.isin(labels.categories, data.query_categories)), queries)
    # A document that shares no word with the points has no direction, so it cannot be a query.
    lengths = np.asarray(abs(data.pool).sum(axis=1)).ravel()
    new = np.flatnonzero(np.isin(data.pool_categories, data.query_categories) & (lengths > 0))
    new = rng.choice(new, queries)
    categories = rng.choice(data.query_categories, queries)
    return Crowd(
        name=f"{data.name}, {share:.0%} copies",
        points=points,
        items=originals,
        labels=labels,
        queries={
            "documents": Queries(points[some], labels.categories[some]),
            "new documents": Queries(data.pool[new], data.pool_categories[new]),
            "topics": Queries(_means(data, categories, rng), categories),
            "hyperplanes": _hyperplanes(data, queries),
        },
        sha256=data.sha256,
    )


def _hyperplanes(data: Topics, queries: int) -> Queries:
    """Return about `queries` hyperplane queries, the same even number for each category."""
    count = 2 * max(1, round(queries / len(data.query_categories) / 2))
    return Queries(*data.queries(count))


def _means(data: Topics, categories: IntArray, rng: np.random.Generator) -> FloatArray:
    """Return a dense unit vector per category (nq,): the mean of some pool rows of the category."""
    rows: Sequence[FloatArray] = [
        np.asarray(
            data.pool[rng.choice(np.flatnonzero(data.pool_categories == category), _MEAN_OF)].mean(
                axis=0
            )
        ).ravel()
        for category in categories
    ]
    return _unit(np.array(rows))


def _copies(stories: FloatArray, items: IntArray, rng: np.random.Generator) -> FloatArray:
    """Return a new near-copy for each of the `items`."""
    rows = np.empty((len(items), stories.shape[1]), np.float32)
    for start in range(0, len(items), _BLOCK):
        some = items[start : start + _BLOCK]
        rows[start : start + _BLOCK] = _unit(stories[some] + _COPY * _unit(_normal(rng, len(some))))
    return rows


def _jittered(points: Points, jitter_mask: Any, rng: np.random.Generator) -> Points:  # noqa: ANN401  # a mask
    """Return unit rows in which noise was added to the rows marked in `jitter_mask` (n,)."""
    if sparse.issparse(points):
        rows = sparse.csr_array(points, copy=True)
        value_mask = np.repeat(jitter_mask, np.diff(rows.indptr))
        noise = rng.standard_normal(rows.nnz).astype(np.float32)
        rows.data[value_mask] *= 1 + np.float32(_JITTER) * noise[value_mask]
        lengths = np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1))).ravel()
        rows.data /= np.repeat(lengths, np.diff(rows.indptr)).astype(np.float32)
        return rows
    rows = points.copy()
    noise = _unit(rng.standard_normal((int(jitter_mask.sum()), rows.shape[1]), np.float32))
    rows[jitter_mask] = _unit(rows[jitter_mask] + np.float32(_JITTER) * noise)
    return rows


def _normal(rng: np.random.Generator, rows: int) -> FloatArray:
    return rng.standard_normal((rows, DIMS), np.float32)


def _unit(rows: FloatArray) -> FloatArray:
    unit: FloatArray = np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32)
    return np.ascontiguousarray(unit)
