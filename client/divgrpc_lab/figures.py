"""`divgrpc paper figures`: what the paper draws, made again with an index and a server of ours.

Its figure of a made-up plane: two classes of sub-clusters, and what nearest neighbours, the greedy
over all points, and hashing before the greedy pick for one query. And its figure of results side by
side: seven queries, ten results each, wrong ones boxed; here on scanned digits, even or odd. Data,
hashes and draws are seeded, so that the figures are the same bytes at every run.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

import divgrpc
from divgrpc.metrics import mean
from divgrpc.types import FloatArray, IntArray
from divgrpc_client.client import Client
from divgrpc_client.formats import tables
from divgrpc_client.reports.charts import Chart, Palette, draw
from divgrpc_client.reports.page import (
    Body,
    Column,
    Figure,
    Figures,
    Page,
    Result,
    ResultList,
    ResultLists,
    Section,
    Table,
    data_uri,
    write_page,
)
from divgrpc_lab.contact_sheet import Block, Strip, write_contact_sheet
from divgrpc_lab.data.hyperplanes import HyperplaneQueries
from divgrpc_lab.demo import digits as demo_digits
from divgrpc_lab.demo.queries import K
from divgrpc_lab.server_process import running_server

QUERIES: Final = 7
TOY_K: Final = 10
TOY_DIVERSITY: Final = 0.6
TOY_HEIGHT: Final = 2

_ALL: Final[Mapping[str, Any]] = {"search": "exact", "hash_limit": 0, "candidates_limit": 0}
# A Hamming ball around the query. Of the plane's 360 points 240 are of class A.
_BALL: Final[Mapping[str, Any]] = {"search": "scan_hamming"}
_TOY_BALL: Final[Mapping[str, Any]] = {**_BALL, "hash_limit": 200}
TOY_METHODS: Final[Mapping[str, Mapping[str, Any]]] = {
    "Nearest": {"selector": "nearest", **_ALL},
    "Greedy": {"selector": "greedy", "diversity": TOY_DIVERSITY, **_ALL},
    "LSH-SDiv": {"selector": "greedy", "diversity": TOY_DIVERSITY, **_TOY_BALL},
}
# The dials of the last two are chosen on other queries.
DIGIT_METHODS: Final[Mapping[str, Mapping[str, Any]]] = {
    "NN": {"selector": "nearest", **_ALL},
    "MMR": {"selector": "mmr", **_ALL},
    "LSH-SDiv": {"selector": "greedy", **_BALL},
}
_TOY_TEXT: Final = (
    "Circles are class A, squares class B, the star is the query; what is filled was picked. The "
    "plane lies in space, at a height of 2, and points are compared by their angles from the "
    "origin. Greedy and LSH-SDiv take the same steps at the same dial, the one over all points, "
    "the other over those in a Hamming ball around the query. Distances, in the plane, are means "
    "over the picks and over pairs of them."
)
_DIGITS_TEXT: Final = (
    "Queries are hyperplanes that ask for even or odd digits; the five digits of a kind are its "
    "sub-topics. NN and MMR see every point, LSH-SDiv a Hamming ball around the query. Dials were "
    "chosen on other queries. The wrong ones are boxed."
)
_SHEET_TEXT: Final = (
    "Ten results each, in the order in which they were picked. Wrong ones are boxed."
)


class Toy(NamedTuple):
    """Points (n, 2) float32 of class 0 (A) or 1 (B), and a query (2,) in the middle of A."""

    points: FloatArray
    classes: IntArray
    query: FloatArray


class Picked(NamedTuple):
    """What one method found for every query: ids (nq, k), and the dial it was asked with."""

    name: str
    diversity: float
    ids: IntArray


class Shown(NamedTuple):
    """The digits, what was asked of them, and what each method found."""

    data: demo_digits.Digits
    parts: demo_digits.Parts
    asked: HyperplaneQueries
    methods: Sequence[Picked]


def run(out: Path) -> int:
    """Write the page at `out` where it ends in .html, else page, SVG and PNG into that folder."""
    page = out if out.suffix == ".html" else out / "figures.html"
    page.parent.mkdir(parents=True, exist_ok=True)  # before the work: it may not be ours to write
    points = toy()
    with running_server() as target, Client(target, timeout=10.0) as client:
        picked = ask_toy(client, points)
        shown = ask_digits(client)
    drawings = {name: draw_toy(points, name, ids) for name, ids in picked.items()}
    write_page(_page(points, picked, drawings, shown), page)
    if page != out:
        for name, chart in drawings.items():
            (out / f"toy-{name.lower()}.svg").write_text(chart.light, encoding="utf-8")
        write_contact_sheet(out / "digits.png", "Seven queries", _SHEET_TEXT, _blocks(shown))
    tables.console().print(f"Figures: {out}", soft_wrap=True)
    return 0


def toy(seed: int = 0) -> Toy:
    """Make up the plane: A has six sub-clusters around the query, B three farther out."""
    random = np.random.default_rng(seed)
    turns = np.arange(6) / 6 * 2 * np.pi
    # One of A's is nearest by far, as the paper draws it.
    away = np.array([0.55, 1.0, 1.0, 1.0, 1.0, 1.0])
    ours = away[:, None] * np.column_stack((np.cos(turns), np.sin(turns)))
    theirs = np.array([[2.6, 0.0], [1.9, 1.9], [1.9, -1.9]])
    centres = np.concatenate((ours, theirs))
    classes = np.repeat(np.repeat([0, 1], [len(ours), len(theirs)]), 40)
    points = np.repeat(centres, 40, axis=0) + 0.16 * random.standard_normal((len(classes), 2))
    return Toy(points.astype(np.float32), classes, np.zeros(2, np.float32))


def ask_toy(client: Client, points: Toy) -> dict[str, IntArray]:
    """Index the plane and return what each method picks."""
    # Hashing goes by directions: seen from the origin, those of a plane in space are its points.
    rows = np.vstack((points.points, points.query))
    rows = np.column_stack((rows, np.full(len(rows), TOY_HEIGHT, np.float32)))
    client.build("toy", rows[:-1], hash_family="lsh_sdiv")
    return {
        name: client.query("toy", rows[-1], k=TOY_K, **options).ids[0]
        for name, options in TOY_METHODS.items()
    }


def draw_toy(points: Toy, name: str, ids: IntArray) -> Chart:
    """Draw the plane, with what was picked filled."""
    is_picked = np.isin(np.arange(len(points.points)), ids)

    def paint(axes: Axes, palette: Palette) -> Sequence[Line2D]:
        axes.set_aspect("equal")
        axes.set(xticks=[], yticks=[])
        keys = []
        for filled in (False, True):
            for kind, marker in enumerate("os"):
                chosen = points.points[(points.classes == kind) & (is_picked == filled)]
                label = f"{'picked, ' if filled else 'class '}{'AB'[kind]}"
                keys += axes.plot(
                    *chosen.T,
                    label=label,
                    color=palette.series[kind],
                    marker=marker,
                    markersize=8 if filled else 4,
                    fillstyle="full" if filled else "none",
                    linestyle="none",
                )
        star: Any = {"color": palette.ink, "marker": "*", "markersize": 16, "linestyle": "none"}
        return keys + axes.plot(*points.query[:, None], label="query", **star)

    return draw(paint, f"{name}: {TOY_K} picks of two classes in the plane")


def ask_digits(client: Client) -> Shown:
    """Index the digits and ask seven queries by every method."""
    data = demo_digits.load()
    parts = demo_digits.split(len(data.images))
    demo_digits.build(client, data, parts.indexed)
    learned = demo_digits.learn(
        data, parts.reported, -(-QUERIES // len(demo_digits.CATEGORIES)), seed=1
    )
    asked = HyperplaneQueries(learned.queries[:QUERIES], learned.asked[:QUERIES])
    methods = []
    for name, options in DIGIT_METHODS.items():
        plain = options["selector"] == "nearest"
        dial = 0.0 if plain else demo_digits.choose_dial(client, data, parts, **options)
        found = client.query(demo_digits.INDEX, asked.queries, k=K, diversity=dial, **options)
        methods.append(Picked(name, dial, found.ids))
    return Shown(data, parts, asked, methods)


def _page(
    points: Toy, picked: Mapping[str, IntArray], drawings: Mapping[str, Chart], shown: Shown
) -> Page:
    figures = Figures([Figure(chart, name) for name, chart in drawings.items()])
    return Page(
        "The paper's figures, made again",
        [
            Section("Two classes in the plane", [_TOY_TEXT, figures, _toy_table(points, picked)]),
            Section("Seven queries", [_DIGITS_TEXT, _digit_table(shown), *_lists(shown)]),
        ],
        lead="Nearest neighbours, a greedy that sees every point, and hashing before it.",
        facts=(f"divgrpc {divgrpc.__version__}",),
    )


def _toy_table(points: Toy, picked: Mapping[str, IntArray]) -> Table:
    heads = ("method", "of class A", "from the query", "from each other")
    rows = [
        (name, *(f"{value:.3g}" for value in toy_figures(points, ids)))
        for name, ids in picked.items()
    ]
    columns = [Column(head, numeric=at > 0) for at, head in enumerate(heads)]
    return Table(f"{TOY_K} picks", columns, [Body(rows)])


def toy_figures(points: Toy, ids: IntArray) -> tuple[int, float, float]:
    """Return how many picks are of class A, and their mean distance from query and each other."""
    chosen = points.points[ids]
    pairs = np.linalg.norm(chosen[:, None] - chosen[None], axis=2)[np.triu_indices(len(ids), 1)]
    away = np.linalg.norm(chosen - points.query, axis=1)
    return int((points.classes[ids] == 0).sum()), float(away.mean()), float(pairs.mean())


def _digit_table(shown: Shown) -> Table:
    rows = []
    for method in shown.methods:
        found = demo_digits.measured(shown.data, shown.parts.indexed, shown.asked, method.ids)
        values = (mean(found[name]) for name in demo_digits.SHOWN)
        rows.append((method.name, f"{method.diversity:g}", *(f"{value:.3f}" for value in values)))
    columns = [Column("method", numeric=False)]
    columns += [Column(name) for name in ("diversity", "P", "SR", "D", "h")]
    return Table(f"Means over {len(shown.asked.asked)} queries", columns, [Body(rows)])


def _lists(shown: Shown) -> list[ResultLists]:
    return [
        ResultLists(
            block.heading,
            [ResultList(strip.name, strip.caption, _results(strip)) for strip in block.strips],
        )
        for block in _blocks(shown)
    ]


def _results(strip: Strip) -> list[Result]:
    return [
        Result(image=data_uri(_shades(image)), alt="a digit", wrong=bool(wrong))
        for image, wrong in zip(strip.images, strip.wrong, strict=True)
    ]


def _shades(ink: npt.NDArray[np.floating]) -> npt.NDArray[np.uint8]:
    # Large enough that a page's smoothing does no harm.
    return np.kron(np.rint(255 * (1 - ink)), np.ones((6, 6))).astype(np.uint8)


def _blocks(shown: Shown) -> list[Block]:
    """Return the results of each query, the methods one below the other."""
    blocks = []
    for number, category in enumerate(shown.asked.asked):
        kind = demo_digits.CATEGORIES[category]
        strips = [_strip(shown.data, int(category), m.name, m.ids[number]) for m in shown.methods]
        blocks.append(Block(f"Query {number + 1}: {kind} digits", strips))
    return blocks


def _strip(data: demo_digits.Digits, category: int, name: str, ids: IntArray) -> Strip:
    ids = ids[ids >= 0]
    wrong = data.categories[ids] != category
    kinds = len(np.unique(data.digits[ids[~wrong]]))
    caption = f"{len(ids) - int(wrong.sum())} of {K} right, {kinds} of 5 digits"
    return Strip(name, caption, data.images[ids].reshape(-1, 8, 8) / 16, wrong)
