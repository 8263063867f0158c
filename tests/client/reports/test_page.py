"""Report pages escape all texts and load nothing from elsewhere."""

import base64
import re
from pathlib import Path

import numpy as np
import pytest

from divgrpc_client.reports.charts import DARK, LIGHT, Chart
from divgrpc_client.reports.page import (
    Body,
    Cell,
    Column,
    Figure,
    Figures,
    Note,
    Page,
    Part,
    Result,
    ResultList,
    ResultLists,
    Section,
    Table,
    data_uri,
    render,
    write_page,
)

EVIL = "<script>alert('x')</script>&\""
SVG = '<svg viewBox="0 0 2 1"><title>a line</title><path d="M0 0L2 1"/></svg>'


def _page(text: str) -> Page:
    columns = (Column(text, numeric=False), Column(text, group=text), Column("h", group=text))
    rows = ((text, Cell(text, detail=text, best=True), "0.4"),)
    image = data_uri(np.zeros((8, 8), np.uint8))
    texts = ResultList(text, text, (Result(text=text, wrong=True), Result("right")))
    images = ResultList(text, text, (Result(image=image, alt=text, wrong=True),))
    parts: tuple[Part, ...] = (
        text,
        Note(text),
        Table(text, columns, (Body(rows, title=text),)),
        Figure(Chart(text, SVG), text),
        Figures((Figure(Chart(text, SVG), text),)),
        ResultLists(text, (texts, images)),
    )
    return Page(text, [Section(text, parts)] * 3, lead=text, facts=(text, text))


def test_everything_is_escaped() -> None:
    html = render(_page(EVIL))
    assert "<script" not in html
    assert "alert" in html
    # A bare quote in the text would end an attribute too early.
    assert '&"' not in html


def test_verdicts_have_a_colour() -> None:
    row = [Cell(word, verdict=word) for word in ("good", "bad", "open")]
    table = Table("Claims", [Column(str(n)) for n in range(3)], (Body((row,)),))
    html = render(Page("Title", (Section("One", (table,)),)))
    for word in ("good", "bad", "open"):
        assert f'<span class="{word}">{word}</span>' in html


def test_charts_are_pictures() -> None:
    chart = Chart("a title", "<svg>drawing</svg>")
    html = render(Page("Title", (Section("One", (Figure(chart, "caption"),)),)))
    content = base64.b64encode(chart.svg.encode()).decode()
    assert f'<img src="data:image/svg+xml;base64,{content}" alt="a title">' in html


def test_the_same_page_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_page(_page("é"), tmp_path / name / "page.html")
    one, two = ((tmp_path / name / "page.html").read_bytes() for name in ("one", "two"))
    assert one == two
    assert one.decode().count("é") > 10


def test_a_page_fetches_nothing() -> None:
    html = render(_page("text"))
    links = re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?([^"')\s>]+)""", html)
    assert links
    assert [link for link in links if not link.startswith(("data:", "#"))] == []
    assert "@import" not in html


def test_table_headers_have_their_scope() -> None:
    """Header cells of groups span their columns, and the best value is also marked by text."""
    columns = [Column("method", numeric=False)]
    columns += [Column(name, f"k = {k}") for k in (10, 20) for name in ("P", "h")]
    row = ("nearest", "0.1", Cell("0.2", best=True), "0.3", "0.4")
    table = Table("Caption", columns, (Body((row,), "exact"), Body((row,))))
    html = render(Page("Title", (Section("One", (table,)),)))
    assert table.groups() == [("", 1), ("k = 10", 2), ("k = 20", 2)]
    assert table.group_starts() == [False, True, False, True, False]
    assert html.count('scope="colgroup"') == 2
    assert html.count('scope="col"') == 5
    assert html.count('scope="row"') == 2
    assert html.count('scope="rowgroup"') == 1
    assert "<strong>0.2<span" in html
    assert "(best)" in html


def test_an_empty_page_is_a_page() -> None:
    assert "<h1>Title</h1>" in render(Page("Title", ()))
    empty = Table("none", (Column("a"),), ())
    lists = ResultLists("query", (ResultList("nearest", "", ()),))
    assert "<ol>" in render(Page("Title", (Section("One", (empty, lists)),)))


def _luminance(colour: str) -> float:
    """Return the relative luminance of #rrggbb as defined by WCAG."""
    shares = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [s / 12.92 if s <= 0.03928 else ((s + 0.055) / 1.055) ** 2.4 for s in shares]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


def _contrast(colour: str, background: str) -> float:
    low, high = sorted(map(_luminance, (colour, background)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_have_enough_contrast(scheme: str) -> None:
    """Text has a contrast of at least 4.5 with its background, and marks and curves at least 3."""
    style = render(Page("Title", ())).split("@media print")[0]
    light, dark = (
        dict(re.findall(r"--([\w-]+): (#\w{6})", part)) for part in style.split("@media")
    )
    palette = LIGHT if scheme == "light" else DARK
    colours = light if scheme == "light" else {**light, **dark}
    assert palette.paper == colours["paper"]
    for name in ("ink", "faint", "link", "good", "bad", "open"):
        assert _contrast(colours[name], colours["paper"]) >= 4.5, name
    for below in ("best", "note", "tint"):
        assert _contrast(colours["ink"], colours[below]) >= 4.5, below
    for name in ("wrong", "mark"):
        assert _contrast(colours[name], colours["paper"]) >= 3, name
    for word in (palette.ink, palette.faint):
        assert _contrast(word, palette.paper) >= 4.5
    for curve in palette.series:
        assert _contrast(curve, palette.paper) >= 3
