"""The command line, called through its main function, with a real server."""

import json
import os
import pty
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from sklearn.datasets import dump_svmlight_file

import divgrpc
from divgrpc.parameters import BuildParameters, QueryParameters
from divgrpc_client import Client
from divgrpc_client.cli import main, options
from divgrpc_client.formats import tables
from support.processes.command_line import Run, read_terminal, start
from support.processes.running_server import RunningServer
from support.processes.scripted_server import ScriptedIndex

ROWS, DIMS = 300, 16


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli") / "vectors.npy"
    np.save(path, np.random.default_rng(3).normal(size=(ROWS, DIMS)).astype(np.float32))
    return path


@pytest.fixture(scope="module")
def index(client: Client, vectors: Path) -> str:
    client.build("cli", np.load(vectors), categories=np.arange(ROWS) % 2)
    return "cli"


def test_build_and_remove(run: Run, vectors: Path, tmp_path: Path) -> None:
    ids = tmp_path / "ids.txt"
    ids.write_text("\n".join(str(5 * row) for row in range(ROWS)))
    build = run("build", "made", vectors, "--ids", ids, "--n-tables", "3", "--centred", "--json")
    assert (build.code, build.err) == (0, "")
    info = build.json
    assert (info["name"], info["rows"], info["dims"]) == ("made", ROWS, DIMS)
    assert (info["parameters"]["n_tables"], info["parameters"]["centred"]) == (3, True)
    again = run("build", "made", vectors)
    assert again.code == 1
    assert "ALREADY_EXISTS" in again.err
    assert "--replace replaces it" in again.err
    replacement = run("build", "made", vectors, "--replace")
    assert replacement.code == 0
    assert re.search(r"[\d.]+ KiB, serving", replacement.out)
    assert re.search(r"made .* KiB", run("ls").out)
    assert "generation 2" in run("rm", "made").out
    assert "made" not in run("ls").out


def test_query_prints_a_table(run: Run, index: str, vectors: Path) -> None:
    ran = run("query", index, vectors, "--rows", "4", "-k", "3", "--diversity", "0")
    assert ran.code == 0
    header, first, *_ = ran.out.splitlines()
    assert header.split()[:4] == ["row", "rank", "id", "score"]
    assert first.split()[:4] == ["4", "1", "4", "1.0000"]
    assert "generation" in ran.out


def test_chosen_diversities_are_shown(run: Run, index: str, vectors: Path) -> None:
    """A table shows the smallest and the greatest; JSON has one for each row, with its reason."""
    result = run("query", index, vectors, "--rows", "2:4", "--diversity", "auto")
    assert "diversity auto (" in result.out
    result = run("query", index, vectors, "--rows", "2:4", "--lose-at-most", "0.05")
    assert "diversity by lose_at_most 0.05 (" in result.out
    ran = run("query", index, vectors, "--rows", "2:4", "--diversity", "auto", "--json")
    rows = ran.json["results"]
    assert [row["dial_reason"] for row in rows] == ["fall_off"] * 2
    assert all(0 < row["diversity"] < 1 for row in rows)
    wrong = run("query", index, vectors, "--diversity", "0.2", "--lose-at-most", "0.05", "--json")
    assert wrong.fields == ["lose_at_most"]


def test_query_prints_json(run: Run, index: str, client: Client, vectors: Path) -> None:
    ran = run("query", index, vectors, "--rows", "2:4", "--k", "5", "--search", "exact", "--json")
    output = ran.json
    expected = client.query(index, np.load(vectors)[2:4], k=5, search="exact")
    assert [row["row"] for row in output["results"]] == [2, 3]
    assert [row["ids"] for row in output["results"]] == expected.ids.tolist()
    assert output["results"][0]["scores"] == pytest.approx(expected.scores[0].tolist())
    assert output["parameters"]["search"] == "exact"
    more = run("query", index, vectors, "--rows", "0", "--k", ROWS + 9, "--json")
    assert len(more.json["results"][0]["ids"]) == ROWS


def test_info_shows_choices_and_their_reasons(run: Run, index: str) -> None:
    ran = run("info", index)
    assert ran.code == 0
    for word in (*BuildParameters.__dataclass_fields__, "tables", "scan", "exact", "vectors"):
        assert word in ran.out
    assert "categories kept" in ran.out
    assert "auto means this" in ran.out
    output = run("info", index, "--json").json
    assert output["search_costs"]
    assert (output["points"], output["nonzeros"]) == ("dense", ROWS * DIMS)
    for choice in output["choices"]:
        assert choice["parameter"] in ran.out
        assert choice["reason"].split()[0] in ran.out


def test_info_fits_a_terminal(
    run: Run, client: Client, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 80 columns no text is truncated, even if the name of another index is long."""
    monkeypatch.setattr(tables, "_PIPE_WIDTH", 80)
    client.build("wide" * 15, np.eye(4), metric="inner_product", replace=True)
    for command in (["info", index], ["ls"]):
        lines = run(*command).out.splitlines()
        assert max(map(len, lines)) <= 80
        assert not any("…" in line for line in lines)


def test_info_shows_the_search_costs_of_dense_queries(run: Run, tmp_path: Path) -> None:
    """The second table of an index of sparse points is for dense queries."""
    rows = scipy.sparse.csr_array(np.tile(np.eye(3, 30, dtype=np.float32), (30, 1)))
    dump_svmlight_file(rows, np.arange(90) % 3, str(tmp_path / "rows.svm"), zero_based=False)
    assert run("build", "apart", tmp_path / "rows.svm", "--categories", "labels").code == 0
    text = run("info", "apart").out
    assert text.count("auto means this") == 2
    assert "dense queries" in text
    assert run("info", "apart", "--json").json["search_costs_dense"]


def test_sparse_files(run: Run, tmp_path: Path) -> None:
    rows = scipy.sparse.random(60, 30, 0.2, "csr", np.float32, rng=np.random.default_rng(0))
    rows = rows + scipy.sparse.csr_array(np.eye(60, 30, dtype=np.float32))
    scipy.sparse.save_npz(tmp_path / "rows.npz", rows)
    dump_svmlight_file(rows, np.arange(60) % 3, str(tmp_path / "rows.svm"), zero_based=False)
    (tmp_path / "short.svm").write_text("0 1:1 7:0.5\n")
    metric = ("--metric", "euclidean")
    assert run("build", "from-npz", tmp_path / "rows.npz", *metric).code == 0
    build = run("build", "from-svm", tmp_path / "rows.svm", "--categories", "labels", *metric)
    assert build.code == 0
    assert "60 sparse rows of 30 dimensions" in build.out
    results = [
        run("query", name, tmp_path / file, "--json", "--rows", "0:1").json["results"]
        for name in ("from-npz", "from-svm")
        for file in ("rows.npz", "rows.svm", "short.svm")
    ]
    assert results[0] == results[1] == results[3] == results[4]
    assert results[2] == results[5]
    assert run("info", "from-svm", "--json").json["has_categories"]
    text = run("info", "from-npz").out
    assert f"sparse points: {rows.nnz} numbers" in text
    assert "dense queries" not in text
    wrong = run("query", "from-npz", tmp_path / "short.svm", "--dims", "3")
    assert (wrong.code, "more than --dims 3" in wrong.err) == (2, True)


@pytest.mark.parametrize("command", ["info", "rm"])
def test_unknown_indexes(run: Run, command: str) -> None:
    ran = run(command, "nowhere")
    assert (ran.code, ran.out) == (1, "")
    assert "nowhere" in ran.err
    assert ran.err.count("\n") == 1


def test_errors_as_json(run: Run, index: str, vectors: Path) -> None:
    ran = run("query", index, vectors, "--duplicate-threshold", "7", "--json")
    assert (ran.code, ran.out, ran.fields) == (1, "", ["duplicate_threshold"])
    assert (ran.error["code"], ran.error["reason"]) == ("INVALID_ARGUMENT", "INVALID_ARGUMENT")
    assert ran.error["request_id"]
    missing = run("query", index, "missing.npy", "--json")
    assert (missing.code, missing.fields) == (2, ["file"])


@pytest.mark.parametrize(
    "arguments",
    [
        ("query",),
        ("query", "cli", "x.npy", "--k", "many"),
        ("query", "cli", "x.npy", "--selector", "best"),
        ("build", "cli", "x.npy", "--depth", "3"),
        ("build", "cli", "missing.npy"),
        ("explode",),
    ],
)
def test_wrong_commands_exit_with_code_2(run: Run, arguments: tuple[str, ...]) -> None:
    ran = run(*arguments)
    assert ran.code == 2
    assert ran.err


@pytest.mark.parametrize("rows", ["x", "5:2", "300", "1:2:3"])
def test_wrong_rows(run: Run, index: str, vectors: Path, rows: str) -> None:
    ran = run("query", index, vectors, "--rows", rows)
    assert ran.code == 2
    assert "rows" in ran.err


def test_last_rows(run: Run, index: str, vectors: Path) -> None:
    for rows in ("-1", "-1:"):
        output = run("query", index, vectors, f"--rows={rows}", "--json").json
        assert [row["row"] for row in output["results"]] == [ROWS - 1]


def test_target_comes_from_the_environment(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(options.TARGET_VARIABLE, server.target)
    assert main.main(["ls", "--json"]) == 0
    assert isinstance(json.loads(capsys.readouterr().out), list)


@pytest.mark.parametrize("verb", ["build", "query"])
def test_every_parameter_is_an_option(run: Run, verb: str) -> None:
    kind: Any = BuildParameters if verb == "build" else QueryParameters
    text = " ".join(run(verb, "--help").out.split())
    for name, field in kind.__dataclass_fields__.items():
        assert f"--{name.replace('_', '-')} " in text
        if field.default is not None:
            default = "no" if field.default is False else field.default
            assert f"(default {default})" in text


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main.main(["--version"])
    assert (end.value.code, capsys.readouterr().out) == (0, f"{divgrpc.__version__}\n")


def test_messages_name_options_instead_of_parameters(run: Run, tmp_path: Path) -> None:
    """The message names the option `--zero-vectors`, but in JSON it keeps the server's text."""
    np.save(tmp_path / "zero.npy", np.zeros((2, 3)))
    plain = run("build", "zeros", tmp_path / "zero.npy")
    assert (plain.code, plain.err.count("\n")) == (1, 1)
    assert "--zero-vectors skip leaves such rows out" in plain.err
    in_json = run("build", "zeros", tmp_path / "zero.npy", "--json")
    assert "zero_vectors" in in_json.error["message"]


def test_rows_without_results_are_shown(run: Run, index: str, vectors: Path) -> None:
    opposite = vectors.with_name("opposite.npy")
    np.save(opposite, -np.load(vectors)[:2])
    ran = run("query", index, opposite, "--max-distance", "0")
    assert ran.code == 0
    assert [line.split() for line in ran.out.splitlines()[1:3]] == [["0", "none"], ["1", "none"]]


def test_many_rows_are_sent_in_requests_of_1000_rows(
    script: ScriptedIndex, target: str, vectors: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --list-collapsed a request has 100 rows; a replaced index is queried from the start."""
    long = vectors.with_name("long.npy")
    np.save(long, np.repeat(np.arange(2500.0), 2).reshape(2500, 2))
    script.generations = [1, 2]
    assert main.main(["query", "images", str(long), "--target", target, "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["generation"] == 2
    assert [row["ids"][0] for row in output["results"]] == list(range(0, 25000, 10))
    assert [q.queries.dense.rows for q in script.queries] == [1000, 1000, 1000, 1000, 500]
    script.queries.clear()
    listing = ["query", "images", str(long), "--rows", ":250", "--list-collapsed"]
    assert main.main([*listing, "--target", target, "--json"]) == 0
    capsys.readouterr()
    assert [q.queries.dense.rows for q in script.queries] == [100, 100, 50]
    script.generations = list(range(3, 99))
    assert main.main(["query", "images", str(long), "--target", target]) == 1
    assert "replaced again and again" in capsys.readouterr().err


def test_output_that_cannot_be_written(
    server: RunningServer, index: str, vectors: Path, tmp_path: Path
) -> None:
    command = ("query", index, vectors)
    with (
        Path("/dev/full").open("wb") as full,
        start(server.target, *command, stdout=full, stderr=subprocess.PIPE) as process,
    ):
        _, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (1, b"divgrpc: No space left on device\n")
    file = tmp_path / "file"
    file.touch()
    page = str(file / "folder" / "page.html")
    assert main.main(["evaluate", index, str(vectors), "--report", page]) == 1


def test_a_terminal_sees_progress(server: RunningServer, vectors: Path) -> None:
    terminal, writer = pty.openpty()
    command = ("build", "shown", vectors, "--replace")
    with start(server.target, *command, stdout=subprocess.PIPE, stderr=writer) as process:
        os.close(writer)
        text = read_terminal(terminal)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "writing" in text
    assert out.startswith(b"shown: generation")


def test_interrupting_a_build_cancels_it(script: ScriptedIndex, target: str, vectors: Path) -> None:
    script.silent = True
    with start(target, "build", "late", vectors, stderr=subprocess.PIPE) as process:
        assert script.asked.wait(60)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (130, b"interrupted\n")
    assert script.cancelled.wait(10)


def test_a_closed_pipe_gives_no_traceback(server: RunningServer, index: str, vectors: Path) -> None:
    command = ("query", index, vectors, "--json")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with start(server.target, *command, **pipes) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert process.returncode == 1


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
    for point_id, ids in zip(row["ids"], row["collapsed_ids"], strict=True):
        assert sorted([point_id, *ids]) == [*range(point_id // 10 * 10, point_id // 10 * 10 + 10)]
    assert "collapsed_ids" not in run(*ask).json["results"][0]


def test_info_shows_the_duplicate_threshold(run: Run, copies: Path) -> None:
    threshold = run("info", "copies", "--json").json["duplicate_threshold"]
    assert f"a cosine of at least {threshold:.9g}" in run("info", "copies").out
    assert run("build", "copies-far", copies, "--metric", "l2").code == 0
    assert "a squared distance of at most" in run("info", "copies-far").out
