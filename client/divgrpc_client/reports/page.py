"""A report as one HTML file: no network, no script, light and dark, on screens and on paper.

    page = Page(title="...", facts=("2026-11-21",), sections=(Section("Results", (table, figure)),))
    write_page(page, Path("report.html"))

Whatever text is put into a page is escaped, and charts are pictures. The same page gives the same
bytes.
"""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final, Literal, TypeAlias

import jinja2
import numpy as np
import numpy.typing as npt
from markupsafe import Markup
from PIL import Image

from divgrpc_client.reports.charts import Chart


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: numbers go to the right; neighbours of one `group` share a head.

    What stands in a `whole` one is never broken over lines.
    """

    name: str
    group: str = ""
    numeric: bool = True
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    """What stands in a table: a text, a smaller one below it, and how it is marked.

    `best` marks the best of a column; `verdict` colours what holds, fails or cannot be decided.
    """

    text: str
    detail: str = ""
    best: bool = False
    verdict: Literal["", "good", "bad", "open"] = ""


Row: TypeAlias = Sequence[Cell | str]


@dataclass(frozen=True, slots=True)
class Body:
    """Rows of a table that belong together, under a title of their own where there is one."""

    rows: Sequence[Row]
    title: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table, with a caption above; the first cell of each row names the row."""

    caption: str
    columns: Sequence[Column]
    bodies: Sequence[Body]

    def groups(self) -> list[tuple[str, int]]:
        """Return the heads above the columns' own, each with how many columns it spans."""
        runs = groupby(column.group for column in self.columns)
        spans = [(name, len(list(run))) for name, run in runs]
        return spans if any(name for name, _ in spans) else []

    def group_starts(self) -> list[bool]:
        """Return for each column whether a group begins there."""
        names = [column.group for column in self.columns]
        return [bool(n) and (at == 0 or names[at - 1] != n) for at, n in enumerate(names)]


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart with a caption below."""

    chart: Chart
    caption: str


@dataclass(frozen=True, slots=True)
class Figures:
    """Drawings side by side where there is room."""

    figures: Sequence[Figure]


@dataclass(frozen=True, slots=True)
class Result:
    """One result: a text, a picture as a data URI (`data_uri`) or both, boxed where it is wrong."""

    text: str = ""
    image: str = ""
    alt: str = ""
    wrong: bool = False


@dataclass(frozen=True, slots=True)
class ResultList:
    """What one method found, in order, with a line about it."""

    name: str
    caption: str
    results: Sequence[Result]

    @property
    def has_text(self) -> bool:
        """Whether there is something to read in it."""
        return any(result.text for result in self.results)


@dataclass(frozen=True, slots=True)
class ResultLists:
    """The lists of several methods for one query."""

    heading: str
    lists: Sequence[ResultList]


@dataclass(frozen=True, slots=True)
class Note:
    """A paragraph that must not be overlooked; `bad` where it says that something failed."""

    text: str
    bad: bool = False


Part: TypeAlias = str | Note | Table | Figure | Figures | ResultLists


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page under a heading: paragraphs (plain strings), tables, figures, results."""

    title: str
    parts: Sequence[Part]


@dataclass(frozen=True, slots=True)
class Page:
    """A page: title, an introducing paragraph, a line of facts (date, version, machine), sections.

    `facts` are what the caller knows, in order; nothing is added, so a page has no date of its own.
    """

    title: str
    sections: Sequence[Section]
    lead: str = ""
    facts: Sequence[str] = ()


_TEMPLATES: Final = jinja2.Environment(
    loader=jinja2.PackageLoader("divgrpc_client", "reports/templates"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters["trusted"] = Markup
_TEMPLATES.filters["svg_uri"] = lambda svg: f"data:image/svg+xml;base64,{_base64(svg.encode())}"
_TEMPLATES.filters["kind"] = lambda part: type(part).__name__.lower()
_TEMPLATES.tests["cell"] = lambda value: isinstance(value, Cell)


def render(page: Page) -> str:
    """Return the page as HTML."""
    return _TEMPLATES.get_template("page.html").render(page=page)


def write_page(page: Page, path: Path) -> None:
    """Write the page as one file in UTF-8; makes the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render(page), encoding="utf-8")


def data_uri(image: Image.Image | npt.NDArray[np.uint8]) -> str:
    """Return a picture, or an array (h, w) or (h, w, 3) of shades 0 to 255, as a PNG's data URI."""
    picture = image if isinstance(image, Image.Image) else Image.fromarray(image)
    sink = io.BytesIO()
    picture.save(sink, format="PNG", optimize=True)
    return f"data:image/png;base64,{_base64(sink.getvalue())}"


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
