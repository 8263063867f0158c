"""`divgrpc_lab table1` from its start to its page, as small as it goes, and how it refuses."""

import json
from pathlib import Path

import pytest

from divgrpc_lab.__main__ import main
from divgrpc_lab.data.topics import DATA_VARIABLE
from divgrpc_lab.table1.printed import KS, METHODS
from divgrpc_lab.table1.rows import HASHING, WITHOUT_HASHING


def test_quick_run_on_digits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without data it says so, measures every row on digits, and writes page and JSON."""
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    page, figures = tmp_path / "new" / "table1.html", tmp_path / "table1.json"
    told = ["table1", "--quick", "--out", str(page), "--json", str(figures)]
    assert main(told) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("No data")
    assert "DOES NOT HOLD" in shown
    found = json.loads(figures.read_text())
    assert len(found["rows"]) == len(KS) * (len(WITHOUT_HASHING) + 2 * len(HASHING))
    assert {row["method"] for row in found["rows"]} > set(METHODS)
    assert all(0 <= row["h_score"]["value"] <= 1 for row in found["rows"])
    assert all(row["microseconds"] > 0 for row in found["rows"])
    assert {each["sampling"] for each in found["uniformity"]} == {"uniform", "nearest"}
    assert len(found["growth"]) == 1
    assert len(found["paper"]) == 45
    assert len(found["times"]) == 2 * len(found["paper"])
    html = page.read_text()
    for words in ("the paper's LSH-SDiv", "QP-Rel", "cannot be told", "one exact pass"):
        assert words.replace("'", "&#39;") in html


@pytest.mark.parametrize(
    ("told", "complaint"),
    [
        (["--sets", "imagenet"], "sets must be of cifar100_dense256"),
        (["--per-category", "2"], "per-category must be at least"),
        (["--seeds", "0"], "seeds must be at least 1"),
        (["--quick", "--seeds", "2"], "leave --seeds out"),
        (["--sets", "newsgroups20"], "sets need their folder"),
    ],
)
def test_refusals(
    told: list[str],
    complaint: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What cannot be asked is refused before any work, with the field."""
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    assert main(["table1", *told]) == 2
    assert complaint in capsys.readouterr().err


def test_folder_without_the_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder that lacks a set is named, and nothing else is measured in its place."""
    assert main(["table1", "--data", str(tmp_path)]) == 2
    assert "there is no cifar100_dense256.npz" in capsys.readouterr().err
