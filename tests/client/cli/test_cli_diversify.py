"""The command diversify: its files of candidates, scores, tables and JSON."""

import json
from pathlib import Path

import numpy as np
import pytest

from divgrpc import GroupBy, Quota, diversify
from support.processes.command_line import Run

VECTORS = np.random.default_rng(5).standard_normal((30, 6), dtype=np.float32)
SCORES = np.random.default_rng(6).random(30)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the same candidates in several formats."""
    path = tmp_path_factory.mktemp("candidates")
    np.savez(path / "both.npz", vectors=VECTORS, scores=SCORES)
    np.save(path / "vectors.npy", VECTORS)
    np.save(path / "scores.npy", SCORES)
    (path / "scores.txt").write_text("".join(f"{score!r}\n" for score in SCORES.tolist()))
    lines = [
        {
            "id": f"a{row}",
            "vector": VECTORS[row].tolist(),
            "attributes": {"score": SCORES[row], "brand": f"b{row % 7}"},
        }
        for row in range(30)
    ]
    (path / "lines.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.parametrize(
    ("file", "scores"),
    [("both.npz", "scores"), ("vectors.npy", "scores.npy"), ("vectors.npy", "scores.txt")],
)
def test_every_source_of_scores(run: Run, folder: Path, file: str, scores: str) -> None:
    source = folder / scores if "." in scores else scores
    answer = run("diversify", folder / file, "--scores", source, "-k", "4", "--json")
    assert answer.code == 0, answer.err
    value = json.loads(answer.out)
    expected = diversify(VECTORS, SCORES, k=4)
    assert value["places"] == expected.places.tolist()
    assert value["scores"] == expected.scores.tolist()
    assert (value["diversity"], value["dial_reason"], "ids" in value) == (0.15, None, False)


def test_points_with_ids(run: Run, folder: Path) -> None:
    options = ("--scores", "score", "-k", "3", "--duplicate-threshold", "0.9")
    result = diversify(VECTORS, SCORES, k=3, duplicate_threshold=0.9)
    names = [f"a{place}" for place in result.places]
    value = json.loads(run("diversify", folder / "lines.jsonl", *options, "--json").out)
    assert value["ids"] == names
    assert value["collapsed_places"] == [result.collapsed(rank).tolist() for rank in range(3)]
    table = run("diversify", folder / "lines.jsonl", *options).out
    assert "copies" in table
    assert all(name in table for name in names)
    assert "diversity 0.15" in table


def test_quotas_and_groups(run: Run, folder: Path) -> None:
    brands = {"brand": [f"b{row % 7}" for row in range(30)]}
    words = ("diversify", folder / "lines.jsonl", "--scores", "score")
    value = json.loads(run(*words, "--max-each", "brand=1", "-k", "7", "--json").out)
    expected = diversify(VECTORS, SCORES, k=7, attributes=brands, quotas=Quota("brand", max_each=1))
    assert value["places"] == expected.places.tolist()
    answer = run(*words, "--max-each", "brand=1", "-k", "8")
    assert answer.code == 1
    assert "7 of 8 results are possible" in answer.err
    relax = ("--on-infeasible", "relax")
    assert "results: 7 of at least 8" in run(*words, "--max-each", "brand=1", "-k", "8", *relax).out
    groups = diversify(VECTORS, SCORES, attributes=brands, group_by=GroupBy("brand", 2, 3)).groups
    grouped = json.loads(run(*words, "--group-by", "brand=2x3", "--json").out)
    assert grouped["groups"] == [{"value": group.value, "size": 3} for group in groups]
    table = run(*words, "--group-by", "brand=2x3").out
    assert "group" in table
    assert all(str(group.value) in table for group in groups)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--scores", "none"], "scores cannot be read from none"),
        (["--scores", "vectors"], "scores must be one number for each candidate"),
        (["-k", "31"], "k must be at most the number of candidates, 30, got 31"),
        (["--metric", "cosin"], "cosin"),
        (["--max-each", "brand=1"], "quotas must name one of the attributes of the call"),
    ],
)
def test_errors_name_the_option(run: Run, folder: Path, words: list[str], message: str) -> None:
    answer = run("diversify", folder / "both.npz", *words)
    assert answer.code in (1, 2)
    assert message in answer.err
