"""The run that measures h of the defaults, as small as it goes."""

import argparse
from pathlib import Path

import numpy as np
import pytest

from benchmarks import default_h


def test_change_over_categories_is_paired_by_category() -> None:
    """Three categories gain 1, 2 and 3: Student's interval of two degrees of freedom."""
    asked = np.array([0, 0, 0, 4, 7, 7])
    others = np.array([0.5, 0.0, 0.1, 0.3, 0.2, 0.9])
    values = others + np.array([0.0, 1.0, 2.0, 2.0, 2.5, 3.5])
    change, low, high = default_h.change_over_categories(values, others, asked)
    assert change == pytest.approx(2)
    # 4.302653 is the quantile at .975, 1 / sqrt(3) the standard error.
    assert high - change == pytest.approx(4.302653 / 3**0.5)
    assert change - low == pytest.approx(high - change)


def test_runs_small(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On digits: a row beside each, and the defaults at their own dial change nothing."""
    monkeypatch.delenv("DIVGRPC_DATA", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    parser = argparse.ArgumentParser()
    default_h.add_arguments(parser)
    words = "--sets newsgroups20 --k 5 --per-category 4 --seeds 2 --dials 0.15 0.5"
    rows = default_h.run(parser.parse_args(words.split()))["rows"]
    assert isinstance(rows, list)
    assert [row["beside"] for row in rows] == 3 * ["nearest", "first default"]
    assert all((row["categories"], row["queries"]) == (2, 4) for row in rows)
    assert all(row["low"] <= row["change"] <= row["high"] for row in rows)
    own, named, other = rows[::2]
    assert own | {"setting": ""} == named | {"setting": ""}
    assert other["of_nearest"] < own["of_nearest"] <= 1
    assert "digits" in capsys.readouterr().out
