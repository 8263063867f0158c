"""`divgrpc_lab table1` on a small data set, from its start to its page, and its refusals."""

import json
from pathlib import Path

import pytest

from divgrpc_lab.__main__ import main
from divgrpc_lab.data.topics import DATA_VARIABLE
from divgrpc_lab.table1.methods import HASHING, WITHOUT_HASHING
from divgrpc_lab.table1.paper import KS, METHODS


def test_quick_run_on_digits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If there are no data sets, the run says so and measures every row on digits.

    It writes a page and JSON.
    """
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    page, figures = tmp_path / "new" / "table1.html", tmp_path / "table1.json"
    words = ["table1", "--quick", "--out", str(page), "--json", str(figures)]
    assert main(words) == 0
    output = capsys.readouterr().out
    assert output.startswith("No data")
    assert "DOES NOT HOLD" in output
    report = json.loads(figures.read_text())
    assert len(report["rows"]) == len(KS) * (len(WITHOUT_HASHING) + 2 * len(HASHING))
    assert {row["case"]["method"] for row in report["rows"]} > set(METHODS)
    assert all(0 <= row["figures"]["h_score"]["value"] <= 1 for row in report["rows"])
    assert all(row["microseconds"] > 0 for row in report["rows"])
    assert {spread["sampling"] for spread in report["uniformity"]} == {"uniform", "nearest"}
    assert len(report["growth"]) == 1
    assert len(report["paper"]) == 45
    assert len(report["times"]) == 2 * len(report["paper"])
    html = page.read_text()
    for text in ("the paper's LSH-SDiv", "QP-Rel", "cannot be told", "one exact pass"):
        assert text.replace("'", "&#39;") in html


@pytest.mark.parametrize("name", ["table1", "table2", "figures"])
def test_help_names_the_page(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([name, "--help"])
    assert f"(default {name}.html)" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--sets", "imagenet"], "sets must be of cifar100_dense256"),
        (["--per-category", "2"], "per-category must be at least"),
        (["--seeds", "0"], "seeds must be at least 1"),
        (["--quick", "--seeds", "2"], "leave --seeds out"),
        (["--sets", "newsgroups20"], "sets need their folder"),
    ],
)
def test_wrong_options_are_refused(
    words: list[str],
    complaint: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The error names the option and is raised before any measurement."""
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    assert main(["table1", *words]) == 2
    assert complaint in capsys.readouterr().err


def test_a_folder_without_the_data_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names the missing file of the data set, and nothing else is measured instead."""
    assert main(["table1", "--data", str(tmp_path)]) == 2
    assert "there is no cifar100_dense256.npz" in capsys.readouterr().err
