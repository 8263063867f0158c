"""The demonstration: plain nearest neighbours beside diverse results, on scanned digits, over gRPC.

The images fall into three parts that share none: those indexed, a pool that the reported queries
are learned from, and a pool for the queries that the dial is chosen on. So neither the queries nor
the choice of the dial has seen what the figures are about.
"""

import shutil
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from rich.console import Console
from sklearn.datasets import load_digits

from divgrpc.metrics import Labels, Values, judge, mean, measure
from divgrpc.types import FloatArray, IntArray
from divgrpc_client import display
from divgrpc_client.client import Client
from divgrpc_client.reports.contact_sheet import Block, Strip, write_contact_sheet
from divgrpc_client.reports.hyperplanes import HyperplaneQueries, hyperplane_queries
from divgrpc_client.reports.server_process import running_server

K: Final = 10
INDEX: Final = "digits"
CATEGORIES: Final = ("even", "odd")
# A sixth of the images to learn the reported queries from, a sixth for the dial's.
POOL_SHARE: Final = 1 / 6
QUERIES_PER_CATEGORY: Final = 25
DIAL_QUERIES_PER_CATEGORY: Final = 10
DIALS: Final = (0.1, 0.3, 0.5, 0.7, 0.9)
SHOWN_PER_CATEGORY: Final = 2
GAIN_LEAST: Final = 0.15

SHOWN: Final = ("precision", "subtopic_recall", "normalised_entropy", "h_score")
_LEGEND: Final = """
P: share of the {k} results that are even or odd as asked. SR: share of the five digits of that kind
among them. D: how evenly those digits are spread. h: harmonic mean of P and D for each query, then
the mean. The diversity was chosen among {dials} on other queries,
learned from other images."""
# A command, and what it is for.
_NEXT: Final = (
    ("divgrpc-server --data-dir indexes", "start a server that keeps its indexes"),
    ("divgrpc build NAME vectors.npy", "fill it"),
    ("divgrpc query NAME queries.npy --diversity 0.3", ""),
    ("divgrpc info NAME", "see what was chosen, and why"),
)


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


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """What one setting gave: ids (nq, K), their metrics by name, and seconds per query."""

    name: str
    diversity: float
    ids: IntArray
    quality: dict[str, Values]
    seconds: float


def run(folder: Path) -> int:
    """Run the demonstration, with the picture going to `folder`; returns the exit code."""
    out = display.console()
    folder.mkdir(parents=True, exist_ok=True)  # before the work: it may not be ours to write
    data = load()
    parts = split(len(data.images))
    out.print("Starting a server (the first start compiles the kernels) ...")
    with running_server() as target, Client(target, timeout=10.0) as client:
        build(client, data, parts.indexed)
        out.print(f"Indexed {len(parts.indexed):,} images over gRPC; {target} serves them.")
        dial = choose_dial(client, data, parts)
        asked = learn(data, parts.reported, QUERIES_PER_CATEGORY, seed=1)
        plain, diverse = ask_both(client, data, parts.indexed, asked, dial)
    report(out, parts, plain, diverse)
    path = folder / "contact-sheet.png"
    draw(path, data, asked, (plain, diverse))
    out.print(f"Pictures: {path}\n", soft_wrap=True)
    return verdict(out, plain, diverse)


def load() -> Digits:
    """Return the 1,797 digits that scikit-learn carries."""
    found = load_digits()
    return Digits(found.data.astype(np.float32), found.target.astype(np.int64))


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
        found = client.query(INDEX, asked.queries, k=K, diversity=diversity, **options)
        return mean(measured(data, parts.indexed, asked, found.ids)["h_score"])

    return max(DIALS, key=h)


def ask_both(
    client: Client, data: Digits, indexed: IntArray, asked: HyperplaneQueries, dial: float
) -> tuple[Answers, Answers]:
    """Ask every query twice, one call at a time and in turn, so that both see the same machine."""
    settings = (("nearest", 0.0), ("diverse", dial))
    ids: dict[str, list[IntArray]] = {name: [] for name, _ in settings}
    seconds: dict[str, list[float]] = {name: [] for name, _ in settings}
    for query in asked.queries:
        for name, diversity in settings:
            started = time.perf_counter()
            found = client.query(INDEX, query, k=K, diversity=diversity)
            seconds[name].append(time.perf_counter() - started)
            ids[name].append(found.ids)
    plain, diverse = (
        Answers(
            name,
            diversity,
            all_ids := np.concatenate(ids[name]),
            measured(data, indexed, asked, all_ids),
            statistics.median(seconds[name]),
        )
        for name, diversity in settings
    )
    return plain, diverse


def report(out: Console, parts: Parts, plain: Answers, diverse: Answers) -> None:
    """Print the figures, and what they mean."""
    queries = len(plain.ids)
    out.print(
        f"Asked {queries} hyperplane queries for even and odd digits, learned from "
        f"{len(parts.reported)} images that are not indexed.\n"
    )
    grid = display.table("results", ">diversity", ">P", ">SR", ">D", ">h", ">ms a query")
    for answers in (plain, diverse):
        grid.add_row(
            answers.name,
            f"{answers.diversity:g}",
            *(f"{mean(answers.quality[name]):.3f}" for name in SHOWN),
            f"{answers.seconds * 1e3:.2f}",
        )
    out.print(grid)
    dials = ", ".join(f"{dial:g}" for dial in DIALS)
    out.print(_LEGEND.format(k=K, dials=dials), style="dim")


def draw(path: Path, data: Digits, asked: HyperplaneQueries, both: Sequence[Answers]) -> None:
    """Draw the results of the first queries of each category."""
    first = [int(np.argmax(asked.asked == category)) for category in range(len(CATEGORIES))]
    shown = [start + n for start in first for n in range(SHOWN_PER_CATEGORY)]
    blocks = [
        Block(
            f"Query {position + 1}: {CATEGORIES[asked.asked[position]]} digits",
            [_strip(data, int(asked.asked[position]), answers, position) for answers in both],
        )
        for position in shown
    ]
    subtitle = (
        f"The first {SHOWN_PER_CATEGORY} queries of each kind, {K} results each, in the order in "
        "which they were picked. The wrong ones are boxed."
    )
    write_contact_sheet(path, "Nearest, and nearest but different", subtitle, blocks)


def _strip(data: Digits, category: int, answers: Answers, position: int) -> Strip:
    ids = answers.ids[position]
    ids = ids[ids >= 0]
    wrong = data.categories[ids] != category
    kinds = len(np.unique(data.digits[ids[~wrong]]))
    right = len(ids) - int(wrong.sum())
    caption = (
        f"{right} of {K} right, {kinds} of 5 digits, h {answers.quality['h_score'][position]:.2f}"
    )
    images = data.images[ids].reshape(-1, 8, 8) / 16
    return Strip(answers.name, caption, images, wrong)


def verdict(out: Console, plain: Answers, diverse: Answers) -> int:
    """Say whether diversity paid, and what to try next; returns the exit code."""
    gain = mean(diverse.quality["h_score"]) - mean(plain.quality["h_score"])
    if gain < GAIN_LEAST:
        out.print(f"FAILED: h rose by {gain:.3f}; it should rise by at least {GAIN_LEAST}")
        return 1
    out.print(f"h rose by {gain:.3f}. Next, with vectors of your own:\n")
    where = programs()
    for command, purpose in _NEXT:
        out.print(f"  {where}{command:<46} {purpose}".rstrip(), soft_wrap=True)
    out.print("\nREADME.md has the same in Python, and what every word means.")
    return 0


def programs() -> str:
    """Return what a shell needs before the name of our programs: nothing, or their folder."""
    if shutil.which("divgrpc"):
        return ""
    # Not resolved: in an environment the interpreter is a link, and our programs lie beside it.
    folder = Path(sys.executable).parent
    return f"{folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder}/"
