"""The paper's figures: what they show, and that every run gives the same bytes."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from divgrpc_client import Client
from divgrpc_lab import contact_sheet
from divgrpc_lab.__main__ import main
from divgrpc_lab.experiment import NOT_THE_PAPERS_DATA
from divgrpc_lab.figures import (
    DIGIT_METHODS,
    QUERIES,
    TOY_METHODS,
    ask_digits,
    ask_toy,
    draw_toy,
    toy,
    toy_figures,
)
from support.processes.running_server import RunningServer


def test_the_plane_shows_what_the_paper_says(server: RunningServer) -> None:
    """With hashing, greedy results stay in the class and still spread out."""
    points = toy()
    with Client(server.target, timeout=30) as client:
        picks = ask_toy(client, points)
    assert list(picks) == list(TOY_METHODS)
    right, _, apart = zip(*(toy_figures(points, ids) for ids in picks.values()), strict=True)
    assert right[0] == right[2] == 10
    assert right[1] < 8
    # The limit does this without hashing, too.
    assert right[3] == 10
    assert abs(apart[3] - apart[2]) < 0.2 * apart[2]
    assert apart[0] * 3 < apart[2] < apart[1]
    for name, ids in picks.items():
        assert draw_toy(points, name, ids) == draw_toy(points, name, ids)


def test_seven_queries_have_ten_results_of_each_method(server: RunningServer) -> None:
    """Lists are full and have no duplicates, and the last two methods are more diverse."""
    with Client(server.target, timeout=30) as client:
        seven = ask_digits(client)
    assert list(seven.results) == list(DIGIT_METHODS)
    kinds = []
    for rows in seven.results.values():
        assert rows.shape == (QUERIES, 10)
        assert all(len(np.unique(ids[ids >= 0])) == 10 for ids in rows)
        kinds.append(np.mean([len(np.unique(seven.data.digits[ids])) for ids in rows]))
    assert kinds[0] + 1 < min(kinds[1:])


def test_two_runs_write_the_same_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong results have a box on the page and on the contact sheet."""
    folder, page = tmp_path / "new", tmp_path / "page.html"
    assert main(["figures", "--out", str(folder)]) == 0
    assert main(["figures", "--out", str(page)]) == 0
    assert str(folder) in capsys.readouterr().out
    html = page.read_text()
    assert html == (folder / "figures.html").read_text()
    assert NOT_THE_PAPERS_DATA.replace("'", "&#39;") in html
    assert html.count("<figure") >= 6
    assert html.count("Query ") >= QUERIES
    wrong = html.count('class="wrong"')
    assert wrong > 0
    files = {path.name for path in folder.iterdir()}
    assert files == {
        "figures.html",
        "digits.png",
        "toy-nearest.svg",
        "toy-greedy.svg",
        "toy-lsh-sdiv.svg",
        "toy-greedy-nearest-200.svg",
    }
    with Image.open(folder / "digits.png") as sheet:
        red = (np.asarray(sheet.convert("RGB")) == contact_sheet.RED).all(axis=2)
    # The border of a box is four pixels wide and begins three pixels outside the thumbnail.
    side = contact_sheet.THUMB + 6
    assert red.sum() == wrong * (side**2 - (side - 8) ** 2)
