"""The run of dials: rows for every selector, set and measure, between their ends."""

import argparse
from pathlib import Path

import numpy as np
import pytest

from benchmarks import dials


def test_dials_run_small(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On digits and the made points, where an automatic dial loses next to nothing."""
    monkeypatch.delenv("DIVGRPC_DATA", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    parser = argparse.ArgumentParser()
    dials.add_arguments(parser)
    words = ["--k", "5", "--per-category", "4", "--timed", "2"]
    rows = dials.run(parser.parse_args(words))["rows"]
    assert isinstance(rows, list)
    assert len(rows) == 3 * 2 * 2
    for row in rows:
        assert max(row["own"], row["auto"], row["fixed"], row["nearest"]) <= row["oracle"] + 0.02
        assert row["times_auto"] > 0
        assert 0 < row["rule_microseconds"] < 1_000
        if row["data"] == "made, nothing crowds" and row["measure"] == "alpha-nDCG":
            assert row["auto"] >= 0.99 * row["nearest"]
    printed = capsys.readouterr().out
    assert "Dials of each query: mmr, k = 5" in printed
    assert "Share of the way from own to oracle" in printed


def test_the_dial_of_a_category_is_chosen_on_its_other_queries() -> None:
    """Two categories, two dials: each takes the better one of its first half."""
    values = np.array([[1.0, 0.9, 0.0, 0.1], [0.0, 0.2, 1.0, 0.7]])
    asked = np.array([3, 3, 5, 5])
    assert dials._by_category(values, asked) == pytest.approx((0.9 + 0.7) / 2)
