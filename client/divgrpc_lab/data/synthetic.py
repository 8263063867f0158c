"""Generates synthetic documents and images in the sizes of the paper's data, which is not public.

The paper's LSHTC3 has 754,000 documents of 1.6 million features, each with at least 4 of 259,000
labels. The synthetic documents have:

- labels, whose popularity follows Zipf's law, p(rank) ~ rank^-0.9, in random order. About 130
  consecutive labels form a topic.
- 4 + Poisson(0.5) labels per document, all of one topic. The first label is drawn from all labels
  by popularity, the others from its topic by popularity.
- Poisson(52) words per document. 30 % of them are background words, 30 % are words of the topic,
  and 40 % are words of the labels. Background words are a fifth of the vocabulary and follow Zipf's
  law with Mandelbrot's shift, p(rank) ~ 1 / (rank + 10). 15 % of the vocabulary is divided evenly
  among the topics and the rest among the labels, which gives about 120 words per topic and 4 per
  label. Within a topic or label, the position of a word is proportional to the square of a uniform
  random number, so the first words are the most frequent.

Words are numbered at random, and weighted as `data.topics` weights visual words. The structure of
the data is also available as a label model of rank r, the planted model. Every topic has a random
direction in r dimensions, with a falling spectrum, and every label has a direction near its topic.
The feature map sends a word to the direction of its topic or label, and a background word to 0. So
the image of a document points roughly to its labels. The norm of a label's factors is the square
root of the number of documents with that label, or 1 if there are none.

The paper's images are bags of 48,000 visual words in 7 categories of 5 sub-topics. Synthetic images
are drawn like documents, with categories as topics and sub-topics as labels. An image has one
label, and all labels are equally popular.
"""

from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import sparse

from divgrpc.metrics import PointCategories
from divgrpc.types import FloatArray, IntArray
from divgrpc_lab.data.documents import Split
from divgrpc_lab.data.topics import Topics, weighted

# Sizes of LSHTC3: documents, features, labels and test documents. Sizes of the image set: indexed
# images, held-out images and visual words.
DOCUMENTS, FEATURES, LABELS, TEST_DOCUMENTS = 754_000, 1_600_000, 259_000, 10_000
IMAGES, POOL, WORDS = 35_000, 7_000, 48_000
_CATEGORIES, _SUBTOPICS = 7, 5

# Shares of background words and of topics' words, first among the drawn words, then in the
# vocabulary. The remaining words are those of labels.
_SHARES_DRAWN: Final = (0.3, 0.3)
_SHARES_OF_WORDS: Final = (0.2, 0.15)
# Number of words that are drawn at a time.
_BLOCK_WORDS: Final = 2_600_000
_SPREAD: Final = 0.8


class Mixture(NamedTuple):
    """Parameters of the distribution of labels and words.

    A topic has about `topic_labels` labels, and `exponent` is the Zipf exponent of their
    popularity. A document has `labels_min` + Poisson(`labels_more`) labels and Poisson(`words`)
    words.
    """

    topic_labels: int = 130
    exponent: float = 0.9
    labels_min: int = 4
    labels_more: float = 0.5
    words: float = 52.0


_IMAGES: Final = Mixture(_SUBTOPICS, 0.0, 1, 0.0, 700.0)

# A csr_array of float32. scipy has no type annotations.
Csr: TypeAlias = Any
Numbers: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelledDocuments(Split):
    """Generated documents of unit length and their labels, all as csr_array of float32.

    `topics` (L,) int64 has the topic of each label. `owners` (d,) int64 has the owner of each word:
    a label, or L plus the number of a topic, or L plus the number of topics for background words.
    """

    topics: IntArray
    owners: IntArray

    def planted(self, rank: int, *, seed: int = 0) -> tuple[FloatArray, FloatArray]:
        """Return the planted model: label factors (L, rank) and feature map (d, rank), float32."""
        random = np.random.default_rng(seed)
        spectrum = (1 / np.sqrt(1 + np.arange(rank) / 20)).astype(np.float32)

        def directions(count: int) -> FloatArray:
            rows = random.standard_normal((count, rank), np.float32)
            rows *= spectrum
            return _unit(rows)

        centres = directions(int(self.topics[-1]) + 1)
        factors = directions(len(self.topics))
        factors *= np.float32(_SPREAD)
        factors += centres[self.topics]
        _unit(factors)
        zero = np.zeros((1, rank), np.float32)
        feature_map: FloatArray = np.concatenate((factors, centres, zero))[self.owners]
        counts = np.bincount(self.labels.indices, minlength=len(factors))
        factors *= np.sqrt(np.maximum(counts, 1)).astype(np.float32)[:, np.newaxis]
        return factors, feature_map


def labelled_documents(
    documents: int = DOCUMENTS,
    features: int = FEATURES,
    labels: int = LABELS,
    tests: int = TEST_DOCUMENTS,
    *,
    mixture: Mixture = Mixture(),  # noqa: B008  # immutable
    seed: int = 0,
) -> LabelledDocuments:
    """Generate a data set; the same arguments give the same bytes.

    `documents` and `labels` must be at least 1, and `features` at least 4 per label. A document has
    at most as many labels as its topic. `tests` is the number of additional test documents. The
    default size takes about ten seconds and 1.5 GB.
    """
    random = np.random.default_rng(seed)
    popularity: Numbers = np.arange(1.0, labels + 1) ** -mixture.exponent
    random.shuffle(popularity)
    ends = _even(labels, max(1, labels // mixture.topic_labels))
    vocabulary = _Vocabulary(random, features, labels, len(ends) - 1)
    words, truths = [], []
    block = int(_BLOCK_WORDS / mixture.words)
    for start in range(0, documents + tests, block):
        count = min(block, documents + tests - start)
        topic, truth = _drawn_labels(random, popularity, ends, count, mixture)
        truths.append(truth)
        words.append(vocabulary.drawn(random, topic, truth, mixture.words))
    counts = sparse.csr_array(sparse.vstack(words))
    counts.sort_indices()
    counts.data = np.sqrt(counts.data)
    rows = weighted(counts, counts[:documents])
    truth = sparse.csr_array(sparse.vstack(truths))
    return LabelledDocuments(
        name="synthetic documents",
        sha256=f"seed {seed}",
        documents=rows[:documents],
        labels=truth[:documents],
        test_documents=rows[documents:],
        truth=truth[documents:],
        topics=np.repeat(np.arange(len(ends) - 1), np.diff(ends)),
        owners=vocabulary.owners,
    )


def visual_words(
    images: int = IMAGES, pool: int = POOL, words: int = WORDS, *, seed: int = 0
) -> Topics:
    """Generate `images` to index and a `pool` to learn queries from, as bags of visual words.

    A linear classifier separates these categories easily. Therefore the set is suitable for
    measuring times and memory, but not quality.
    """
    split = labelled_documents(
        images, words, _CATEGORIES * _SUBTOPICS, pool, mixture=_IMAGES, seed=seed
    )
    # An image has one label.
    subtopics, pool_subtopics = (matrix.indices for matrix in (split.labels, split.truth))
    return Topics(
        name=f"visual words, {images:,} x {words:,}",
        sha256=f"seed {seed} for {images:,} images",
        points=split.documents,
        labels=PointCategories.of(split.topics[subtopics], subtopics),
        pool=split.test_documents,
        pool_categories=split.topics[pool_subtopics],
    )


def _drawn_labels(
    random: np.random.Generator, popularity: Numbers, ends: IntArray, count: int, mixture: Mixture
) -> tuple[IntArray, Csr]:
    """Draw the topics (count,) and the labels (count, L) of documents.

    Each label of the topic gets an exponential arrival time whose rate is its popularity, and the
    earliest labels are taken. This is equivalent to drawing labels by popularity without
    replacement.
    """
    sums = np.cumsum(popularity)
    first = np.searchsorted(sums, random.random(count) * sums[-1], "right")
    topic = np.searchsorted(ends, first, "right") - 1
    members = ends[topic][:, np.newaxis] + np.arange(np.diff(ends).max())
    absent = members >= ends[topic + 1][:, np.newaxis]
    members[absent] = 0
    arrivals = random.exponential(size=members.shape) / popularity[members]
    arrivals[members == first[:, np.newaxis]] = 0
    arrivals[absent] = np.inf
    counts = mixture.labels_min + random.poisson(mixture.labels_more, count)
    counts = np.minimum(counts, np.diff(ends)[topic])
    order = np.argsort(arrivals, axis=1)[:, : counts.max()]
    is_present = np.arange(order.shape[1]) < counts[:, np.newaxis]
    labels = np.take_along_axis(members, order, axis=1)[is_present]
    starts = np.concatenate(([0], np.cumsum(counts)))
    ones = np.ones(len(labels), np.float32)
    matrix = sparse.csr_array((ones, labels, starts), (count, len(popularity)))
    matrix.sort_indices()
    return topic, matrix


class _Vocabulary:
    """The vocabulary and its `owners`, which `LabelledDocuments` explains."""

    def __init__(
        self, random: np.random.Generator, features: int, labels: int, topics: int
    ) -> None:
        of_background, of_topics = (int(share * features) for share in _SHARES_OF_WORDS)
        # Words are ordered by owner: labels, topics, background. `_ends` has the boundaries between
        # the words of consecutive labels and topics.
        of_labels = features - of_background - of_topics
        self._ends = np.concatenate(
            (_even(of_labels, labels), of_labels + _even(of_topics, topics)[1:])
        )
        self._numbers = random.permutation(features).astype(np.int32)
        self._background = np.cumsum(1 / (np.arange(of_background) + 10.0))
        self.owners = np.full(features, labels + topics)
        owners = np.repeat(np.arange(labels + topics), np.diff(self._ends))
        self.owners[self._numbers[: len(owners)]] = owners

    def drawn(self, random: np.random.Generator, topic: IntArray, truth: Csr, words: float) -> Csr:
        """Draw words for documents and return their counts (n, d), about `words` per document."""
        row = np.repeat(np.arange(len(topic)), np.maximum(1, random.poisson(words, len(topic))))
        among = np.diff(truth.indptr)[row]
        label = truth.indices[truth.indptr[row] + (random.random(len(row)) * among).astype(int)]
        kind = np.searchsorted(np.cumsum(_SHARES_DRAWN), random.random(len(row)), "right")
        owner = np.where(kind == 1, truth.shape[1] + topic[row], label)
        sizes = self._ends[owner + 1] - self._ends[owner]
        word = self._ends[owner] + (sizes * random.random(len(row)) ** 2).astype(int)
        background = np.flatnonzero(kind == 0)
        places = random.random(len(background)) * self._background[-1]
        word[background] = self._ends[-1] + np.searchsorted(self._background, places, "right")
        ones = np.ones(len(row), np.float32)
        # csr_array sums the entries of a word that was drawn several times.
        at = (row.astype(np.int32), self._numbers[word])
        return sparse.csr_array((ones, at), shape=(len(topic), len(self.owners)))


def _even(things: int, parts: int) -> IntArray:
    """Return the boundaries (parts + 1,) that divide `things` evenly into consecutive parts."""
    return np.arange(parts + 1) * things // parts


def _unit(rows: FloatArray) -> FloatArray:
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows
