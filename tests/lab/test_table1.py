"""`divgrpc_lab table1` on a small data set, from its start to its page, and its refusals."""

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from divgrpc.errors import InvalidArgumentError
from divgrpc.metrics import PointCategories
from divgrpc_lab.__main__ import main
from divgrpc_lab.data.topics import DATA_VARIABLE, HyperplaneQueries, Topics
from divgrpc_lab.table1 import home
from divgrpc_lab.table1.bench import RETRIEVALS, Bench, Plan
from divgrpc_lab.table1.command import QUICK, facts_of
from divgrpc_lab.table1.methods import HASHING, HOME_METHODS, WITHOUT_HASHING
from divgrpc_lab.table1.paper import KS, METHODS
from support.checks.timeouts import alarm

# Time limit of a run, which takes a minute on a machine that is not busy.
_RUN_SECONDS = 360.0


class QuickRun(NamedTuple):
    """A quick run on digits: its arguments, its two outputs, its page and its figures."""

    words: list[str]
    output: str
    progress: str
    html: str
    figures: Path


@pytest.fixture(scope="module")
def quick_run(tmp_path_factory: pytest.TempPathFactory) -> QuickRun:
    """Run the command without any data sets."""
    folder = tmp_path_factory.mktemp("table1")
    page, figures = folder / "new" / "table1.html", folder / "table1.json"
    words = ["table1", "--quick", "--out", str(page), "--json", str(figures)]
    words += ["--work", str(folder / "work"), "--records", str(folder / "records")]
    output, progress = io.StringIO(), io.StringIO()
    with (
        alarm(_RUN_SECONDS),
        pytest.MonkeyPatch.context() as patch,
        redirect_stdout(output),
        redirect_stderr(progress),
    ):
        patch.delenv(DATA_VARIABLE, raising=False)
        assert main(words) == 0
    html = page.read_text()
    return QuickRun(words, output.getvalue(), progress.getvalue(), html, figures)


def test_quick_run_on_digits(quick_run: QuickRun) -> None:
    """If there are no data sets, the run says so and measures every row on digits.

    It writes a page and JSON.
    """
    output = quick_run.output
    assert output.startswith("This is not the paper's data: its ImageNet images")
    assert "No data" in output
    assert "1 of " in quick_run.progress
    report = json.loads(quick_run.figures.read_text())
    kinds = len(WITHOUT_HASHING) + 2 * (len(HASHING) + 2 * len(HOME_METHODS))
    assert len(report["rows"]) == len(KS) * kinds
    assert {row["case"]["method"] for row in report["rows"]} > set(METHODS)
    assert all(0 <= row["figures"]["h_score"]["value"] <= 1 for row in report["rows"])
    assert all(row["microseconds"] > 0 for row in report["rows"])
    assert {spread["retrieval"] for spread in report["uniformity"]} == set(RETRIEVALS)
    assert len(report["growth"]) == 1
    assert len(report["paper"]) == 45
    assert len(report["times"]) == 2 * len(report["paper"])
    for claim in report["claims"]:
        assert f": {claim['claim']}" in output.replace("\n", " ")
    for text in (
        "the paper's LSH-SDiv",
        "QP-Rel, top k",
        "cannot be told",
        "home buckets by folds",
    ):
        assert text.replace("'", "&#39;") in quick_run.html


def test_records_of_a_run_are_those_of_the_site(quick_run: QuickRun) -> None:
    """The site can show each record, and the command does not name the machine's files."""
    paths = sorted((quick_run.figures.parent / "records").iterdir())
    assert [path.name for path in paths] == sorted(
        f"table1-{name}.json"
        for name in ("claims", "gain", "growth", "h", "home", "time", "uniformity")
    )
    for path in paths:
        record = json.loads(path.read_text())
        assert record["command"] == 'make table1 ARGS="--quick"'
        assert record["rows"] or path.stem == "table1-gain"
        assert all(len(row) == len(record["columns"]) for row in record["rows"])


def test_a_second_run_takes_all_results_from_the_work_folder(
    quick_run: QuickRun, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is measured again, and all figures are the same."""
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    report = json.loads(quick_run.figures.read_text())
    assert main(quick_run.words) == 0
    assert "1 of " not in capsys.readouterr().err
    again = json.loads(quick_run.figures.read_text())
    assert again.pop("facts").keys() == report.pop("facts").keys()
    assert again == report


def test_home_rows_look_up_one_bucket_of_each_table() -> None:
    """The literal mode has Gaussian hyperplanes, and no limits except those of an epsilon."""
    place = home.Place("LSH-SDiv", 3, home.PAPERS)
    assert place.options["hyperplanes"] == "gaussian"
    grids = []

    class Server:
        def evaluate(self, *_: object, **grid: object) -> list[object]:
            grids.append(grid)
            return []

    queries = HyperplaneQueries(np.zeros((1, 2), np.float32), np.zeros(1, np.int64))
    home.measure(Server(), "name", place, queries)  # type: ignore[arg-type]
    assert len(grids) == 2 * len(HOME_METHODS)
    for grid in grids:
        assert grid["searches"] == ["tables"]
        assert grid["n_probes"] == [10]
        assert grid["limits"] == ([(None, 0)] if "epsilons" in grid else [(0, 0)])


def test_one_category_is_refused() -> None:
    """With one category there are no folds and no intervals, so nothing is measured."""
    labels = PointCategories.of(np.zeros(4, np.int64), np.arange(4) % 2)
    points = np.eye(4, dtype=np.float32)
    data = Topics("small", "0", points, labels, points, np.zeros(4, np.int64))
    with pytest.raises(InvalidArgumentError, match="small has fewer than two categories"):
        Bench(data, QUICK)


def test_kept_results_serve_a_run_with_more_seeds() -> None:
    """The number of seeds changes no job, but every other part of the plan does."""
    facts = facts_of(Plan(seeds=2))
    assert facts_of(Plan(seeds=5)) == facts
    for other in (Plan(per_category=4), Plan(codes=home.codes([8], [5])), Plan(ball_seeds=9)):
        assert facts_of(other) != facts


def test_codes_and_builds_of_a_study() -> None:
    """The paper's 10 x 10 is always tried, and PCA-Hash only as far as it has components."""
    codes = home.codes([8], [5, 20])
    assert [str(code) for code in codes] == [
        "8 bits x 5 tables",
        "10 bits x 10 tables",
        "8 bits x 20 tables",
    ]
    places = home.places(codes, seeds=2, dims=120)
    assert len(places) == 2 * 2 * 3 + 2
    home.check_builds(len(places), 14)
    with pytest.raises(InvalidArgumentError, match="needs 14 builds, and --builds allows 13"):
        home.check_builds(len(places), 13)


@pytest.mark.parametrize("name", ["table1", "table2", "figures"])
def test_help_names_the_page(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([name, "--help"])
    assert f"(default {name}.html)" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--sets", "imagenet"], "sets must be of cifar100_dense256"),
        (["--per-category", "1"], "per-category must be at least"),
        (["--seeds", "0"], "seeds must be at least 1"),
        (["--quick", "--seeds", "2"], "leave --seeds out"),
        (["--quick", "--bits", "8"], "leave --bits out"),
        (["--builds", "1"], "needs 125 builds, and --builds allows 1"),
        (["--bits", "0"], "bits must be"),
        (["--sets", "newsgroups20"], "sets need their folder"),
    ],
)
def test_wrong_options_are_refused(
    words: list[str],
    complaint: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The error names the option and is raised before any measurement."""
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    assert main(["table1", *words]) == 2
    assert complaint in capsys.readouterr().err


def test_a_folder_without_the_data_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names the missing file of the data set, and nothing else is measured instead."""
    assert main(["table1", "--data", str(tmp_path)]) == 2
    assert "there is no cifar100_dense256.npz" in capsys.readouterr().err
