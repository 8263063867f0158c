"""Labelled documents made up in the size of LSHTC3, whose split in the paper is not public.

The paper has 754,000 documents of 1.6 million features, each with at least 4 of 259,000 labels.
Here:

- labels: popularity by Zipf's law, p(rank) ~ rank^-0.9, in random order. Some 130 consecutive ones
  are a topic;
- a document: a label by popularity, and others of its topic, by popularity too: four together, and
  Poisson(0.5) more;
- its words, Poisson(52) drawn: three in ten from a fifth of all words, which stand for nothing, by
  Zipf's law with Mandelbrot's shift, p(rank) ~ 1 / (rank + 10); three in ten from the words of its
  topic, the others from those of its labels. Topics share three in twenty of all words evenly,
  labels the rest: some 120 and 4 each. The first ones are drawn most, by the square of a uniform
  number.

Words are weighed and rows scaled as in `visual_words`. All words are numbered at random.

What is planted can be had as a model too. Every topic has a direction in r dimensions, of a falling
spectrum, every label one near its topic's. A word maps to the direction of what it stands for, so a
document to about the sum of its labels'; a label's row is as long as the root of its count.
"""

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import sparse

from divgrpc.types import FloatArray, IntArray
from divgrpc_lab.data.visual_words import weighted

DOCUMENTS: Final = 754_000
FEATURES: Final = 1_600_000
LABELS: Final = 259_000
ASKED: Final = 10_000

_ZIPF: Final = 0.9
_TOPIC_LABELS: Final = 130
_LABELS_LEAST: Final = 4
_LABELS_MORE: Final = 0.5
_DRAWN: Final = 52.0
# Of the words drawn, and of all words: background, topics. The others are the labels'.
_SHARES_DRAWN: Final = (0.3, 0.3)
_SHARES_OF_WORDS: Final = (0.2, 0.15)
_BLOCK: Final = 50_000
_SPREAD: Final = 0.8

# scipy's csr_array of float32, which has no types.
Csr: TypeAlias = Any
Numbers: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class LabelledDocuments:
    """Documents (n, d) with labels (n, L), and what is `asked` with its `truth`.

    All four are csr_array of float32: documents of unit length, labels 1. `topics` (L,) and
    `owners` (d,) int64: the topic of a label, and what a word stands for: a label, L plus a topic,
    or, for nothing, L plus the number of topics.
    """

    documents: Csr
    labels: Csr
    asked: Csr
    truth: Csr
    topics: IntArray
    owners: IntArray

    def planted(self, rank: int, *, seed: int = 0) -> tuple[FloatArray, FloatArray]:
        """Return label factors (L, rank) and a feature map (d, rank), float32."""
        random = np.random.default_rng(seed)
        spectrum = (1 / np.sqrt(1 + np.arange(rank) / 20)).astype(np.float32)

        def directions(count: int) -> FloatArray:
            drawn = random.standard_normal((count, rank), np.float32)
            drawn *= spectrum
            return _unit(drawn)

        centres = directions(int(self.topics[-1]) + 1)
        factors = directions(len(self.topics))
        factors *= np.float32(_SPREAD)
        factors += centres[self.topics]
        _unit(factors)
        nothing = np.zeros((1, rank), np.float32)
        feature_map: FloatArray = np.concatenate((factors, centres, nothing))[self.owners]
        counts = np.bincount(self.labels.indices, minlength=len(factors))
        factors *= np.sqrt(np.maximum(counts, 1)).astype(np.float32)[:, np.newaxis]
        return factors, feature_map


def labelled_documents(
    documents: int = DOCUMENTS,
    features: int = FEATURES,
    labels: int = LABELS,
    asked: int = ASKED,
    *,
    seed: int = 0,
) -> LabelledDocuments:
    """Make up a set; the same arguments give the same bytes.

    At least 1 document, 4 labels and 4 features for each of them; `asked` come on top. The full
    size takes some ten seconds and 1.5 GB.
    """
    random = np.random.default_rng(seed)
    popularity: Numbers = np.arange(1.0, labels + 1) ** -_ZIPF
    random.shuffle(popularity)
    ends = _even(labels, max(1, labels // _TOPIC_LABELS))
    vocabulary = _Vocabulary(random, features, labels, len(ends) - 1)
    words, truths = [], []
    for start in range(0, documents + asked, _BLOCK):
        count = min(_BLOCK, documents + asked - start)
        topic, truth = _drawn_labels(random, popularity, ends, count)
        truths.append(truth)
        words.append(vocabulary.drawn(random, topic, truth))
    rows = weighted(sparse.vstack(words, format="csr"), documents)
    truth = sparse.vstack(truths, format="csr")
    return LabelledDocuments(
        rows[:documents],
        truth[:documents],
        rows[documents:],
        truth[documents:],
        np.repeat(np.arange(len(ends) - 1), np.diff(ends)),
        vocabulary.owners,
    )


def _drawn_labels(
    random: np.random.Generator, popularity: Numbers, ends: IntArray, count: int
) -> tuple[IntArray, Csr]:
    """Return the topics (count,) and the labels (count, L) of documents.

    Of a topic's labels those that arrive first are taken, when they arrive at rates of their
    popularity: the same as drawing one after the other, none twice.
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
    counts = _LABELS_LEAST + random.poisson(_LABELS_MORE, count)
    counts = np.minimum(counts, np.diff(ends)[topic])
    order = np.argsort(arrivals, axis=1)[:, : counts.max()]
    is_taken = np.arange(order.shape[1]) < counts[:, np.newaxis]
    labels = np.take_along_axis(members, order, axis=1)[is_taken]
    starts = np.concatenate(([0], np.cumsum(counts)))
    ones = np.ones(len(labels), np.float32)
    matrix = sparse.csr_array((ones, labels, starts), (count, len(popularity)))
    matrix.sort_indices()
    return topic, matrix


class _Vocabulary:
    """Which words stand for what: `owners`, see `LabelledDocuments`."""

    def __init__(
        self, random: np.random.Generator, features: int, labels: int, topics: int
    ) -> None:
        nothing, of_topics = (int(share * features) for share in _SHARES_OF_WORDS)
        # In the order labels, topics, background; `ends` of the words of each label and topic.
        of_labels = features - nothing - of_topics
        self._ends = np.concatenate(
            (_even(of_labels, labels), of_labels + _even(of_topics, topics)[1:])
        )
        self._numbers = random.permutation(features).astype(np.int32)
        self._background = np.cumsum(1 / (np.arange(nothing) + 10.0))
        self.owners = np.full(features, labels + topics)
        owned = np.repeat(np.arange(labels + topics), np.diff(self._ends))
        self.owners[self._numbers[: len(owned)]] = owned

    def drawn(self, random: np.random.Generator, topic: IntArray, truth: Csr) -> Csr:
        """Return counts (n, d) of the words of documents."""
        row = np.repeat(np.arange(len(topic)), np.maximum(1, random.poisson(_DRAWN, len(topic))))
        among = np.diff(truth.indptr)[row]
        label = truth.indices[truth.indptr[row] + (random.random(len(row)) * among).astype(int)]
        kind = np.searchsorted(np.cumsum(_SHARES_DRAWN), random.random(len(row)), "right")
        owner = np.where(kind == 1, truth.shape[1] + topic[row], label)
        sizes = self._ends[owner + 1] - self._ends[owner]
        word = self._ends[owner] + (sizes * random.random(len(row)) ** 2).astype(int)
        nothing = np.flatnonzero(kind == 0)
        drawn = random.random(len(nothing)) * self._background[-1]
        word[nothing] = self._ends[-1] + np.searchsorted(self._background, drawn, "right")
        ones = np.ones(len(row), np.float32)
        # Words that were drawn twice are added up.
        at = (row.astype(np.int32), self._numbers[word])
        return sparse.csr_array((ones, at), shape=(len(topic), len(self.owners)))


def _even(things: int, parts: int) -> IntArray:
    """Return where parts of consecutive things begin and end, (parts + 1,)."""
    return np.arange(parts + 1) * things // parts


def _unit(rows: FloatArray) -> FloatArray:
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows
