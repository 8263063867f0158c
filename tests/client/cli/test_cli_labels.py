"""Labels on the command line: builds from files, predictions, and errors that name lines."""

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from divgrpc_client import Client
from divgrpc_client.cli import main
from support.data import labelled_documents
from support.processes.command_line import Run
from support.processes.running_server import RunningServer

TRAIN, TEST = labelled_documents.documents(200), labelled_documents.documents(5, seed=1)
ROOTS = ("--roots", labelled_documents.LABELS, labelled_documents.LABELS + 1)
LEML = ("--label-model", "leml", "--rank", "4", "--regularisation", "1", "--iterations", "2")


def text_of(documents: sparse.csr_array, labels: sparse.csr_array, *, header: bool) -> str:
    lines = [f"{documents.shape[0]} {documents.shape[1]} {labels.shape[1]}"] if header else []
    for row in range(documents.shape[0]):
        label_text = ",".join(map(str, labels[[row]].indices.tolist()))
        words = documents[[row]]
        pairs = zip(words.indices.tolist(), words.data.tolist(), strict=True)
        lines.append(f"{label_text} {' '.join(f'{i}:{v:.9g}' for i, v in pairs)}")
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("labels")
    labels = labelled_documents.labels_of(TRAIN)
    (folder / "train.txt").write_text(text_of(TRAIN, labels, header=True))
    (folder / "test.txt").write_text(
        text_of(TEST, sparse.csr_array((5, labelled_documents.LABELS)), header=False)
    )
    sparse.save_npz(folder / "x.npz", TRAIN)
    sparse.save_npz(folder / "y.npz", labels.astype(np.float32))
    (folder / "names.txt").write_text(
        "\n".join(f"[n] {i}" for i in range(labelled_documents.LABELS))
    )
    edges = labelled_documents.edges()
    (folder / "edges.txt").write_text("".join(f"{a}\t{b}\n" for a, b in edges))
    np.save(folder / "edges.npy", edges)
    (folder / "split.txt").write_text("".join(f"{n + 1} {200 - n}\n" for n in range(150)))
    for name, factor in zip(("h", "v"), labelled_documents.factors(), strict=True):
        np.save(folder / f"{name}.npy", factor)
    return folder


@pytest.fixture(scope="module")
def index(server: RunningServer, folder: Path) -> str:
    options = ("--label-names", folder / "names.txt", "--hierarchy", folder / "edges.txt")
    words = ("build", "papers", "--target", server.target, "--features", folder / "train.txt")
    assert main.main([str(word) for word in (*words, *LEML, *options, *ROOTS)]) == 0
    return "papers"


def test_a_labelled_index_is_described(run: Run, index: str) -> None:
    text = " ".join(run("info", index).out.split())
    count = labelled_documents.LABELS
    assert f"{count} labels, names, a hierarchy, those of every row kept" in text
    assert "a label model of rank 4, regularisation 1, 2 iterations, loss " in text
    assert "auto search means" in text
    output = run("info", index, "--json").json
    assert output["labels"]["label_count"] == count
    assert output["labels"]["parameters"]["rank"] == 4


def test_predictions_are_shown_as_a_table(run: Run, index: str, folder: Path) -> None:
    result = run("predict", index, folder / "test.txt", "--top-k", "3")
    assert result.code == 0
    head, *lines = result.out.splitlines()
    assert head.split() == ["document", "rank", "label", "name", "score"]
    assert len(lines) == 5 * 3 + 1
    document, rank, label, name, number, *_ = lines[0].split()
    assert (document, rank) == ("0", "1")
    assert (name, number) == ("[n]", label)
    assert "embedding" in lines[-1]
    result = run("predict", index, folder / "test.txt", "--threshold", "1e9")
    assert "none" in result.out
    assert "FEWER_THAN_TOP_K_FOUND" in result.out


@pytest.mark.parametrize("mode", ["embedding", "neighbour_vote"])
def test_predictions_are_printed_as_json(
    run: Run, client: Client, index: str, folder: Path, mode: str
) -> None:
    options = ("--rows", "1:4", "--mode", mode, "--top-k", "4", "--json")
    output = run("predict", index, folder / "test.txt", *options).json
    expected = client.predict_labels(index, TEST[1:4], mode=mode, top_k=4)  # type: ignore[arg-type]
    assert [row["row"] for row in output["results"]] == [1, 2, 3]
    assert labels_in(output) == expected.labels.tolist()
    assert [row["scores"] for row in output["results"]] == expected.scores.tolist()
    assert [tuple(row["names"]) for row in output["results"]] == list(expected.names)
    assert output["parameters"]["mode"] == mode


def test_pairs_of_matrices(run: Run, client: Client, index: str, folder: Path) -> None:
    files = ("--features", folder / "x.npz", "--labels", folder / "y.npz")
    result = run("build", "pairs", *files, *LEML, "--hierarchy", folder / "edges.npy", *ROOTS)
    assert result.code == 0
    assert "labels" in result.out
    pairs, papers = (client.get_index(name).labels for name in ("pairs", index))
    assert pairs is not None
    assert papers is not None
    assert pairs.losses == papers.losses
    assert (pairs.has_names, pairs.has_hierarchy) == (False, True)
    assert run("predict", "pairs", folder / "x.npz", "--rows", "3").code == 0


def test_a_split_takes_some_documents(run: Run, client: Client, folder: Path) -> None:
    split = folder / "split.txt"
    words = ("--features", folder / "train.txt", "--json")
    output = run("build", "split", *words, "--split", f"{split}:1").json
    assert output["rows"] == 150
    assert output["labels"]["rank"] == 0
    options = ("--split", split, "--rows", "2", "--mode", "neighbour_vote", "--json")
    output = run("predict", "split", folder / "train.txt", *options).json
    last = client.predict_labels("split", TRAIN[[2]], mode="neighbour_vote")
    assert output["results"][0]["labels"] == last.labels[0].tolist()


def test_factors_from_files(run: Run, client: Client, folder: Path) -> None:
    model = ("--label-model", folder / "h.npy", folder / "v.npy")
    assert run("build", "factors", folder / "x.npz", *model).code == 0
    info = client.get_index("factors").labels
    assert info is not None
    assert (info.rank, info.parameters) == (labelled_documents.RANK, None)
    assert "from elsewhere" in run("info", "factors").out
    result = run("predict", "factors", folder / "x.npz", "--mode", "neighbour_vote", "--rows", "0")
    assert result.code == 1
    assert "no labels of its points" in result.err


def test_settings_are_tried(run: Run, index: str, client: Client, folder: Path) -> None:
    words: list[object] = ["evaluate-labels", index, "--features", folder / "x.npz"]
    words += ["--labels", folder / "y.npz", "--rows", ":60", "--selectors", "greedy", "hierarchy"]
    words += ["--diversities", "0.2", "--top-ks", "4", "--thresholds", "none", "0.3"]
    text = run(*words).out
    for word in ("embedding", "greedy", "0.2", "auto", "threshold", "held out", "PSP@k", "Pareto"):
        assert word in text
    rows = run(*words, "--json", "--per-document").json["rows"]
    documents, labels = TRAIN[:60], labelled_documents.labels_of(TRAIN)[:60]
    selectors = ["greedy", "hierarchy"]
    grid: dict[str, Any] = {"selectors": selectors, "diversities": [0.2], "top_ks": [4]}
    expected = list(
        client.evaluate_labels(index, documents, labels, thresholds=[None, 0.3], **grid)
    )
    assert {row["parameters"]["selector"] for row in rows} == {"greedy", "hierarchy"}
    assert [row["by_fold"] for row in rows] == [list(row.by_fold) for row in expected]
    h_of_rows = [row["metrics"]["h_score"]["value"] for row in rows]
    assert h_of_rows == [row.metrics["h_score"].value for row in expected]
    assert len(rows[0]["values"]["precision"]) == 60
    lines = list(csv.DictReader(io.StringIO(run(*words, "--csv").out)))
    assert [line["threshold"] for line in lines[:2]] == ["", "0.3"]
    assert lines[0]["precision_at"].split() == [
        str(interval.value) for interval in expected[0].precision_at
    ]


def test_a_threshold_is_kept(run: Run, index: str, client: Client, folder: Path) -> None:
    documents = TRAIN[:60]
    text = ("--features", folder / "train.txt", "--rows", ":60", "--thresholds", "0.3")
    result = run("evaluate-labels", index, *text, "--set-default", "--diversities", "0.5")
    assert "the threshold of embedding is now 0.3" in result.out
    assert client.predict_labels(index, documents[:1]).parameters.threshold == 0.3
    for options, threshold in (
        ((), 0.3),
        (("--threshold", "none"), None),
        (("--threshold", "0.1"), 0.1),
    ):
        output = run("predict", index, folder / "test.txt", "--json", *options).json
        assert output["parameters"]["threshold"] == threshold


def labels_in(output: dict[str, Any]) -> list[list[int]]:
    """Return the labels of each document in the output of `predict --json`."""
    return [row["labels"] for row in output["results"]]


def test_the_selector_hierarchy_predicts_labels(
    run: Run, client: Client, index: str, folder: Path
) -> None:
    """It is the default if the index has a hierarchy; its labels depend on --diversity."""
    words = ("predict", index, folder / "test.txt", "--top-k", "4", "--threshold=-inf", "--json")
    by_name = ("--selector", "hierarchy")
    output = run(*words, *by_name, "--diversity", "0.6").json
    assert output["parameters"]["selector"] == "hierarchy"
    labels = labels_in(output)
    options: dict[str, Any] = {"top_k": 4, "threshold": -np.inf}
    expected = client.predict_labels(index, TEST, selector="hierarchy", diversity=0.6, **options)
    assert labels == expected.labels.tolist()
    nearest = run(*words, "--selector", "nearest").json
    at_zero = run(*words, *by_name, "--diversity", "0").json
    assert labels_in(at_zero) == labels_in(nearest) != labels
    assert run(*words, *by_name).json == (plain := run(*words).json)
    assert plain["parameters"]["selector"] == "hierarchy"
    assert plain["parameters"]["diversity"] == pytest.approx(0.05)
    assert " hierarchy" in run(*words[:-1]).out.splitlines()[-1]


def test_buckets_are_looked_up(run: Run, index: str, folder: Path) -> None:
    words = ("--search", "tables", "--n-probes", "3", "--hash-limit", "0", "--json")
    output = run("predict", index, folder / "test.txt", *words).json
    assert output["parameters"]["n_probes"] == 3
    result = run("predict", index, folder / "test.txt", "--n-probes", "0")
    assert (result.code, "--n-probes must be between 1" in result.err) == (2, True)
    words = ("--searches", "tables", "--n-probes", "default", "3", "--selectors", "nearest")
    result = run("evaluate-labels", index, "--features", folder / "train.txt", *words, "--csv")
    rows = list(csv.DictReader(io.StringIO(result.out)))
    assert [row["n_probes"] for row in rows[1:2]] == ["3"]


def test_the_selector_hierarchy_needs_a_hierarchy(run: Run, folder: Path) -> None:
    words = ("--features", folder / "train.txt", *LEML)
    assert run("build", "flat", *words).code == 0
    result = run("predict", "flat", folder / "test.txt", "--selector", "hierarchy")
    assert result.code == 1
    assert "hierarchy" in result.err
    assert run("predict", "flat", folder / "test.txt").code == 0
    assert run("rm", "flat").code == 0


def test_groups_are_those_of_the_rows(run: Run, index: str, folder: Path) -> None:
    """--groups has a group for each document of the file, and --rows and --split select some."""
    files = ("--features", folder / "x.npz", "--labels", folder / "y.npz", "--folds", "0")
    words = ("evaluate-labels", index, *files, "--rows", ":20", "--selectors", "nearest", "--json")
    low = []
    for number, group_of_row in enumerate((np.arange(200), np.arange(200) // 100)):
        np.save(folder / f"groups{number}.npy", group_of_row)
        result = run(*words, "--groups", folder / f"groups{number}.npy")
        (row,) = result.json["rows"]
        low.append(row["metrics"]["f_score"]["low"])
    assert low[0] < row["metrics"]["f_score"]["value"]
    assert low[1] is None
    np.save(folder / "groups.npy", np.arange(20))
    result = run(*words, "--groups", folder / "groups.npy")
    assert (result.code, "groups must be 200, one for each document" in result.err) == (2, True)


def test_evaluate_labels_needs_true_labels(run: Run, index: str, folder: Path) -> None:
    result = run("evaluate-labels", index, "--features", folder / "x.npz")
    assert (result.code, "--labels" in result.err) == (2, True)
    result = run("evaluate-labels", index)
    assert (result.code, "--features" in result.err) == (2, True)


@pytest.mark.parametrize(
    ("text", "message", "base"),
    [
        ("3 1:1\n\n# none\n4 2:1\n 3:0\n", "line 5 (document 2) has no feature", ()),
        ("3 1:1\n\n\n", "", ()),
        ("3 1:1\n4 41:1 2:1\n", "feature 41, and the index has 40, from 1 on", ()),
        ("3 0:1\n4 40:1 2:1\n", "feature 40, and the index has 40, from 0 on", ()),
        ("3 1:1\n4 40:1 2:1\n", "", ()),
        ("3 1:1\n4 40:1 2:1\n", "line 2 (document 1) has feature 40", ("--index-base", "0")),
        ("2 41 130\n3 1:1\n4 40:1 2:1\n", "line 3 (document 1) has feature 40", ()),
    ],
)
def test_documents_that_an_index_cannot_take_are_named_by_line(
    run: Run, index: str, folder: Path, *, text: str, message: str, base: tuple[str, ...]
) -> None:
    path = folder / "wrong.txt"
    path.write_text(text)
    for words in (("predict", index, path), ("evaluate-labels", index, "--features", path)):
        result = run(*words, *base, *(("--folds", "0") if "--features" in words else ()))
        assert (result.code, message in result.err) == (2 if message else 0, True)
        assert ("--index-base" in result.err) == ("feature 4" in message)


def test_an_empty_document_of_a_build_is_named_by_its_line(run: Run, tmp_path: Path) -> None:
    """An empty document is an error, with its line, only if the server would refuse its row."""
    path = tmp_path / "empty.txt"
    path.write_text("3 1:1\n\n# none\n4 2:1\n 3:0\n")
    result = run("build", "holes", "--features", path)
    assert (result.code, "line 5 (document 2) has no feature" in result.err) == (2, True)
    for words in (("--zero-vectors", "skip"), ("--metric", "euclidean")):
        assert run("build", "holes", "--features", path, "--replace", *words).code == 0
    assert run("rm", "holes").code == 0


def test_rows_of_a_split_are_named_by_their_own_lines(run: Run, index: str, tmp_path: Path) -> None:
    (tmp_path / "test.txt").write_text("1 1:1\n2 2:1\n3 3:0\n4 4:1\n")
    (tmp_path / "split.txt").write_text("4\n2\n3\n")
    words = (index, tmp_path / "test.txt", "--split", tmp_path / "split.txt")
    assert "line 3 (document 2)" in run("predict", *words, "--rows", "1:").err
    assert run("predict", *words, "--rows", ":2").code == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("x.npz", "--features", "x.npz"), "--features"),
        ((), "--features"),
        (("--features", "nowhere.txt"), "nowhere.txt"),
        (("--features", "names.txt"), "line 1 is not: label,label"),
        (("--features", "train.txt", "--hierarchy", "names.txt"), "line 1 is not: parent child"),
        (("--features", "train.txt", "--hierarchy", "nowhere"), "nowhere cannot be read"),
        (("--features", "train.txt", "--label-names", "nowhere"), "nowhere"),
        (("--features", "train.txt", "--label-model", "lemon"), "--label-model takes leml"),
        (("--features", "train.txt", "--key", "x"), "only an .npz"),
        (("--features", "train.txt", "--split", "split.txt:2"), "no column 2"),
        (("--features", "x.npz", "--labels", "h.npy"), "one row per vector, 200"),
        (("--features", "train.txt", "--dims", "3"), "more than --dims 3"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_read_is_said(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(folder)
    result = run("build", "wrong", *words)
    assert result.code == 2
    assert message in result.err


def test_help_teaches(run: Run) -> None:
    result = run("predict", "--help")
    assert result.code == 0
    for word in ("divgrpc predict papers test.txt", "--threshold", "--neighbours", "--split"):
        assert word in result.out
    result = run("build", "--help")
    for word in ("--label-model leml", "--features", "--hierarchy", "--rank", "--tolerance"):
        assert word in result.out
