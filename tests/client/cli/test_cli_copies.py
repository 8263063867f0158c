"""Near-copies on the command line, with a real server."""

from pathlib import Path

import numpy as np
import pytest

from divgrpc_client import Client
from support.processes.command_line import Run

DIMS = 16


@pytest.fixture(scope="module")
def copies(client: Client, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build `copies` of twenty points and nine near-copies of each, and return its vectors."""
    rng = np.random.default_rng(5)
    points = np.repeat(rng.normal(size=(20, DIMS)), 10, axis=0)
    points += 0.001 * rng.normal(size=points.shape)
    path = tmp_path_factory.mktemp("copies") / "copies.npy"
    np.save(path, points.astype(np.float32))
    client.build("copies", np.load(path))
    return path


def test_a_query_counts_near_copies(run: Run, copies: Path) -> None:
    ask = ("query", "copies", copies, "--rows", "40:42", "-k", "5")
    header, first, *_ = run(*ask).out.splitlines()
    assert header.split() == ["row", "rank", "id", "score", "copies"]
    assert first.split()[4:] == ["9"]
    header, first, *_ = run(*ask, "--list-collapsed").out.splitlines()
    assert header.split() == ["row", "rank", "id", "score", "copies", "ids", "of", "copies"]
    assert sorted(first.split()[5:]) == [str(number) for number in range(41, 50)]
    for plain in (["--no-list-collapsed"], ["--diversity", "0"], ["--keep-duplicates"]):
        assert "copies" not in run(*ask, *plain).out


def test_json_lists_near_copies_when_asked(run: Run, copies: Path) -> None:
    ask = ("query", "copies", copies, "--rows", "40:42", "-k", "5", "--json")
    row = run(*ask, "--list-collapsed").json["results"][1]
    assert [len(ids) for ids in row["collapsed_ids"]] == [9] * 5
    assert row["collapsed"] == 45
    for found, ids in zip(row["ids"], row["collapsed_ids"], strict=True):
        assert sorted([found, *ids]) == [*range(found // 10 * 10, found // 10 * 10 + 10)]
    assert "collapsed_ids" not in run(*ask).json["results"][0]


def test_info_shows_the_duplicate_threshold(run: Run, copies: Path) -> None:
    threshold = run("info", "copies", "--json").json["duplicate_threshold"]
    assert f"a cosine of at least {threshold:.9g}" in run("info", "copies").out
    assert run("build", "copies-far", copies, "--metric", "l2").code == 0
    assert "a squared distance of at most" in run("info", "copies-far").out
