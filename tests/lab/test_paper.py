"""`divgrpc_lab paper`: one page with the claims of both tables, and the records of both."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from divgrpc_lab.__main__ import main
from divgrpc_lab.data.documents import SETS
from divgrpc_lab.data.topics import DATA_VARIABLE
from divgrpc_lab.data.topics import SETS as IMAGE_SETS
from divgrpc_lab.table1 import bench as table1_bench
from divgrpc_lab.table1 import command as table1
from divgrpc_lab.table1.page import Report as ImageReport
from divgrpc_lab.table2 import bench as table2_bench
from divgrpc_lab.table2 import command as table2
from divgrpc_lab.table2.page import Report as LabelReport
from divgrpc_lab.verdicts import Claim, Contrast, judge

_FACTS = {"date": "2026-11-23", "divgrpc": "1", "Python": "3", "hash seeds": "2", "minutes": "1"}
_SURE = Contrast("a set", np.linspace(0.1, 0.2, 20))
_VERDICTS = judge([Claim("a claim", "the difference", [_SURE, _SURE._replace(place="b set")])])
_VERDICTS += judge([Claim("another claim", "the difference", [])])


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Replace the measurements of both tables, and return the list that gets their arguments."""
    calls: list[Any] = []

    def images(*arguments: object) -> ImageReport:
        calls.append(arguments[1:])
        empty: list[Any] = []
        data = [{"name": "images", "sha256": "0"}]
        return ImageReport(_FACTS, data, *[empty] * 7, claims=_VERDICTS)  # type: ignore[misc]

    def labels(*arguments: object, folder: Path | None) -> LabelReport:
        calls.append((*arguments[1:], folder))
        return LabelReport(_FACTS, [{"name": "labels"}], [], [], [], _VERDICTS)

    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    monkeypatch.setattr(table1, "measure", images)
    monkeypatch.setattr(table2, "measure", labels)
    return calls


def test_one_page_has_the_claims_of_both_tables(
    tmp_path: Path, plans: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    out, figures, folder = tmp_path / "p.html", tmp_path / "p.json", tmp_path / "records"
    words = ["paper", "--quick", "--work", str(tmp_path), "--out", str(out)]
    assert main([*words, "--json", str(figures), "--records", str(folder)]) == 0
    assert plans == [(table1.QUICK, tmp_path), (table2.QUICK, *table2.SMALL, tmp_path)]
    output = capsys.readouterr().out
    assert output.count("HOLDS: a claim") == 2
    assert "No data" in output
    record = json.loads((folder / "table1-claims.json").read_text())
    assert record["command"] == 'make paper ARGS="--quick"'
    assert record["columns"] == ["claim", "verdict", "a set", "b set"]
    verdicts = [row[:2] for row in record["rows"]]
    assert verdicts == [["a claim", "holds"], ["another claim", "not tested"]]
    assert (folder / "table2-size.json").exists()
    assert [part["table"] for part in json.loads(figures.read_text())["tables"]] == [
        "Table 1",
        "Table 2",
    ]
    html = out.read_text()
    for text in ("corrects the p values of each table on its own", "images", "labels", "a set"):
        assert text in html


def test_the_whole_form_has_the_defaults_of_both_tables(tmp_path: Path, plans: list[Any]) -> None:
    assert main(["paper", "--out", str(tmp_path / "p.html")]) == 0
    assert plans == [(table1_bench.Plan(), None), (table2_bench.Plan(), *table2.SIZE, None)]


def test_a_folder_without_data_is_refused(
    tmp_path: Path, plans: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is measured if a set of either table is missing."""
    assert main(["paper", "--data", str(tmp_path)]) == 2
    assert "there is no " in capsys.readouterr().err
    for name in IMAGE_SETS:
        (tmp_path / f"{name}.npz").touch()
    assert main(["paper", "--data", str(tmp_path)]) == 2
    assert f"there is no {SETS[0]}.npz" in capsys.readouterr().err
    assert not plans
