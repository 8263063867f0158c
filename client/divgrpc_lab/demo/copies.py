"""The first part of the demonstration: near-copies, and the results of "more like this".

Every image is indexed ten times, each time with a little noise of its own, as shops have ten shots
of one product and archives ten copies of one story. A query is one of these images.
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
# The standard deviation of the noise of a pixel, which goes from 0 to 16: two copies have a cosine
# of .97 to 1, two images seldom more than .95.
NOISE: Final = 0.6
QUERIES: Final = 50
_BLOCKS: Final = 2
_LEGEND: Final = f"""
images: different images among the {K} results; ten copies of one image count once. same digit:
share of the results that show the query's digit. cosine: mean likeness to the query.
default: no options, which is {{selector}}, diversity {{diversity}}.
ideal: the {K} nearest different images, found by comparing all points; only copies are nearer."""


class Copies(NamedTuple):
    """Images with their noisy copies.

    `images` (n * COPIES, 64) float32, from 0 to 16; `digits` (n * COPIES,). The copies of one image
    follow one another.
    """

    images: FloatArray
    digits: IntArray

    @property
    def vectors(self) -> FloatArray:
        """The rows to index: images less their mean, whose cosines tell more."""
        return np.asarray(self.images - self.images.mean(axis=0))

    @property
    def rows(self) -> IntArray:
        """The rows of the queries, each a copy of another image."""
        order = np.random.default_rng(1).permutation(len(self.images) // COPIES)
        return order[:QUERIES] * COPIES


def copy_images(images: FloatArray, digits: IntArray) -> Copies:
    """Copy every image (n, 64) `COPIES` times, with noise of its own in each copy."""
    copies = np.repeat(images, COPIES, axis=0)
    noise = np.random.default_rng(0).normal(0, NOISE, copies.shape).astype(np.float32)
    return Copies(np.clip(copies + noise, 0, 16), np.repeat(digits, COPIES))


def build(client: Client, copies: Copies) -> None:
    """Index all copies with no options; ids are rows."""
    client.build(INDEX, copies.vectors, categories=copies.digits)


def show(out: Console, client: Client, copies: Copies) -> list[Block]:
    """Ask for plain nearest neighbours and with no options; print figures, return pictures.

    Copies of an image shown before are boxed.
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


def quality(
    copies: Copies, rows: IntArray, ids: IntArray, scores: FloatArray
) -> dict[str, str]:
    """Return the figures of some results as they are printed; an id of -1 is no result."""
    present = ids >= 0
    images = np.mean([len(np.unique(row[row >= 0] // COPIES)) for row in ids])
    same = copies.digits[ids] == copies.digits[rows][:, None]
    return {
        "images": f"{images:.1f} of {K}",
        "same digit": f"{same[present].mean():.3f}",
        "cosine": f"{scores[present].mean():.3f}",
    }


def ideal(copies: Copies, rows: IntArray) -> tuple[IntArray, FloatArray]:
    """Return the K nearest different images of some rows, by comparing all points.

    The nearest copy of each image counts: ids and cosines, both (nq, K).
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
