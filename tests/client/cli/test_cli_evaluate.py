"""`divgrpc evaluate`, called through the main function, with a real server."""

import csv
import io
import json
import math
import os
import pty
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from divgrpc.evaluation import METRICS
from divgrpc.types import EvaluateRow
from divgrpc_client import Client
from divgrpc_client.formats import evaluation_tables, json_output
from support.data.served_index import random_points
from support.processes.command_line import Run, read_terminal, start
from support.processes.running_server import RunningServer

ROWS, QUERIES = 300, 20
QUERIES_BY_CATEGORY = ("--key", "q", "--categories", "y")
GRID = ("--selectors", "nearest", "greedy", "--diversities", "0.2", "0.7", "--ks", "5")


def build(client: Client, name: str) -> None:
    rows = np.arange(ROWS)
    kinds, topics = rows % 2, rows // 2 % 5
    client.build(name, random_points(ROWS), categories=kinds, subtopics=topics, replace=True)


@pytest.fixture(scope="module")
def files(client: Client, tmp_path_factory: pytest.TempPathFactory) -> Path:
    build(client, "judged")
    path = tmp_path_factory.mktemp("evaluate") / "queries.npz"
    np.savez(path, q=random_points(QUERIES, seed=4), y=np.arange(QUERIES) % 2)
    lines = (" ".join(map(str, range(number, ROWS, 9))) for number in range(QUERIES))
    path.with_name("ids.txt").write_text("\n".join(lines))
    return path


@pytest.fixture
def evaluate(run: Run, files: Path) -> Run:
    """Return a function that evaluates the queries by their categories, with further options."""
    return partial(run, "evaluate", "judged", files, *QUERIES_BY_CATEGORY)


def test_rows_are_shown_as_a_table(evaluate: Run) -> None:
    ran = evaluate(*GRID)
    assert (ran.code, ran.err) == (0, "")
    head, *lines = ran.out.splitlines()
    assert " ".join(head.split()).startswith("row method diversity search limits k P SR D h ")
    assert [line.split()[0] for line in lines[:3]] == ["0", "1", "2"]
    assert lines[2].split()[1:6] == ["greedy", "0.7", "auto", "1062/850", "5"]
    assert "Chosen by folds" in ran.out
    assert any(line.rstrip().endswith("*") for line in lines[:3])
    assert max(map(len, ran.out.splitlines())) <= 120


def test_json_has_every_field(evaluate: Run, client: Client, files: Path) -> None:
    json_rows = evaluate("--json", "--per-query", *GRID).json["rows"]
    grid: Any = {"selectors": ["nearest", "greedy"], "diversities": [0.2, 0.7], "ks": [5]}
    with np.load(files) as arrays:
        rows = list(client.evaluate("judged", arrays["q"], arrays["y"], per_query=True, **grid))
    assert len(json_rows) == len(rows) == 5
    for json_row, row in zip(json_rows, rows, strict=True):
        assert set(json_row) == set(EvaluateRow.__dataclass_fields__)
        assert json_row["parameters"]["selector"] == row.parameters.selector
        assert json_row["by_fold"] == list(row.by_fold)
        for name in METRICS:
            assert json_row["metrics"][name]["value"] == pytest.approx(row.metrics[name].value)
            assert json_row["values"][name] == pytest.approx(row.values[name].tolist())
        assert json_row["microseconds"]["p50"] > 0


def test_csv_has_a_line_per_row(run: Run, files: Path) -> None:
    ids = files.with_name("ids.txt")
    ran = run(
        "evaluate", "judged", files, "--key", "q", "--relevant", ids, "--folds", "2", "--csv", *GRID
    )
    rows = list(csv.DictReader(io.StringIO(ran.out)))
    assert [row["number"] for row in rows] == ["0", "1", "2", "3", "4"]
    for name in METRICS:
        assert float(rows[0][f"{name}_low"]) <= float(rows[0][name])
    assert rows[-1]["by_fold"].count(" ") == 1
    assert [row["diversity"] for row in rows[1:3]] == ["0.2", "0.7"]


def test_nan_is_shown_as_null_or_empty(capsys: pytest.CaptureFixture[str], client: Client) -> None:
    """JSON shows NaN as null, CSV and the table as an empty cell. The table counts short lists."""
    client.build("few", random_points(4), categories=[0, 0, 1, 1], replace=True)
    queries = random_points(2, seed=1)
    rows = list(client.evaluate("few", queries, [0, 1], folds=0, ks=[5], selectors=["greedy"]))
    assert math.isnan(rows[0].metrics["h_score"].value)
    json_output.show({"rows": rows})
    json_rows = json.loads(capsys.readouterr().out)["rows"]
    assert json_rows[0]["metrics"]["h_score"] == {"value": None, "low": None, "high": None}
    evaluation_tables.show_csv(rows)
    assert next(csv.DictReader(io.StringIO(capsys.readouterr().out)))["h_score"] == ""
    evaluation_tables.show(rows)
    assert "row 0: 0 queries without a result, 2 short of k" in capsys.readouterr().out


def test_the_new_default_is_shown(run: Run, client: Client, files: Path) -> None:
    build(client, "defaults")
    ran = run("evaluate", "defaults", files, *QUERIES_BY_CATEGORY, "--set-default", *GRID)
    default = client.get_index("defaults").query_default
    assert default is not None
    words = (
        f"diversity {default.diversity}, selector {default.selector}, variant {default.variant},"
        " search auto, rounding exchange"
    )
    assert ran.out.splitlines()[-1] == f"the default for Query is now {words}"
    assert f"Query takes, unless it is told otherwise: {words}" in run("info", "defaults").out
    assert run("info", "defaults", "--json").json["query_default"]["selector"] == default.selector


def test_a_new_default_has_the_limits_that_were_named(
    run: Run, client: Client, files: Path
) -> None:
    build(client, "defaults")
    options = (*QUERIES_BY_CATEGORY, "--set-default", "--limits", "90:", *GRID)
    line = run("evaluate", "defaults", files, *options).out.splitlines()[-1]
    assert line.endswith(", hash_limit 90, rounding exchange")


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (("--categories", "z"), 2, "z"),
        (("--relevant", "missing.txt"), 2, "missing.txt"),
        (("--categories", "y", "--folds", "99"), 2, "folds"),
        (("--categories", "y", "--limits", "1:2:3"), 2, "--limits"),
        (("--categories", "y", "--limits", "all"), 2, "HASH:CANDIDATES"),
        (("--categories", "y", "--limits", "3:"), 2, "limits"),
        (("--categories", "y", "--selectors", "best"), 2, "--selectors"),
        (("--categories", "y", "--groups", "z"), 2, "z"),
        (("--categories", "y", "--groups", "q"), 2, "groups"),
        (("--categories", "y", "--groups", "missing.npy"), 2, "missing.npy"),
        (("--categories", "y", "--n-probes", "few"), 2, "number or default"),
        (("--categories", "y", "--n-probes", "0"), 2, "--n-probes must be"),
        (("--categories", "y", "--samplings", "uniformly"), 2, "--samplings"),
        (("--categories", "y", "--epsilons", "-1"), 2, "epsilons"),
        (("--categories", "y", "--n-probes", "9", "--set-default"), 1, "--set-default stores no"),
        ((), 1, "set either --categories or --relevant"),
    ],
)
def test_wrong_commands(
    run: Run, files: Path, arguments: tuple[str, ...], code: int, word: str
) -> None:
    ran = run("evaluate", "judged", files, "--key", "q", *arguments)
    assert ran.code == code
    assert word in ran.err


def test_a_missing_part_of_limits_is_the_default(evaluate: Run) -> None:
    """If a pair of limits lacks a part, that part is the default. A limit of 0 means no limit."""
    ran = evaluate("--limits", "60:", "0:0", ":", "--folds", "0", "--json", *GRID)
    parameters = [row["parameters"] for row in ran.json["rows"][::3]]
    limits = [(setting["hash_limit"], setting["candidates_limit"]) for setting in parameters]
    assert limits == [(60, 200), (0, 0), (800, 200)]


def test_groups_are_read_like_categories(evaluate: Run, files: Path) -> None:
    groups = files.with_name("groups.txt")
    groups.write_text("\n".join(str(number // 4) for number in range(QUERIES)))
    by_file, by_categories, default = (
        evaluate("--json", *GRID, *source).json["rows"][0]["metrics"]
        for source in (("--groups", groups), ("--groups", "y"), ())
    )
    assert by_categories == default
    assert by_file["h_score"]["value"] == default["h_score"]["value"]
    assert by_file["h_score"]["low"] != default["h_score"]["low"]


def test_parameters_of_the_search_are_shown_where_they_vary(evaluate: Run) -> None:
    axes = ["--n-probes", "default", "10", "--epsilons", "default", "0.5", "--folds", "0"]
    axes += ["--selectors", "nearest", "--searches", "tables"]
    ran = evaluate(*axes, "--samplings", "nearest")
    head, *lines = ran.out.splitlines()
    heads = "row method diversity search limits epsilon probes "
    assert " ".join(head.split()).startswith(heads)
    assert "sampling" not in head
    assert lines[3].split()[2:6] == ["tables", "90/200", "0.5", "10"]
    rows = list(csv.DictReader(io.StringIO(evaluate(*axes, "--csv").out)))
    assert [row["epsilon"] for row in rows] == ["", "", "0.5", "0.5"]
    assert [row["n_probes"] for row in rows[1::2]] == ["10", "10"]


def test_a_terminal_sees_progress(server: RunningServer, files: Path) -> None:
    terminal, writer = pty.openpty()
    command = ("evaluate", "judged", files, *QUERIES_BY_CATEGORY, *GRID)
    with start(server.target, *command, stdout=subprocess.PIPE, stderr=writer) as process:
        os.close(writer)
        text = read_terminal(terminal)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "evaluating" in text
    assert b"nearest" in out
