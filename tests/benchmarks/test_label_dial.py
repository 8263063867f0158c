"""The run that measures the dial of labels, as small as it goes."""

import argparse

import numpy as np
import pytest

from benchmarks import label_dial
from benchmarks.label_dial import Trial


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


def test_changes_are_in_percent_with_a_standard_error() -> None:
    """Two columns by hand: one falls by a tenth in one of four rows, the other stays."""
    plain = np.array([[1.0, 0.5], [1.0, 0.5], [0.0, 0.5], [0.0, 0.5]])
    values = plain - np.array([[0.2, 0], [0, 0], [0, 0], [0, 0]])
    change, error = label_dial.changes(values, plain)
    assert change == pytest.approx([-10, 0])
    # Changes of -.2, 0, 0, 0: a standard deviation of .1, over two, as a share of .5.
    assert error == pytest.approx([10, 0])


def test_the_dial_that_is_chosen_loses_little_on_every_set() -> None:
    """The greatest that does, though a greater one does on one set; 0 where none does."""
    trials = [
        Trial("one", 0.05, -0.2, -0.5, 0.5),
        Trial("one", 0.1, -0.4, -1.0, 0.5),
        Trial("one", 0.15, -0.4, -0.9, 0.5),
        Trial("other", 0.05, 0.1, 0.0, 0.5),
        Trial("other", 0.1, 0.1, 0.0, 0.5),
        Trial("other", 0.15, -0.7, -1.1, 0.5),
    ]
    assert label_dial.chosen_dial(trials) == 0.1
    assert label_dial.chosen_dial(trials[-1:]) == 0


def test_choosing_prints_every_dial(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the documents with even numbers, whatever part is to be reported."""
    monkeypatch.delenv("DIVGRPC_DATA", raising=False)
    parser = argparse.ArgumentParser()
    label_dial.add_arguments(parser)
    found = label_dial.run(parser.parse_args(["--choose"]))
    trials = found["trials"]
    assert isinstance(trials, list)
    assert [trial["diversity"] for trial in trials] == list(label_dial._TRIED)
    assert all(trial["lower"] <= trial["change"] for trial in trials)
    assert trials[-1]["drank"] > trials[0]["drank"]
    printed = capsys.readouterr().out
    assert "test documents: tuning" in printed
    assert f"chosen: {found['chosen']:g}" in printed
