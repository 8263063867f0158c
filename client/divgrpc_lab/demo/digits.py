"""The second part of the demonstration: the paper's queries, for even and for odd digits.

The images fall into three parts that share none: those indexed, a pool that the reported queries
are learned from, and a pool for the queries that the dial is chosen on. So neither the queries nor
the choice of the dial has seen what the figures are about.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from rich.console import Console

from divgrpc.metrics import Labels, Values, judge, mean, measure
from divgrpc.types import FloatArray, IntArray
from divgrpc_client.client import Client
from divgrpc_client.formats import tables
from divgrpc_lab.contact_sheet import Block, Strip
from divgrpc_lab.demo.queries import Answers, K, ask, describe
from divgrpc_lab.data.hyperplanes import HyperplaneQueries, hyperplane_queries

INDEX: Final = "digits"
CATEGORIES: Final = ("even", "odd")
# A sixth of the images to learn the reported queries from, a sixth for the dial's.
POOL_SHARE: Final = 1 / 6
QUERIES_PER_CATEGORY: Final = 25
DIAL_QUERIES_PER_CATEGORY: Final = 10
DIALS: Final = (0.1, 0.3, 0.5, 0.7, 0.9)
SHOWN_PER_CATEGORY: Final = 2

SHOWN: Final = ("precision", "subtopic_recall", "normalised_entropy", "h_score")
_LEGEND: Final = """
P: share of the {k} results that are even or odd as asked. SR: share of the five digits of that kind
among them. D: how evenly those digits are spread. h: harmonic mean of P and D for each query, then
the mean.
default: no options, which is {selector}, diversity {diversity:g}. best dial: the same with that
diversity of {dials} which has most h on other queries, learned from other images."""


class Digits(NamedTuple):
    """Images (n, 64) float32 from 0 to 16, and the digit (n,) of each."""

    images: FloatArray
    digits: npt.NDArray[np.int64]

    @property
    def categories(self) -> npt.NDArray[np.int64]:
        """0 for even digits, 1 for odd ones; the digits are their sub-topics."""
        return self.digits % 2


class Parts(NamedTuple):
    """Which images are indexed, and which ones queries are learned from."""

    indexed: IntArray
    reported: IntArray
    dial: IntArray


def load() -> Digits:
    """Return the 1,797 digits that scikit-learn carries."""
    from sklearn.datasets import load_digits

    result = load_digits()
    return Digits(result.data.astype(np.float32), result.target.astype(np.int64))


def split(count: int) -> Parts:
    """Deal the images into three parts that share none."""
    order = np.random.default_rng(0).permutation(count)
    pool = round(count * POOL_SHARE)
    return Parts(
        indexed=np.sort(order[2 * pool :]), reported=order[:pool], dial=order[pool : 2 * pool]
    )


def build(client: Client, data: Digits, indexed: IntArray) -> None:
    """Index some of the images; their ids are their places in the data."""
    client.build(
        INDEX,
        data.images[indexed],
        ids=indexed,
        categories=data.categories[indexed],
        subtopics=data.digits[indexed],
    )


def learn(data: Digits, pool: IntArray, per_category: int, seed: int) -> HyperplaneQueries:
    """Learn queries for even and for odd digits from the images of a pool."""
    return hyperplane_queries(data.images[pool], data.categories[pool], per_category, seed)


def measured(
    data: Digits, indexed: IntArray, asked: HyperplaneQueries, ids: IntArray
) -> dict[str, Values]:
    """Say how good the results of some queries are."""
    labels = Labels.of(data.categories[indexed], data.digits[indexed], indexed)
    return measure(judge(ids, asked.asked, labels))


def choose_dial(client: Client, data: Digits, parts: Parts, **options: Any) -> float:  # noqa: ANN401  # Query's
    """Return the diversity whose mean h is best, on queries that are not reported."""
    asked = learn(data, parts.dial, DIAL_QUERIES_PER_CATEGORY, seed=2)

    def h(diversity: float) -> float:
        result = client.query(INDEX, asked.queries, k=K, diversity=diversity, **options)
        return mean(measured(data, parts.indexed, asked, result.ids)["h_score"])

    return max(DIALS, key=h)


def ask_all(client: Client, asked: HyperplaneQueries, dial: float) -> list[Answers]:
    """Ask for the plain nearest neighbours, with no options, and at the best dial."""
    settings = {
        "nearest": {"diversity": 0.0},
        "default": {},
        "best dial": {"diversity": dial},
    }
    return ask(client, INDEX, asked.queries, asked.asked, settings)


def report(
    out: Console,
    parts: Parts,
    answers: Sequence[Answers],
    qualities: Sequence[dict[str, Values]],
) -> None:
    """Print the figures of each setting, and what they mean."""
    out.print(
        f"\n2. Even or odd. {len(answers[0].ids)} hyperplane queries ask for even and for odd "
        f"digits among {len(parts.indexed):,} images;\n"
        f"   they were learned from {len(parts.reported)} images that are not indexed.\n"
    )
    grid = tables.table(
        *("results", ">diversity", ">P", ">SR", ">D", ">h", ">ms, round trip", ">µs, worker")
    )
    for item, quality in zip(answers, qualities, strict=True):
        grid.add_row(
            item.name,
            f"{item.parameters.diversity:g}",
            *(f"{mean(quality[name]):.3f}" for name in SHOWN),
            f"{item.round_trip_seconds * 1e3:.2f}",
            f"{item.worker_seconds * 1e6:.0f}",
        )
    out.print(grid)
    used = answers[1].parameters
    out.print(
        _LEGEND.format(
            k=K,
            selector=describe(used),
            diversity=used.diversity,
            dials=", ".join(f"{dial:g}" for dial in DIALS),
        ),
        style="dim",
    )


def blocks(
    data: Digits,
    asked: HyperplaneQueries,
    answers: Sequence[Answers],
    qualities: Sequence[dict[str, Values]],
) -> list[Block]:
    """Draw the results of the first queries of each category; the wrong ones are boxed."""
    first = [int(np.argmax(asked.asked == category)) for category in range(len(CATEGORIES))]
    shown = [start + n for start in first for n in range(SHOWN_PER_CATEGORY)]
    return [
        Block(
            f"{CATEGORIES[asked.asked[position]].capitalize()} digits, query {position + 1}",
            [
                strip(
                    data,
                    int(asked.asked[position]),
                    item.name,
                    item.ids[position],
                    f", h {quality['h_score'][position]:.2f}",
                )
                for item, quality in zip(answers, qualities, strict=True)
            ],
        )
        for position in shown
    ]


def strip(data: Digits, category: int, name: str, ids: IntArray, more: str = "") -> Strip:
    """Draw the results of one query, ids (K,); digits of the other kind are wrong."""
    ids = ids[ids >= 0]
    wrong = data.categories[ids] != category
    kinds = len(np.unique(data.digits[ids[~wrong]]))
    caption = f"{len(ids) - int(wrong.sum())} of {K} right, {kinds} of 5 digits{more}"
    return Strip(name, caption, data.images[ids].reshape(-1, 8, 8) / 16, wrong)
