"""The first part of the demonstration: "more like this" queries among near-copies.

Every image is indexed ten times, each time with different slight noise. Real collections are
similar: a shop has ten photographs of a product, an archive ten copies of a story. A query is one
of the indexed copies.
"""

from typing import Final, NamedTuple

import numpy as np
from rich.console import Console

from divgrpc.types import FloatArray, IntArray
from divgrpc_client.client import Client
from divgrpc_lab.contact_sheet import Block, Strip
from divgrpc_lab.data.topics import HyperplaneQueries
from divgrpc_lab.demo.queries import Answers, K, ask, print_answers

INDEX: Final = "copies"
COPIES: Final = 10
# Standard deviation of the noise added to each pixel. Pixels have values from 0 to 16. Two copies
# of an image have a cosine of 0.97 to 1. Two different images seldom have more than 0.95.
NOISE: Final = 0.6
QUERIES: Final = 50
_BLOCKS: Final = 2
_LEGEND: Final = f"""
images: different images among the {K} results; ten copies of one image count once. same digit:
share of the results that show the query's digit. cosine: mean cosine with the query.
default: no options, which is {{selector}}, diversity {{diversity}}.
ideal: the {K} nearest different images, found by comparing all points; no other image is nearer."""


class Copies(NamedTuple):
    """Images with their noisy copies.

    `images` (n * COPIES, 64) are float32 from 0 to 16, and `digits` (n * COPIES,) has their digits.
    The copies of one image are consecutive.
    """

    images: FloatArray
    digits: IntArray

    @property
    def vectors(self) -> FloatArray:
        """The rows to index: images minus their mean, because cosines then discriminate better."""
        return np.asarray(self.images - self.images.mean(axis=0))

    @property
    def rows(self) -> IntArray:
        """The rows that are used as queries, each a copy of a different image."""
        order = np.random.default_rng(1).permutation(len(self.images) // COPIES)
        return order[:QUERIES] * COPIES


def copy_images(images: FloatArray, digits: IntArray) -> Copies:
    """Copy every image (n, 64) `COPIES` times and add different noise to each copy."""
    copies = np.repeat(images, COPIES, axis=0)
    noise = np.random.default_rng(0).normal(0, NOISE, copies.shape).astype(np.float32)
    return Copies(np.clip(copies + noise, 0, 16), np.repeat(digits, COPIES))


def build(client: Client, copies: Copies) -> None:
    """Index all copies with default options; the id of a copy is its row."""
    client.build(INDEX, copies.vectors, categories=copies.digits)


def show(out: Console, client: Client, copies: Copies) -> list[Block]:
    """Query once for plain nearest neighbours and once with the defaults; return images.

    Figures are printed. A result that shows the same image as an earlier result is boxed.
    """
    rows = copies.rows
    queries = HyperplaneQueries(copies.vectors[rows], copies.digits[rows])
    answers = ask(client, INDEX, queries, {"nearest": {"diversity": 0.0}, "default": {}})
    figures = {item.name: quality(copies, rows, item.ids, item.scores) for item in answers}
    figures["ideal"] = quality(copies, rows, *ideal(copies, rows))
    heading = (
        f"1. Near-copies. Every image is indexed {COPIES} times with a little noise, "
        f"{len(copies.images):,} points.\n"
        f"   {len(rows)} of them are the queries: more like this."
    )
    print_answers(out, heading, answers, figures, _LEGEND)
    return [
        Block(
            f"More like this {copies.digits[row]}",
            [_strip(copies, item, place) for item in answers],
        )
        for place, row in enumerate(rows[:_BLOCKS].tolist())
    ]


def quality(copies: Copies, rows: IntArray, ids: IntArray, scores: FloatArray) -> dict[str, str]:
    """Return the printed figures of results; ids of -1 are padding."""
    present = ids >= 0
    images = np.mean([len(np.unique(row[row >= 0] // COPIES)) for row in ids])
    is_same_digit = copies.digits[ids] == copies.digits[rows][:, None]
    return {
        "images": f"{images:.1f} of {K}",
        "same digit": f"{is_same_digit[present].mean():.3f}",
        "cosine": f"{scores[present].mean():.3f}",
    }


def ideal(copies: Copies, rows: IntArray) -> tuple[IntArray, FloatArray]:
    """Return ids and cosines, (nq, K) each, of the K nearest different images of `rows`.

    Every image is represented by its nearest copy. All points are compared.
    """
    unit = copies.vectors / np.linalg.norm(copies.vectors, axis=1, keepdims=True)
    cosines = (unit[rows] @ unit.T).reshape(len(rows), -1, COPIES)
    nearest_copy = cosines.max(axis=2)
    images = np.argsort(-nearest_copy, axis=1, kind="stable")[:, :K]
    copy = np.take_along_axis(cosines.argmax(axis=2), images, axis=1)
    return images * COPIES + copy, np.take_along_axis(nearest_copy, images, axis=1)


def _strip(copies: Copies, answers: Answers, place: int) -> Strip:
    ids = answers.ids[place]
    ids = ids[ids >= 0]
    _, first = np.unique(ids // COPIES, return_index=True)
    is_copy = ~np.isin(np.arange(len(ids)), first)
    images = copies.images[ids].reshape(-1, 8, 8) / 16
    return Strip(answers.name, f"{len(first)} different of {K}", images, is_copy)
