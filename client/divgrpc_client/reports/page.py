"""Renders a report as one HTML file without scripts or references to the network.

    page = Page(title="...", facts=("2026-11-21",), sections=(Section("Results", (table, figure)),))
    write_page(page, Path("report.html"))

All text is escaped, and charts are embedded as images. A page has a light and a dark scheme and can
be printed. Equal pages give equal bytes.
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
    """A column of a table; adjacent columns with the same `group` share a heading.

    Numeric columns are right-aligned. The text in a `whole` column is not wrapped.
    """

    name: str
    group: str = ""
    numeric: bool = True
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table: its text, a detail in smaller print below the text, and its marking.

    `best` marks the best value of a column. `verdict` colours the cell for a claim that holds,
    fails or cannot be decided.
    """

    text: str
    detail: str = ""
    best: bool = False
    verdict: Literal["", "good", "bad", "open"] = ""


Row: TypeAlias = Sequence[Cell | str]


@dataclass(frozen=True, slots=True)
class Body:
    """A group of rows of a table, with an optional title."""

    rows: Sequence[Row]
    title: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table with a caption above it; the first cell of each row names the row."""

    caption: str
    columns: Sequence[Column]
    bodies: Sequence[Body]

    def groups(self) -> list[tuple[str, int]]:
        """Return the headings of the groups of columns, each with its number of columns."""
        runs = groupby(column.group for column in self.columns)
        spans = [(name, len(list(run))) for name, run in runs]
        return spans if any(name for name, _ in spans) else []

    def group_starts(self) -> list[bool]:
        """Return for each column whether it is the first of a group."""
        names = [column.group for column in self.columns]
        return [bool(n) and (at == 0 or names[at - 1] != n) for at, n in enumerate(names)]


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart with a caption below."""

    chart: Chart
    caption: str


@dataclass(frozen=True, slots=True)
class Figures:
    """Charts that are shown side by side if they fit the width."""

    figures: Sequence[Figure]


@dataclass(frozen=True, slots=True)
class Result:
    """One result: a text, an image as a data URI or both; a wrong result is boxed."""

    text: str = ""
    image: str = ""
    alt: str = ""
    wrong: bool = False


@dataclass(frozen=True, slots=True)
class ResultList:
    """The results of one method, in rank order, with a caption."""

    name: str
    caption: str
    results: Sequence[Result]

    @property
    def has_text(self) -> bool:
        """Whether any result has a text."""
        return any(result.text for result in self.results)


@dataclass(frozen=True, slots=True)
class ResultLists:
    """The result lists of several methods for one query."""

    heading: str
    lists: Sequence[ResultList]


@dataclass(frozen=True, slots=True)
class Note:
    """A highlighted paragraph; `bad` says that it reports a failure."""

    text: str
    bad: bool = False


Part: TypeAlias = str | Note | Table | Figure | Figures | ResultLists


@dataclass(frozen=True, slots=True)
class Section:
    """A section of a page with a heading; plain strings in `parts` are paragraphs."""

    title: str
    parts: Sequence[Part]


@dataclass(frozen=True, slots=True)
class Page:
    """A page: title, sections, an introductory paragraph and a line of facts.

    The caller gives `facts` such as date, version and machine. No others are added, so a page shows
    a date only if the caller gives one.
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
    """Write the page as one file in UTF-8, and create its folder if necessary."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render(page), encoding="utf-8")


def data_uri(image: Image.Image | npt.NDArray[np.uint8]) -> str:
    """Return an image as the data URI of a PNG.

    An array has the shape (h, w) or (h, w, 3) and values from 0 to 255.
    """
    picture = image if isinstance(image, Image.Image) else Image.fromarray(image)
    sink = io.BytesIO()
    picture.save(sink, format="PNG", optimize=True)
    return f"data:image/png;base64,{_base64(sink.getvalue())}"


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
