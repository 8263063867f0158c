"""How good results are: precision, sub-topic recall, diversity, and the trade between them.

The definitions are the paper's, with its slips put right: the entropy has its minus sign and counts
only relevant results, and h is the mean of the queries' own values, not made of means.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Quality:
    """One value per query; every array is (nq,) float64.

    `precision`: the share of the k results that are of the category asked for;
    `subtopic_recall`: the share of that category's sub-topics among the relevant results;
    `diversity`: the entropy of those sub-topics over the greatest it could be, 0 without a relevant
    result; `h`: the harmonic mean of precision and diversity.
    """

    precision: Values
    subtopic_recall: Values
    diversity: Values
    h: Values

    def means(self) -> dict[str, float]:
        """Return the mean over the queries of each measure."""
        return {name: float(getattr(self, name).mean()) for name in self.__dataclass_fields__}

    @classmethod
    def of(cls, ids: Ids, asked: Ids, labels: "Labels", indexed: Ids) -> Self:
        """Measure results `ids` (nq, k), -1 where there is none, to queries for `asked` (nq,).

        `indexed` holds the ids that could have been found. A category needs two sub-topics or
        more, or diversity means nothing.
        """
        possible = {
            int(category): len(np.unique(labels.subtopics[_within(indexed, labels, category)]))
            for category in np.unique(asked)
        }
        rows = []
        for found, category in zip(ids, asked, strict=True):
            relevant = _within(found[found >= 0], labels, category)
            precision = len(relevant) / len(found)
            counts = np.unique(labels.subtopics[relevant], return_counts=True)[1]
            most = possible[int(category)]
            diversity = entropy(counts) / math.log(most)
            h = harmonic_mean(precision, diversity)
            rows.append((precision, len(counts) / most, diversity, h))
        return cls(*np.array(rows, np.float64).reshape(-1, 4).T)


class Labels(NamedTuple):
    """The category (n,) and the sub-topic (n,) of each point, looked up by id."""

    categories: Ids
    subtopics: Ids


def _within(ids: Ids, labels: Labels, category: np.integer) -> Ids:
    return ids[np.equal(labels.categories[ids], category)]


def entropy(counts: npt.NDArray[np.integer]) -> float:
    """Return the entropy of positive counts in nats, 0 for none."""
    shares = counts / max(1, counts.sum())
    # One count alone sums to minus zero.
    return max(0.0, float(-(shares * np.log(shares)).sum()))


def harmonic_mean(a: float, b: float) -> float:
    """Return 2ab / (a + b), and 0 where both are 0."""
    return 2 * a * b / (a + b) if a + b else 0.0
