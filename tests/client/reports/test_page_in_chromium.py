"""A browser draws the report page completely and fetches no other file."""

import html
import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from divgrpc_client.reports.evaluation import write_report
from divgrpc_client.reports.page import Result, ResultList, ResultLists, data_uri
from support.data.evaluation_rows import made_rows
from support.processes.browser import chromium

WIDTHS = (360, 800, 1600)
PAPER = {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 28)"}
# Chromium's numbers for the two colour schemes.
SCHEMES = {"dark": 0, "light": 1}
_QUIET = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    # The outer page must be able to read the pages in its frames, which are local files.
    "--allow-file-access-from-files",
]
# An HTML page that shows the report in frames as wide as phones and screens, and writes
# measurements as JSON.
_MEASURE = """
<!DOCTYPE html><title>frames</title>
{frames}
<pre id="measurements"></pre>
<script>
addEventListener("load", () => {{
  const measurements = [...document.querySelectorAll("iframe")].map((frame) => {{
    const page = frame.contentDocument, root = page.documentElement;
    const sizes = (what) => [...page.querySelectorAll(what)].map((element) => {{
      const box = element.getBoundingClientRect();
      return [box.width, box.height];
    }});
    return {{
      room: root.clientWidth, width: root.scrollWidth,
      paper: frame.contentWindow.getComputedStyle(page.body).backgroundColor,
      fetched: frame.contentWindow.performance.getEntriesByType("resource")
        .map((entry) => entry.name).filter((name) => !name.startsWith("data:")),
      svg: sizes("figure img"), table: sizes("table"), img: sizes("li img"),
    }};
  }});
  document.getElementById("measurements").textContent = JSON.stringify(measurements);
}});
</script>
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    picture = data_uri(np.zeros((8, 8), np.uint8))
    pictures = ResultList("nearest", "", [Result(image=picture, alt="id 1", wrong=True)] * 10)
    long = ResultList("greedy", "", [Result(text="much" * 40), Result(text="two words")])
    lists = [ResultLists("Query 0", [pictures] * 2), ResultLists("Query 1", [long] * 3)]
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_report(made_rows(ks=(10, 20, 30)), path, index="products", facts=("now",), lists=lists)
    return path


def _chromium(folder: Path, *arguments: str) -> str:
    ran = subprocess.run(
        [chromium(), *_QUIET, f"--user-data-dir={folder / 'user'}", *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return ran.stdout


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_is_drawn_within_the_page(page: Path, scheme: str) -> None:
    frames = "".join(
        f'<iframe src="{page.name}" width="{width}" height="900"></iframe>' for width in WIDTHS
    )
    outer = page.parent / "frames.html"
    outer.write_text(_MEASURE.format(frames=frames))
    dom = _chromium(
        page.parent,
        f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}",
        "--window-size=1700,1000",
        "--dump-dom",
        outer.as_uri(),
    )
    match = re.search(r'<pre id="measurements">(.*?)</pre>', dom, re.DOTALL)
    assert match is not None
    measurements = json.loads(html.unescape(match[1]))
    assert len(measurements) == len(WIDTHS)
    for frame in measurements:
        assert frame["width"] <= frame["room"]
        assert frame["paper"] == PAPER[scheme]
        assert frame["fetched"] == []
        assert (len(frame["svg"]), len(frame["table"]), len(frame["img"])) == (9, 5, 20)
        boxes = frame["svg"] + frame["table"] + frame["img"]
        assert min(side for box in boxes for side in box) > 2
        assert max(width for width, _ in frame["svg"]) <= frame["room"]


def test_the_page_can_be_printed(page: Path) -> None:
    path = page.parent / "report.pdf"
    _chromium(page.parent, f"--print-to-pdf={path}", "--no-pdf-header-footer", page.as_uri())
    content = path.read_bytes()
    assert content.startswith(b"%PDF")
    assert len(re.findall(rb"/Type /Page\b", content)) >= 6
