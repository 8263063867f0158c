"""`divgrpc_lab table2` on a small data set, and the verdicts on its claims."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from divgrpc.types import (
    EffectiveLabelParameters,
    EvaluateLabelRow,
    Interval,
    Microseconds,
    Mode,
    Search,
)
from divgrpc_lab.__main__ import main
from divgrpc_lab.data.documents import DIGITS, Split, load
from divgrpc_lab.data.topics import DATA_VARIABLE
from divgrpc_lab.experiment import plain
from divgrpc_lab.table2 import claims as label_claims
from divgrpc_lab.table2.bench import ENDS_EARLY, EPSILONS, LabelBench, LabelTime, label_times
from divgrpc_lab.table2.methods import (
    BY_HIERARCHY,
    DEFAULT,
    EVERYTHING,
    FAMILIES,
    FIGURES,
    PAPERS,
    WITHOUT_HASHING,
    Case,
    LabelRow,
)
from divgrpc_lab.table2.page import Report, page
from divgrpc_lab.table2.paper import PRINTED, impossible

_NOISE = np.linspace(-0.02, 0.02, 40)


def test_quick_run_on_digits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If there are no data sets, the run says so and measures every row on digits.

    It writes a page and JSON.
    """
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    out, figures = tmp_path / "new" / "table2.html", tmp_path / "table2.json"
    words = ["table2", "--quick", "--out", str(out), "--json", str(figures)]
    assert main(words) == 0
    output = capsys.readouterr().out
    assert output.startswith("No data")
    assert "DOES NOT HOLD: the column h of Table 2" in output
    report = json.loads(figures.read_text())
    without_hashing = len(WITHOUT_HASHING) + len(BY_HIERARCHY)
    assert len(report["rows"]) == without_hashing + len(FAMILIES) * 2 * 2
    assert {row["case"]["method"] for row in report["rows"]} > set(PRINTED) - {"LEML"}
    for row in report["rows"]:
        result, method = row["result"], row["case"]["method"]
        assert all(0 <= result["metrics"][name]["value"] <= 1 for name in FIGURES)
        assert result["metrics"]["h_score"]["value"] <= result["h_of_means"] + 1e-9
        assert (result["parameters"]["diversity"] == 0) == (method in ("LEML", "nearest"))
        assert 0 < result["scored"] <= row["candidates"]
        assert result["microseconds"]["p50"] > 0
    leml = report["rows"][0]
    assert leml["case"]["method"] == "LEML"
    assert leml["result"]["parameters"]["search"] == "exact"
    assert leml["result"]["scored"] == leml["candidates"]
    assert len(report["epsilon"]) == 1 + 2 * 2 * len(EPSILONS)
    limits = [at["hash_limit"] for at in report["epsilon"] if at["mode"] == "neighbour_vote"]
    assert limits[: len(EPSILONS)] == sorted(limits[: len(EPSILONS)], reverse=True)
    assert len(report["times"]) == 5 + 4 * len(FAMILIES)
    html = out.read_text()
    for text in ("the paper's own", "2PD/(P+D)", "h against ε", "cannot be told"):
        assert text.replace("'", "&#39;") in html


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--sets", "lshtc3"], "sets must be of bibtex"),
        (["--documents", "9"], "documents must be at least 10"),
    ],
)
def test_wrong_options_are_refused(
    words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names the option and is raised before any measurement."""
    assert main(["table2", *words]) == 2
    assert complaint in capsys.readouterr().err


def test_a_folder_without_the_data_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names the missing file of the data set, and nothing else is measured instead."""
    assert main(["table2", "--data", str(tmp_path)]) == 2
    assert "there is no bibtex.npz" in capsys.readouterr().err


def test_without_a_hierarchy_there_is_no_h(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a hierarchy, the page leaves D, h and the curve empty."""
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    (split,) = load([DIGITS])
    bench = LabelBench(replace(split, hierarchy=None, roots=()), 12)
    rows = list(bench.rows())
    assert bench.curves == []
    assert all(row.figure("h_score") is None for row in rows)
    assert plain(rows[0])["result"]["metrics"]["h_score"]["value"] is None
    assert all(row.result.metrics["f_score"].value > 0 for row in rows)
    report = Report({}, [{"name": DIGITS}], rows, [], [], label_claims.verdicts(rows))
    assert len(page(report).sections) == 5
    json.dumps(plain(report), allow_nan=False)


def test_times_of_given_factors() -> None:
    """Every method is timed with its precision, in both modes, with and without hashing."""
    rng = np.random.default_rng(0)
    factors = rng.standard_normal((400, 12)).astype("f4")
    asked = rng.standard_normal((30, 12)).astype("f4")
    truth = np.zeros((30, 400), "f4")
    truth[np.arange(30)[:, None], np.argsort(-asked @ factors.T, axis=1)[:, :5]] = 1
    # The test documents are the indexed documents themselves, with the same labels.
    bags = sparse.csr_array(np.where(rng.random((30, 60)) < 0.2, 1, 0) + np.eye(30, 60), dtype="f4")
    labels = sparse.csr_array(truth)
    times = list(label_times(Split("", "", bags, labels, bags, labels), asked, factors))
    families = [*np.repeat([*FAMILIES], 2)]
    names = ["LEML", "LEML", "MMR", "Greedy", *families, "nearest", *families]
    assert [time.method for time in times] == names
    assert [time.mode for time in times] == ["embedding"] * 10 + ["neighbour_vote"] * 7
    assert (times[0].precision, times[0].scored, times[0].documents) == (1.0, 1.0, 30)
    assert (times[0].setting, times[1].setting, times[1].precision) == (EVERYTHING, ENDS_EARLY, 1.0)
    assert (times[0].candidates, times[10].candidates, times[10].scored) == (400, 30, 1.0)
    assert (times[2].documents, times[3].documents) == (20, 20)
    assert all(0 < time.scored <= 1 and time.microseconds > 0 for time in times)
    verdicts = [item for item in label_claims.verdicts([], times) if "its size" in item.claim]
    assert len(verdicts) == 4
    assert all(item.holds is not None for item in verdicts)


def row(
    method: str,
    figure: float,
    setting: str = PAPERS,
    mode: Mode = "embedding",
    microseconds: float = 100.0,
) -> LabelRow:
    """Return a row in which every figure is `figure` plus some noise."""
    interval = Interval(figure, figure - 0.1, figure + 0.1)
    times = Microseconds(*[microseconds] * 4)
    result = EvaluateLabelRow(
        number=0,
        generation=1,
        search="auto",
        parameters=parameters("exact" if setting == EVERYTHING else "tables"),
        goal="h_score",
        metrics=dict.fromkeys(FIGURES, interval),
        precision_at=(interval,) * 5,
        recall_at=(),
        ndcg_at=(),
        propensity_scored_at=(),
        coverage_at=(),
        h_of_means=figure,
        microseconds=times,
        documents=40,
        empty=0,
        short=0,
        scored=10,
        values=dict.fromkeys(FIGURES, figure + _NOISE),
    )
    return LabelRow("synthetic", Case(method, mode, setting), result, 100)


def parameters(search: Search) -> EffectiveLabelParameters:
    return EffectiveLabelParameters(
        top_k=5,
        threshold=None,
        mode="embedding",
        neighbours=0,
        vote="plain",
        selector="greedy",
        diversity=0.3,
        search=search,
        hash_limit=0,
        candidates_limit=0,
        seed=0,
    )


def with_result(row: LabelRow, **fields: object) -> LabelRow:
    return replace(row, result=replace(row.result, **fields))  # type: ignore[arg-type]


def holds(rows: list[LabelRow], claim: str, times: list[LabelTime] | None = None) -> bool | None:
    """Return the verdict on the claim that begins with `claim`."""
    verdicts = label_claims.verdicts(rows, times or [])
    [verdict] = (item for item in verdicts if item.claim.startswith(claim))
    return verdict.holds


def test_claims_of_figures() -> None:
    """A claim holds if it is true in every cell, and fails if it is false in one cell.

    The verdict is open if there are no rows, or if differences are within the noise.
    """
    base = [row("LEML", 0.5, EVERYTHING), row("Greedy", 0.4, EVERYTHING)]
    high = [row("LSH-SDiv", 0.6), row("LSH-SDiv", 0.6, DEFAULT)]
    claim = "h of LSH-SDiv is above h of LEML, embedding"
    assert holds([*base, *high], claim) is True
    assert holds([*base, high[0], row("LSH-SDiv", 0.4, DEFAULT)], claim) is False
    noisy = with_result(high[0], values=dict.fromkeys(FIGURES, 0.5 + _NOISE[::-1]))
    assert holds([*base, noisy], claim) is None
    assert holds(base, claim) is None
    # A row of an exact search shows nothing about hashing, so it changes no verdict.
    exact = with_result(row("LSH-SDiv", 0.4, DEFAULT), parameters=parameters("exact"))
    assert holds([*base, high[0], exact], claim) is True
    # The claim about the other mode stays open.
    assert holds([*base, *high], claim.replace("embedding", "votes")) is None
    votes = [
        row("LSH-SDiv", 0.6, mode="neighbour_vote"),
        row("LSH-Div", 0.3, mode="neighbour_vote"),
    ]
    assert holds([*base, *votes], "P of LSH-SDiv is above P of LSH-Div, votes") is True
    assert holds(base, "P of LEML is above P of Greedy") is True
    assert holds([*base, *high], "R of LEML is above R of LSH-SDiv, embedding") is False


def test_verdicts_say_if_families_are_equivalent() -> None:
    """If two families draw the same hyperplanes, the verdict says so."""
    rows = [replace(row("LSH-SDiv", 0.6), same_as_lsh_div=True), row("LSH-Div", 0.6)]
    verdict = label_claims.verdicts(rows)[0]
    assert verdict.claim == "P of LSH-SDiv is above P of LSH-Div, embedding"
    assert "same distribution" in verdict.sentence
    assert "same distribution" not in label_claims.verdicts([row("LSH-SDiv", 0.6)])[0].sentence


def test_claims_of_times() -> None:
    """On data sets the slowest case decides a claim about speed.

    At the paper's size the faster of two settings decides it.
    """
    base, claim = row("LEML", 0.5, EVERYTHING, microseconds=3_000), "LSH-SDiv is more than 20 times"
    on_data = f"{claim} as fast as LEML, embedding"
    rows = [base, row("LSH-SDiv", 0.5)]
    verdicts = {verdict.claim: verdict.holds for verdict in label_claims.verdicts(rows)}
    assert verdicts[on_data] is True
    slow = replace(row("LSH-SDiv", 0.5, microseconds=1_000), data="slow")
    rows += [slow, replace(base, data="slow")]
    verdicts = {verdict.claim: verdict.holds for verdict in label_claims.verdicts(rows)}
    assert verdicts[on_data] is False
    assert verdicts[f"{on_data}, at its size"] is None
    times = [
        LabelTime("LEML", "embedding", EVERYTHING, 500, 9, 2_500, 0.5, 1),
        LabelTime("LSH-SDiv", "embedding", PAPERS, 500, 9, 200, 0.5, 0.1),
        LabelTime("LSH-SDiv", "embedding", DEFAULT, 500, 9, 100, 0.5, 0.1),
        LabelTime("LSH-SDiv", "neighbour_vote", DEFAULT, 700, 9, 200, 0.5, 0.1),
    ]
    assert holds(rows, f"{on_data}, at its size", times) is True
    assert holds(rows, f"{claim} as fast as LEML, votes, at its size", times) is False


def test_impossible_values_of_h_are_found() -> None:
    """In four of the paper's five rows, the printed h exceeds the maximum that P and D allow."""
    assert impossible() == ["LEML", "PCA-Hash", "LSH-Div", "LSH-SDiv"]
    assert {name: round(line.most, 3) for name, line in PRINTED.items()} == {
        "LEML": 0.445,
        "MMR": 0.417,
        "PCA-Hash": 0.406,
        "LSH-Div": 0.245,
        "LSH-SDiv": 0.473,
    }
    assert label_claims.h_is_possible().holds is False
