"""Draw the paper's figures again: points in a plane, seven queries, and the lemma.

The first figure is a plane with two classes of sub-clusters. It shows the points that four methods
pick for one query: nearest neighbours, greedy over all points, greedy over the points that hashing
retrieves, and greedy over as many exact nearest points. The second figure shows the ten results of
seven queries for even or odd digits, with wrong results boxed. A server computes the results of
both figures. The last figures show the paper's lemma (`divgrpc_lab.lemma`). Data, hashes and draws
are seeded, so every run gives the same bytes.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

import divgrpc
from divgrpc.metrics import mean
from divgrpc.types import FloatArray, IntArray
from divgrpc_client.client import Client
from divgrpc_client.formats import tables
from divgrpc_client.reports.charts import LIGHT, Chart, draw
from divgrpc_client.reports.page import (
    Figure,
    Figures,
    Page,
    Result,
    ResultList,
    ResultLists,
    Section,
    data_uri,
    write_page,
)
from divgrpc_lab import lemma
from divgrpc_lab.contact_sheet import Block, Strip, write_contact_sheet
from divgrpc_lab.data.topics import HyperplaneQueries
from divgrpc_lab.demo import digits
from divgrpc_lab.demo.queries import K
from divgrpc_lab.experiment import NOT_THE_PAPERS_DATA, records_table
from divgrpc_lab.server_process import running_server

QUERIES: Final = 7
TOY_K: Final = 10
TOY_DIVERSITY: Final = 0.6
TOY_HEIGHT: Final = 2

_ALL: Final[Mapping[str, Any]] = {"search": "exact", "hash_limit": 0, "candidates_limit": 0}
# Search in a Hamming ball around the query. In the plane the ball has 200 of the 360 points.
# Class A has 240 of the 360.
_BALL: Final[Mapping[str, Any]] = {"search": "scan_hamming"}
_TOY_LIMIT: Final = 200
_TOY_BALL: Final[Mapping[str, Any]] = {**_BALL, "hash_limit": _TOY_LIMIT}
_TOY_NEAREST: Final[Mapping[str, Any]] = {**_ALL, "candidates_limit": _TOY_LIMIT}
TOY_METHODS: Final[Mapping[str, Mapping[str, Any]]] = {
    "Nearest": {"selector": "nearest", **_ALL},
    "Greedy": {"selector": "greedy", "diversity": TOY_DIVERSITY, **_ALL},
    "LSH-SDiv": {"selector": "greedy", "diversity": TOY_DIVERSITY, **_TOY_BALL},
    f"Greedy, nearest {_TOY_LIMIT}": {
        "selector": "greedy",
        "diversity": TOY_DIVERSITY,
        **_TOY_NEAREST,
    },
}
# The diversities of MMR and LSH-SDiv are chosen on other queries.
DIGIT_METHODS: Final[Mapping[str, Mapping[str, Any]]] = {
    "NN": {"selector": "nearest", **_ALL},
    "MMR": {"selector": "mmr", **_ALL},
    "LSH-SDiv": {"selector": "greedy", **_BALL},
}
_TOY_TEXT: Final = (
    "Circles are class A, squares class B, the star is the query; picked points are filled. The "
    "plane lies in space, at a height of 2, and points are compared by their angles from the "
    "origin. Greedy and LSH-SDiv take the same steps at the same diversity: greedy over all "
    f"points, LSH-SDiv over those in a Hamming ball around the query, {_TOY_LIMIT} of the 360. "
    f"The last panel is greedy over the exact nearest {_TOY_LIMIT} points. It shows how much of "
    "LSH-SDiv comes from the limit, which is below the 240 points of class A, and not from "
    "hashing. "
    "Distances are measured in the plane. They are means over picks, or over pairs of picks."
)
_LEMMA_TEXT: Final = (
    "The lemma: the share of bits in which a point differs from the query lies near p, the angle "
    f"between them divided by π, for each of {lemma.LEMMA_POINTS} points at the same distance. The "
    "printed bound holds for one point. A bound for all m points at once needs log(2m/δ) in place "
    f"of log(2/δ). With δ = {lemma.DELTA}, all points are within the printed bound in fewer than "
    f"{1 - lemma.DELTA:.0%} of the draws."
)
_RETRIEVED_TEXT: Final = (
    "Algorithm 1 does not compare shares of bits: a point is retrieved if it has the query's key "
    f"in at least one of {lemma.TABLES} tables. Each of {lemma.QUERIES} queries has {lemma.NEAR} "
    f"near points at distance {lemma.RADII[0]:g} and {lemma.FAR} far points at "
    f"{lemma.RADII[1]:g}, so "
    f"ε is {lemma.EPSILON:g}. The last column is the paper's n^(1/(1+ε)) for the number n of all "
    "points. Longer keys keep far points out and lose near ones, as Eq. 5 predicts. So the "
    "probability of being retrieved depends on the distance."
)
_LEAD: Final = (
    f"{NOT_THE_PAPERS_DATA} Nearest neighbours, greedy over all points, greedy after hashing, and "
    "the paper's lemma."
)
_DIGITS_TEXT: Final = (
    "Queries are hyperplanes that ask for even or odd digits; the five digits of a kind are its "
    "sub-topics. NN and MMR see every point, LSH-SDiv a Hamming ball around the query. Diversities "
    "were chosen on other queries. Wrong results are boxed."
)
_SHEET_TEXT: Final = "Ten results each, in the order they were picked. Wrong ones are boxed."


class Toy(NamedTuple):
    """Points (n, 2) float32 of class 0 (A) or 1 (B), and a query (2,) at the centre of A."""

    points: FloatArray
    classes: IntArray
    query: FloatArray


class SevenQueries(NamedTuple):
    """The digits, seven queries, and for each method the ids (7, K) of its results and its dial.

    A dial is a value of `diversity`.
    """

    data: digits.Digits
    queries: HyperplaneQueries
    results: Mapping[str, IntArray]
    dials: Mapping[str, float]


def add_options(verb: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    text = "Write the page, or a folder of pictures, here (default figures.html)."
    verb.add_argument("--out", type=Path, default=Path("figures.html"), help=text)


def run(arguments: argparse.Namespace) -> int:
    """Draw the figures and return the exit code.

    If `--out` ends in .html, the page is written to this file. Otherwise the page, SVG and PNG
    files are written to the folder `--out`.
    """
    out: Path = arguments.out
    path = out if out.suffix == ".html" else out / "figures.html"
    path.parent.mkdir(parents=True, exist_ok=True)  # before the work: it may not be writable
    plane = toy()
    tables.console().print(NOT_THE_PAPERS_DATA, style="bold")
    with running_server() as target, Client(target, timeout=10.0) as client:
        picks = ask_toy(client, plane)
        seven = ask_digits(client)
    charts = {name: draw_toy(plane, name, ids) for name, ids in picks.items()}
    blocks = _blocks(seven)
    sections = [
        _plane_section(plane, picks, charts),
        _digits_section(seven, blocks),
        _lemma_section(),
    ]
    page = Page(
        "The paper's figures, made again",
        sections,
        lead=_LEAD,
        facts=(f"divgrpc {divgrpc.__version__}",),
    )
    write_page(page, path)
    if path != out:
        for name, chart in charts.items():
            file = f"toy-{name.lower().replace(', ', '-').replace(' ', '-')}.svg"
            (out / file).write_text(chart.svg, encoding="utf-8")
        write_contact_sheet(out / "digits.png", "Seven queries", _SHEET_TEXT, blocks)
    tables.console().print(f"Figures: {out}", soft_wrap=True)
    return 0


def toy(seed: int = 0) -> Toy:
    """Generate the plane: A has six sub-clusters around the query, B three farther away."""
    random = np.random.default_rng(seed)
    turns = np.arange(6) / 6 * 2 * np.pi
    # As in the paper's figure, one sub-cluster of A is much nearer than the others.
    away = np.array([0.55, 1.0, 1.0, 1.0, 1.0, 1.0])
    near = away[:, None] * np.column_stack((np.cos(turns), np.sin(turns)))
    far = np.array([[2.6, 0.0], [1.9, 1.9], [1.9, -1.9]])
    centres = np.concatenate((near, far))
    classes = np.repeat(np.repeat([0, 1], [len(near), len(far)]), 40)
    points = np.repeat(centres, 40, axis=0) + 0.16 * random.standard_normal((len(classes), 2))
    return Toy(points.astype(np.float32), classes, np.zeros(2, np.float32))


def ask_toy(client: Client, points: Toy) -> dict[str, IntArray]:
    """Index the plane and return the ids that each method picks."""
    # Hashing compares directions. The plane lies at a height above the origin, so all its points
    # have different directions.
    rows = np.vstack((points.points, points.query))
    rows = np.column_stack((rows, np.full(len(rows), TOY_HEIGHT, np.float32)))
    client.build("toy", rows[:-1], hash_family="lsh_sdiv")
    return {
        name: client.query("toy", rows[-1], k=TOY_K, **options).ids[0]
        for name, options in TOY_METHODS.items()
    }


def draw_toy(points: Toy, name: str, ids: IntArray) -> Chart:
    """Draw the plane with the picked points filled."""
    is_picked = np.isin(np.arange(len(points.points)), ids)

    def paint(axes: Axes) -> Sequence[Line2D]:
        axes.set_aspect("equal")
        axes.set(xticks=[], yticks=[])
        keys = []
        for state in (False, True):
            for kind, marker in enumerate("os"):
                keys += axes.plot(
                    *points.points[(points.classes == kind) & (is_picked == state)].T,
                    label=f"{'picked, ' if state else 'class '}{'AB'[kind]}",
                    color=LIGHT.series[kind],
                    marker=marker,
                    markersize=8 if state else 4,
                    fillstyle="full" if state else "none",
                    linestyle="none",
                )
        star: Any = {"color": LIGHT.ink, "marker": "*", "markersize": 16, "linestyle": "none"}
        return keys + axes.plot(*points.query[:, None], label="query", **star)

    return draw(paint, f"{name}: {TOY_K} picks of two classes in the plane")


def toy_figures(points: Toy, ids: IntArray) -> tuple[int, float, float]:
    """Return the number of picks of class A, and two mean distances of the picks.

    The first distance is from the query, the second between pairs of picks.
    """
    picks = points.points[ids]
    pairs = np.linalg.norm(picks[:, None] - picks[None], axis=2)[np.triu_indices(len(ids), 1)]
    away = np.linalg.norm(picks - points.query, axis=1)
    return int((points.classes[ids] == 0).sum()), float(away.mean()), float(pairs.mean())


def ask_digits(client: Client) -> SevenQueries:
    """Index the digits and answer seven queries with every method."""
    data = digits.load()
    digits.build(client, data)
    pool_queries = digits.learn(
        data, data.report_rows, -(-QUERIES // len(digits.CATEGORIES)), seed=1
    )
    queries = HyperplaneQueries(pool_queries.queries[:QUERIES], pool_queries.categories[:QUERIES])
    results, dials = {}, {}
    for name, options in DIGIT_METHODS.items():
        is_nearest = options["selector"] == "nearest"
        dials[name] = dial = 0.0 if is_nearest else digits.best_dial(client, data, **options)
        result = client.query(digits.INDEX, queries.queries, k=K, diversity=dial, **options)
        results[name] = result.ids.astype(np.int64)
    return SevenQueries(data, queries, results, dials)


def _plane_section(
    plane: Toy, picks: Mapping[str, IntArray], charts: Mapping[str, Chart]
) -> Section:
    heads = ("method", "of class A", "from the query", "from each other")
    records = [
        dict(zip(heads, (name, *toy_figures(plane, ids)), strict=True))
        for name, ids in picks.items()
    ]
    figures = Figures([Figure(chart, name) for name, chart in charts.items()])
    table = records_table(f"{TOY_K} picks", records)
    return Section("Two classes in the plane", [_TOY_TEXT, figures, table])


def _digits_section(seven: SevenQueries, blocks: Sequence[Block]) -> Section:
    records: list[dict[str, object]] = []
    for name, ids in seven.results.items():
        values = digits.measured(seven.data, seven.queries, ids)
        means = {letter: mean(column) for letter, column in values.items()}
        records.append({"method": name, "diversity": seven.dials[name], **means})
    lists = [
        ResultLists(
            block.heading, [ResultList(s.name, s.caption, _results(s)) for s in block.strips]
        )
        for block in blocks
    ]
    table = records_table(f"Means over {QUERIES} queries", records)
    return Section("Seven queries", [_DIGITS_TEXT, table, *lists])


def _lemma_section() -> Section:
    deviations, counts = lemma.deviations(), lemma.retrieved()
    points = lemma.QUERIES * (lemma.NEAR + lemma.FAR)
    records = [item._asdict() | {"n^(1/(1+ε))": lemma.rule(points)} for item in counts]
    return Section(
        "The lemma, and what is retrieved",
        [
            _LEMMA_TEXT,
            Figures([Figure(lemma.draw_deviations(deviations), "The lemma")]),
            records_table("Deviations that 95 % of the draws stay below", deviations),
            _RETRIEVED_TEXT,
            Figures([Figure(lemma.draw_retrieved(counts), "Points in home buckets")]),
            records_table("Mean numbers of retrieved points", records),
        ],
    )


def _results(strip: Strip) -> list[Result]:
    # Enlarge the image, so that smoothing by the browser does not blur it.
    shades = (
        np.kron(np.rint(255 * (1 - ink)), np.ones((6, 6))).astype(np.uint8) for ink in strip.images
    )
    return [
        Result(image=data_uri(image), alt="a digit", wrong=bool(wrong))
        for image, wrong in zip(shades, strip.wrong, strict=True)
    ]


def _blocks(seven: SevenQueries) -> list[Block]:
    """Return a block for each query with one result list per method."""
    blocks = []
    for number, category in enumerate(seven.queries.categories.tolist()):
        heading = f"Query {number + 1}: {digits.CATEGORIES[category]} digits"
        rows = {name: ids[number] for name, ids in seven.results.items()}
        blocks.append(digits.block(seven.data, category, heading, rows, {}))
    return blocks
