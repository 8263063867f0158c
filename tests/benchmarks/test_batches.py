"""The run that compares batches with their rows, as small as it goes."""

import argparse

import numpy as np
import pytest

from benchmarks import batches
from divgrpc.index import Index
from divgrpc.parameters import QueryParameters


def test_each_family_and_size_has_its_row(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two data sets: digits where there are no others, of which `auto` searches few exactly."""
    monkeypatch.delenv("DIVGRPC_DATA", raising=False)
    parser = argparse.ArgumentParser()
    batches.add_arguments(parser)
    words = "--points real 1500 --families lsh_sdiv auto --batches 1 --k 3"
    rows = batches.run(parser.parse_args(words.split()))["rows"]
    assert isinstance(rows, list)
    keys = [(row["points"], row["family"], row["search"], row["rows"]) for row in rows]
    assert len(set(keys)) == len(keys)
    assert {family for _, family, _, _ in keys} == {"lsh_sdiv", "auto"}
    assert {size for *_, size in keys} == set(batches._SIZES)
    assert len({points for points, _, search, _ in keys if search == "exact"}) == 2
    assert all(row["alone"] > 0 and row["together"] > 0 for row in rows)
    assert "of one by one" in capsys.readouterr().out


def test_a_batch_answered_otherwise_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """No figure is printed of an answer that is another."""
    monkeypatch.setattr(batches, "_in_a_batch", lambda *_: np.full(6, -1))
    index = Index.build(np.random.default_rng(0).standard_normal((50, 4)))
    with pytest.raises(RuntimeError, match="otherwise"):
        batches._in_turns(index, QueryParameters(k=3), np.ones((2, 4), np.float32), 2, 1)
