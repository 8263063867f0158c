"""The run that measures the dial of labels, as small as it goes."""

import argparse

import pytest

from benchmarks import label_dial


def test_dials_have_their_rows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Six dials in each mode; at 0 nothing changes, and that of the hierarchy diversifies."""
    monkeypatch.delenv("DIVGRPC_DATA", raising=False)
    parser = argparse.ArgumentParser()
    label_dial.add_arguments(parser)
    rows = label_dial.run(parser.parse_args(["--timed", "3"]))["rows"]
    assert isinstance(rows, list)
    dials = [0, 0.05, 0.3, 0.5, 0.3, 0.5, 0, 0.3, 0.3, 0.5, 0.3, 0.5]
    assert [row["diversity"] for row in rows] == dials
    assert [row["selector"] for row in rows] == 2 * (["hierarchy"] * 4 + ["greedy"] * 2)
    for mode in rows[:6], rows[6:]:
        assert mode[0]["change"] == 0
        assert mode[3]["drank"] > mode[0]["drank"]
    assert all(row["microseconds"] > 0 for row in rows)
    assert "digits, embedding, hierarchy, 0.05 (default)" in capsys.readouterr().out
