"""The second part of the demonstration: the paper's queries, for even and for odd digits.

The images are split into three disjoint parts: indexed images, a pool for learning the reported
queries, and a pool for learning the queries that choose the diversity. So no query is learned from
indexed images.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from rich.console import Console
from sklearn.datasets import load_digits

from divgrpc.metrics import PointCategories, Values, judge, mean, measure
from divgrpc.types import FloatArray, IntArray
from divgrpc_client.client import Client
from divgrpc_lab.contact_sheet import Block, Strip
from divgrpc_lab.data.topics import HyperplaneQueries, hyperplane_queries
from divgrpc_lab.demo.queries import K, ask, print_answers

INDEX: Final = "digits"
CATEGORIES: Final = ("even", "odd")
# Share of the images that each pool has.
_POOL_SHARE: Final = 1 / 6
_QUERIES_PER_CATEGORY, _DIAL_QUERIES_PER_CATEGORY, _BLOCKS_PER_CATEGORY = 25, 10, 2
DIALS: Final = (0.1, 0.3, 0.5, 0.7, 0.9)
# Letters of the reported figures.
_LETTERS: Final = {
    "P": "precision",
    "SR": "subtopic_recall",
    "D": "normalised_entropy",
    "h": "h_score",
}
_LEGEND: Final = f"""
P: share of the {K} results that are even or odd as the query asks. SR: share of the five digits of
that kind among them. D: how evenly those digits are spread. h: harmonic mean of P and D for each
query, then the mean.
default: no options, which is {{selector}}, diversity {{diversity}}. best dial: the same with the
diversity of {", ".join(map(str, DIALS))} that has the greatest h on queries learned from other
images."""


class Digits(NamedTuple):
    """Images (n, 64) float32 from 0 to 16, their digits (n,), and the rows of each part."""

    images: FloatArray
    digits: IntArray
    index_rows: IntArray
    report_rows: IntArray
    dial_rows: IntArray

    @property
    def categories(self) -> IntArray:
        """Parity of each digit, 0 for even and 1 for odd; the digits are the sub-topics."""
        return self.digits % 2


def load() -> Digits:
    """Return the 1,797 digits of scikit-learn in three parts."""
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.images))
    pool = round(len(order) * _POOL_SHARE)
    parts = (np.sort(order[2 * pool :]), order[:pool], order[pool : 2 * pool])
    return Digits(data.data.astype(np.float32), data.target.astype(np.int64), *parts)


def build(client: Client, data: Digits) -> None:
    """Index the images of the first part; the id of an image is its position in the data."""
    client.build(
        INDEX,
        data.images[data.index_rows],
        ids=data.index_rows,
        categories=data.categories[data.index_rows],
        subtopics=data.digits[data.index_rows],
    )


def learn(data: Digits, pool: IntArray, per_category: int, seed: int) -> HyperplaneQueries:
    """Learn queries for even and for odd digits from the images of a pool."""
    return hyperplane_queries(data.images[pool], data.categories[pool], per_category, seed)


def measured(data: Digits, queries: HyperplaneQueries, ids: IntArray) -> dict[str, Values]:
    """Return the figures P, SR, D and h of the results of each query."""
    points = PointCategories.of(
        data.categories[data.index_rows], data.digits[data.index_rows], data.index_rows
    )
    values = measure(judge(ids, queries.categories, points))
    return {letter: values[name] for letter, name in _LETTERS.items()}


def best_dial(client: Client, data: Digits, **options: Any) -> float:
    """Return the one of `DIALS` with the greatest mean h on queries that are not reported."""
    queries = learn(data, data.dial_rows, _DIAL_QUERIES_PER_CATEGORY, seed=2)

    def h(diversity: float) -> float:
        result = client.query(INDEX, queries.queries, k=K, diversity=diversity, **options)
        return mean(measured(data, queries, result.ids.astype(np.int64))["h"])

    return max(DIALS, key=h)


def show(out: Console, client: Client, data: Digits) -> tuple[list[Block], float]:
    """Query for plain nearest neighbours, with the defaults and at the best diversity.

    Prints the figures. Returns images, in which wrong digits are boxed, and the gain in h of the
    best diversity over nearest neighbours.
    """
    queries = learn(data, data.report_rows, _QUERIES_PER_CATEGORY, seed=1)
    dials = {"nearest": {"diversity": 0.0}, "default": {}}
    settings = dials | {"best dial": {"diversity": best_dial(client, data)}}
    answers = ask(client, INDEX, queries, settings)
    values = {item.name: measured(data, queries, item.ids) for item in answers}
    figures = {
        name: {letter: f"{mean(column):.3f}" for letter, column in columns.items()}
        for name, columns in values.items()
    }
    heading = (
        f"2. Even or odd. {len(queries.queries)} hyperplane queries ask for even and for odd "
        f"digits among {len(data.index_rows):,} images;\n"
        f"   they were learned from {len(data.report_rows)} images that are not indexed."
    )
    print_answers(out, heading, answers, figures, _LEGEND)
    blocks = []
    for place in queries.first_places(_BLOCKS_PER_CATEGORY).tolist():
        category = int(queries.categories[place])
        ids = {f"{item.name}": item.ids[place] for item in answers}
        captions = {name: f", h {columns['h'][place]:.2f}" for name, columns in values.items()}
        heading = f"{CATEGORIES[category].capitalize()} digits, query {place + 1}"
        blocks.append(block(data, category, heading, ids, captions))
    gain = mean(values["best dial"]["h"]) - mean(values["nearest"]["h"])
    return blocks, gain


def block(
    data: Digits,
    category: int,
    heading: str,
    ids: Mapping[str, IntArray],
    captions: Mapping[str, str],
) -> Block:
    """Return the result lists (K,) of one query; digits of the other parity are marked as wrong."""
    strips = []
    for name, row in ids.items():
        hits = row[row >= 0]
        wrong = data.categories[hits] != category
        kinds = len(np.unique(data.digits[hits[~wrong]]))
        right = len(hits) - int(wrong.sum())
        caption = f"{right} of {K} right, {kinds} of 5 digits{captions.get(name, '')}"
        strips.append(Strip(name, caption, data.images[hits].reshape(-1, 8, 8) / 16, wrong))
    return Block(heading, strips)
