"""The first part of the demonstration: near-copies, and what "more like this" returns among them.

Every image is indexed ten times, each time with a little noise of its own, as shops have ten shots
of one product and archives ten copies of one story. A query is one of these images.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from rich.console import Console

from divgrpc.types import FloatArray, IntArray
from divgrpc_client.client import Client
from divgrpc_client.formats import tables
from divgrpc_lab.contact_sheet import Block, Strip
from divgrpc_lab.demo.queries import Answers, K, ask, describe

INDEX: Final = "copies"
COPIES: Final = 10
# The standard deviation of the noise of a pixel, which goes from 0 to 16: two copies have a cosine
# of .97 to 1, two images seldom more than .95.
NOISE: Final = 0.6
QUERIES: Final = 50
SHOWN: Final = 2

_LEGEND: Final = """
images: different images among the {k} results; ten copies of one image count once. same digit:
share of the results that show the query's digit. cosine: mean likeness to the query.
default: no options, which is {selector}, diversity {diversity:g}.
ideal: the {k} nearest different images, found by comparing all points; only copies are nearer.
{times}"""
TIMES: Final = """\
ms, round trip: what a caller on this machine waits for one query, gRPC included. µs, worker: the
search and the selection alone, on one thread of a worker."""


class Copies(NamedTuple):
    """Images with their noisy copies.

    `images` (n * COPIES, 64) float32, from 0 to 16; `digits` (n * COPIES,). The copies of one image
    follow one another.
    """

    images: FloatArray
    digits: npt.NDArray[np.int64]

    @property
    def vectors(self) -> FloatArray:
        """What is indexed: a cosine of images tells more once their mean is taken away."""
        centred: FloatArray = self.images - self.images.mean(axis=0)
        return centred


def copy_images(images: FloatArray, digits: npt.NDArray[np.int64]) -> Copies:
    """Copy every image (n, 64) `COPIES` times, with noise of its own in each copy."""
    repeated = np.repeat(images, COPIES, axis=0)
    noise = np.random.default_rng(0).normal(0, NOISE, repeated.shape).astype(np.float32)
    return Copies(np.clip(repeated + noise, 0, 16), np.repeat(digits, COPIES))


def choose_queries(copies: Copies) -> IntArray:
    """Return the rows that are asked about, each a copy of another image."""
    originals = np.random.default_rng(1).permutation(len(copies.images) // COPIES)[:QUERIES]
    return originals * COPIES


def build(client: Client, copies: Copies) -> None:
    """Index all copies with no options; ids are rows."""
    client.build(INDEX, copies.vectors, categories=copies.digits)


def ask_both(client: Client, copies: Copies, rows: IntArray) -> list[Answers]:
    """Ask for the plain nearest neighbours of some rows, and with no options at all."""
    settings = {"nearest": {"diversity": 0.0}, "default": {}}
    return ask(client, INDEX, copies.vectors[rows], copies.digits[rows], settings)


def quality(copies: Copies, rows: IntArray, ids: IntArray, scores: FloatArray) -> tuple[str, ...]:
    """Return the figures of some results as they are printed; an id of -1 is no result."""
    present = ids >= 0
    images = np.mean([len(np.unique(row[row >= 0] // COPIES)) for row in ids])
    same = copies.digits[ids] == copies.digits[rows][:, None]
    return f"{images:.1f} of {K}", f"{same[present].mean():.3f}", f"{scores[present].mean():.3f}"


def ideal(copies: Copies, rows: IntArray) -> tuple[IntArray, FloatArray]:
    """Return the K nearest different images of some rows, by comparing all points.

    Of each image the nearest copy counts: ids and cosines, both (nq, K).
    """
    unit = copies.vectors / np.linalg.norm(copies.vectors, axis=1, keepdims=True)
    cosines = (unit[rows] @ unit.T).reshape(len(rows), -1, COPIES)
    nearest_copy = cosines.max(axis=2)
    images = np.argsort(-nearest_copy, axis=1, kind="stable")[:, :K]
    position = np.take_along_axis(cosines.argmax(axis=2), images, axis=1)
    return images * COPIES + position, np.take_along_axis(nearest_copy, images, axis=1)


def report(out: Console, copies: Copies, rows: IntArray, both: Sequence[Answers]) -> None:
    """Print what each setting returned."""
    out.print(
        f"\n1. Near-copies. Every image is indexed {COPIES} times with a little noise, "
        f"{len(copies.images):,} points.\n"
        f"   {len(rows)} of them are the queries: more like this.\n"
    )
    grid = tables.table(
        *("results", ">diversity", ">images", ">same digit", ">cosine"),
        *(">ms, round trip", ">µs, worker"),
    )
    for answers in both:
        grid.add_row(
            answers.name,
            f"{answers.parameters.diversity:g}",
            *quality(copies, rows, answers.ids, answers.scores),
            f"{answers.round_trip_seconds * 1e3:.2f}",
            f"{answers.worker_seconds * 1e6:.0f}",
        )
    grid.add_row("ideal", "", *quality(copies, rows, *ideal(copies, rows)), "", "")
    out.print(grid)
    used = both[-1].parameters
    out.print(
        _LEGEND.format(
            k=K,
            selector=describe(used),
            diversity=used.diversity,
            times=TIMES,
        ),
        style="dim",
    )


def blocks(copies: Copies, rows: IntArray, both: Sequence[Answers]) -> list[Block]:
    """Draw the results of the first queries; copies of an image shown before are boxed."""
    return [
        Block(
            f"More like this {copies.digits[row]}",
            [_strip(copies, answers, position) for answers in both],
        )
        for position, row in enumerate(rows[:SHOWN].tolist())
    ]


def _strip(copies: Copies, answers: Answers, position: int) -> Strip:
    ids = answers.ids[position]
    ids = ids[ids >= 0]
    _, first = np.unique(ids // COPIES, return_index=True)
    repeated = np.ones(len(ids), bool)
    repeated[first] = False
    caption = f"{len(first)} different of {K}"
    return Strip(answers.name, caption, copies.images[ids].reshape(-1, 8, 8) / 16, repeated)
