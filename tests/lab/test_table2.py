"""`divgrpc_lab table2` on a small data set, and the verdicts on its claims."""

import json
import math
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from divgrpc.evaluation.folds import deal_folds
from divgrpc.metrics import Values
from divgrpc.types import Mode
from divgrpc_lab.__main__ import main
from divgrpc_lab.data.documents import DIGITS, load
from divgrpc_lab.data.synthetic import LABELS
from divgrpc_lab.data.topics import DATA_VARIABLE
from divgrpc_lab.experiment import NOT_THE_PAPERS_DATA, plain
from divgrpc_lab.table2 import bench, methods, size
from divgrpc_lab.table2 import claims as label_claims
from divgrpc_lab.table2.bench import EPSILONS, FOLD_EPSILONS, AtEpsilon, LabelBench, Plan
from divgrpc_lab.table2.claims import LSH_SDIV
from divgrpc_lab.table2.methods import (
    ALL_ITEMS,
    AT_FIVE,
    BY_HIERARCHY,
    DEFAULT,
    FAMILIES,
    FIGURES,
    HOME,
    HOME_BY_FOLDS,
    MODES,
    PAPERS,
    TOP_K,
    TUNED_PROBES,
    WITHOUT_HASHING,
    Answer,
    Case,
    LabelRow,
    choose,
)
from divgrpc_lab.table2.page import Report, page
from divgrpc_lab.table2.paper import PAPER_ROWS, impossible
from divgrpc_lab.table2.records import records
from divgrpc_lab.table2.size import ENDS_EARLY, AtSize, LabelTime, label_times
from divgrpc_lab.verdicts import Verdict
from divgrpc_lab.work import Work

_NOISE = np.linspace(-0.02, 0.02, 40)
_RIVALS = ("PCA-Hash", "LSH-Div")


def test_quick_run_on_digits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If there are no data sets, the run says so and measures every row on digits.

    It writes a page and JSON.
    """
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    out, figures = tmp_path / "new" / "table2.html", tmp_path / "table2.json"
    words = ["table2", "--quick", "--out", str(out), "--json", str(figures)]
    assert main([*words, "--records", str(tmp_path / "records")]) == 0
    output = capsys.readouterr().out
    assert " ".join(output.split()).startswith(NOT_THE_PAPERS_DATA)
    assert "No data" in output
    assert "DOES NOT HOLD: the column h of Table 2" in output
    report = json.loads(figures.read_text())
    without_hashing = len(WITHOUT_HASHING) + len(BY_HIERARCHY)
    assert len(report["rows"]) == without_hashing + len(FAMILIES) * 2 * 4
    assert {row["case"]["method"] for row in report["rows"]} > set(PAPER_ROWS) - {"LEML"}
    for row in report["rows"]:
        method, setting = row["case"]["method"], row["case"]["setting"]
        is_repeated = method in ("LSH-Div", "LSH-SDiv") and setting != DEFAULT
        assert len(row["answers"]) == 1 + is_repeated
        for name in (*FIGURES, AT_FIVE, "scored"):
            values = np.array(row["values"][name])
            assert values.shape == (len(row["answers"]), 40)
            assert ((values >= 0) & (values <= 1)).all()
        assert (row["answers"][0]["diversity"] == 0) == (method in ("LEML", "nearest"))
    leml = report["rows"][0]
    assert leml["case"]["method"] == "LEML"
    assert leml["answers"][0]["search"] == "exact"
    assert np.mean(leml["values"]["scored"]) == 1
    assert len(report["epsilon"]) == 1 + 2 * 2 * len(EPSILONS)
    limits = [at["hash_limit"] for at in report["epsilon"] if at["mode"] == "neighbour_vote"]
    assert limits[: len(EPSILONS)] == sorted(limits[: len(EPSILONS)], reverse=True)
    assert len(report["times"]) == 5 + 4 * len(FAMILIES)
    check_records(tmp_path / "records", report)
    html = out.read_text()
    for text in (NOT_THE_PAPERS_DATA, "the paper's own", "2PD/(P+D)", "h against ε", "2 seeds"):
        assert text.replace("'", "&#39;") in html


def check_records(folder: Path, report: dict[str, Any]) -> None:
    """Check that the records of a run have a row for each row of the report."""
    record_by_name = {path.stem: json.loads(path.read_text()) for path in folder.iterdir()}
    assert record_by_name.keys() == {"table2", "table2-claims", "table2-epsilon", "table2-size"}
    for record in record_by_name.values():
        assert record["command"] == 'make table2 ARGS="--quick"'
        assert all(len(line) == len(record["columns"]) for line in record["rows"])
    assert record_by_name["table2"]["columns"][1] == "digits: P@5 (seeds); f; D; h; scored"
    assert len(record_by_name["table2"]["rows"]) == len(report["rows"])
    assert len(record_by_name["table2-epsilon"]["rows"]) == len(report["epsilon"])


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--sets", "lshtc3"], "sets must be of bibtex"),
        (["--documents", "9"], "documents must be at least 10"),
        (["--seeds", "0"], "seeds must be at least 1"),
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


def measured(label_bench: LabelBench) -> tuple[list[LabelRow], list[AtEpsilon]]:
    """Return the rows and the points against epsilon of a data set."""
    work = Work(None, "")
    results = work.run(label_bench.jobs(label_bench.model()))
    return list(label_bench.rows(results)), list(label_bench.curves(results))


def test_without_a_hierarchy_there_is_no_h(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a hierarchy, D, h and their claims are empty, and R is judged."""
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    (split,) = load([DIGITS])
    plan = Plan(documents=12, seeds=1, shapes=(PAPERS,))
    rows, curves = measured(LabelBench(replace(split, hierarchy=None, roots=()), plan))
    assert all(row.figure("h_score") is None for row in rows)
    assert all(row.spread("h_score") is None for row in rows)
    verdicts = label_claims.verdicts(rows, curves)
    by_claim = {verdict.claim: len(verdict.effects) for verdict in verdicts}
    assert by_claim[f"LEML has a greater R than LSH-SDiv, votes, {HOME}"] == 1
    # On digits both families draw the same hyperplanes, so there is nothing to test.
    assert by_claim["(a) over ε, LSH-SDiv has a greater P@5 than LSH-Div, votes"] == 0
    assert by_claim["(c) over ε, LSH-SDiv has a greater h than LSH-Div, votes"] == 0
    assert by_claim[f"LSH-SDiv has a greater h than LEML, votes, {HOME}"] == 0
    report = Report({}, [{"name": DIGITS}], rows, curves, [], verdicts)
    assert len(page(report).sections) == 5
    heads = [record.columns for record in records(report)]
    assert heads[0][1] == "digits: P@5 (seeds); f; scored"
    assert heads[2][2] == "digits: P@5"
    json.dumps(plain(report), allow_nan=False)


def test_home_buckets_are_one_for_each_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Home buckets score less than tuned probes, and folds over one setting choose that setting."""
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    monkeypatch.setattr(bench, "FOLD_EPSILONS", ())
    (split,) = load([DIGITS])
    rows, _ = measured(LabelBench(split, Plan(documents=12, seeds=1, shapes=(PAPERS,))))
    by_case = {(row.case.method, row.case.mode, row.case.setting): row for row in rows}
    home_row, fold_row, probe_row = (
        by_case["LSH-Div", "embedding", setting] for setting in (HOME, HOME_BY_FOLDS, TUNED_PROBES)
    )
    assert 0 < home_row.scored < probe_row.scored
    np.testing.assert_array_equal(home_row.values[AT_FIVE], fold_row.values[AT_FIVE])
    assert home_row.answers[0].shape == "10 x 10"


def test_folds_choose_epsilon_for_home_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only folds may choose the limit of an epsilon, and they choose the best setting."""
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    (split,) = load([DIGITS])
    label_bench = LabelBench(split, Plan(documents=12, seeds=1, shapes=(PAPERS,)))
    results = Work(None, "").run(label_bench.jobs(label_bench.model()))
    [name] = [name for name in results if "LSH-Div, 0" in name]
    by_limit: dict[int, list[Answer]] = {}
    for item in results[name]["neighbour_vote"][HOME]["answers"]:
        by_limit.setdefault(Answer(*item).hash_limit, []).append(Answer(*item))
    rule = [math.ceil(2 * split.documents.shape[0] ** (1 / (1 + e))) for e in FOLD_EPSILONS]
    assert list(by_limit) == [0, *rule]
    scored = [np.mean(answers[0].array("scored")) for answers in by_limit.values()]
    assert scored[0] >= scored[1] > scored[2]
    by_setting = {
        row.case.setting: row
        for row in label_bench.rows(results)
        if (row.case.method, row.case.mode) == ("LSH-Div", "neighbour_vote")
    }
    assert by_setting[HOME].answers[0].hash_limit == 0
    best = max(
        (answer for answers in by_limit.values() for answer in answers),
        key=lambda answer: float(answer.array("h_score").mean()),
    )
    assert by_setting[HOME_BY_FOLDS].answers[0] == best


def answer(h: Values, threshold: float | None, shape: str) -> Answer:
    """Return an answer with these values of h, and half of them as precision of four labels."""
    values = dict.fromkeys(FIGURES, h) | {"precision": h / 2}
    values |= {"found": np.full(len(h), 4.0), "scored": h, "microseconds": h}
    return Answer(shape, "tables", 0.3, threshold, 0, {k: v.tolist() for k, v in values.items()})


def test_settings_are_chosen_on_other_documents() -> None:
    """Each document has the values of the setting that is best on the other folds.

    For P@5, the choice is among the settings without a threshold, and missing labels count as
    wrong.
    """
    h = np.random.default_rng(0).random((3, 23))
    thresholds = (None, 0.1, None)
    answers = [answer(h[m], thresholds[m], str(m)) for m in range(3)]
    best, values = choose(answers, 10, "h_score")
    folds = deal_folds(np.arange(23))
    for members, name, factor in (([0, 1, 2], "h_score", 1.0), ([0, 2], AT_FIVE, 0.5 * 4 / TOP_K)):
        for place, fold in enumerate(folds):
            means = [h[m, folds != fold].mean() for m in members]
            expected = h[members[int(np.argmax(means))], place] * factor
            assert values[name][place] == pytest.approx(expected)
    assert best.shape == str(h.mean(axis=1).argmax())
    np.testing.assert_allclose(values["scored"], values["h_score"] / 10)


@pytest.mark.parametrize(
    ("module", "name", "value"),
    [
        (methods, "_DIALS", (0.1,)),
        (methods, "_THRESHOLDS", (None,)),
        (methods, "_COMPONENTS_MAX", 100),
        (bench, "EPSILON_DIAL", 0.1),
        (bench, "EPSILONS", (1.0,)),
        (bench, "FOLD_EPSILONS", (1.0,)),
    ],
)
def test_results_before_an_edit_are_not_used(
    module: ModuleType, name: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The facts that identify stored results include each dial, threshold and limit."""
    before = repr(bench.facts(Plan()))
    monkeypatch.setattr(module, name, value)
    assert repr(bench.facts(Plan())) != before


def test_times_before_an_edit_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    at_size = AtSize((300, 4_000, 500, 30), 20, rounds=1)
    before = repr(at_size.facts())
    assert repr(AtSize((300, 4_000, 500, 30), 21, rounds=1).facts()) != before
    monkeypatch.setattr(size, "_AXES", size._AXES | {"diversities": (0.1,)})
    assert repr(at_size.facts()) != before


def test_times_at_a_size() -> None:
    """Every method is timed with its precision, in both modes, with and without hashing."""
    jobs = AtSize((300, 4_000, 500, 30), 20, rounds=2).jobs()
    times = label_times(Work(None, "").run(jobs))
    assert {len(time.microseconds) for time in times} == {2}
    families = [*np.repeat([*FAMILIES], 2)]
    names = ["LEML", "LEML", "MMR", "Greedy", *families, "nearest", *families]
    assert [time.method for time in times] == names
    assert [time.mode for time in times] == ["embedding"] * 10 + ["neighbour_vote"] * 7
    assert (times[0].setting, times[1].setting) == (ALL_ITEMS, ENDS_EARLY)
    assert times[0].precision == pytest.approx(times[1].precision)
    assert times[0].precision > 0.1
    assert (times[0].candidates, times[10].candidates) == (500, 300)
    # Inverted lists of the documents save most of the exact scores.
    assert 0 < times[10].scored < 0.1
    assert (times[0].scored, times[0].documents) == (1.0, 30)
    assert (times[2].documents, times[3].documents) == (20, 20)
    assert all(0 <= time.scored <= 1 and time.median > 0 for time in times)
    # There are far fewer labels than the paper's, so no claim is judged by these times.
    verdicts = label_claims.verdicts([], (), times)
    verdicts = [item for item in verdicts if "at its size" in item.claim]
    assert len(verdicts) == 13
    assert all(item.holds is None and not item.effects for item in verdicts)


def row(
    method: str,
    figure: float,
    setting: str = HOME_BY_FOLDS,
    mode: Mode = "embedding",
    noise: Values = _NOISE,
) -> LabelRow:
    """Return a row in which every figure is `figure` plus some noise."""
    seeds = 1 if setting == ALL_ITEMS else 3
    by_seed = np.tile(figure + noise, (seeds, 1))
    values = dict.fromkeys((*FIGURES, AT_FIVE, "scored", "microseconds"), by_seed)
    answers = (answer(figure + noise, None, ""),) * seeds
    return LabelRow("synthetic", Case(method, mode, setting), values, answers, 100)


def verdict(
    rows: list[LabelRow],
    claim: str,
    curves: list[AtEpsilon] | None = None,
    times: list[LabelTime] | None = None,
) -> Verdict:
    """Return the verdict on `claim`, or on the only claim that begins with it."""
    verdicts = label_claims.verdicts(rows, curves or [], times or [])
    exact = [item for item in verdicts if item.claim == claim]
    [result] = exact or (item for item in verdicts if item.claim.startswith(claim))
    return result


def test_claims_of_figures() -> None:
    """A claim is about one setting with home buckets, and no other setting is judged.

    The verdict is open if there are no rows, or if differences are within the noise.
    """
    base = [row("LEML", 0.5, ALL_ITEMS), row("Greedy", 0.4, ALL_ITEMS)]
    claim = f"LSH-SDiv has a greater h than LEML, embedding, {HOME_BY_FOLDS}"
    other_rows = [row("LSH-SDiv", 0.4, setting) for setting in (TUNED_PROBES, DEFAULT)]
    home = row("LSH-SDiv", 0.6, HOME)
    assert verdict([*base, row("LSH-SDiv", 0.6), home, *other_rows], claim).holds is True
    rows = [*base, row("LSH-SDiv", 0.4), home]
    assert verdict(rows, claim).holds is False
    assert verdict(rows, claim.replace(HOME_BY_FOLDS, HOME)).holds is True
    second = [replace(item, data="second") for item in (*base, row("LSH-SDiv", 0.6))]
    assert verdict([*rows, *second], claim).word == "depends on the data"
    noisy = row("LSH-SDiv", 0.5, noise=_NOISE[::-1])
    assert verdict([*base, noisy], claim).holds is None
    assert verdict([*base, *other_rows], claim).effects == ()
    # The claim about the other mode stays open.
    high = [*base, row("LSH-SDiv", 0.6)]
    assert verdict(high, claim.replace("embedding", "votes")).holds is None
    votes = [
        row(name, h, mode="neighbour_vote") for name, h in (("LSH-SDiv", 0.6), ("LSH-Div", 0.3))
    ]
    assert verdict(
        [*base, *votes], f"LSH-SDiv has a greater P@5 than LSH-Div, votes, {HOME_BY_FOLDS}"
    ).holds
    assert verdict(base, "LEML has a greater P@5 than Greedy").holds is True
    greater_r = f"LEML has a greater R than LSH-SDiv, embedding, {HOME_BY_FOLDS}"
    assert verdict(high, greater_r).holds is False


def test_a_difference_between_seeds_decides_nothing() -> None:
    """If one seed gains and another loses, no number of documents makes the claim sure."""
    rival, seeds = row("LSH-Div", 0.5), np.array([[0.2], [-0.1], [0.1]])
    rows = [rival, replace(rival, case=Case("LSH-SDiv", "embedding", HOME_BY_FOLDS))]
    rows[1] = replace(rows[1], values={k: v[0] + seeds for k, v in rows[1].values.items()})
    claim = f"LSH-SDiv has a greater P@5 than LSH-Div, embedding, {HOME_BY_FOLDS}"
    assert verdict(rows, claim).holds is None
    rows[1] = replace(rows[1], values=dict.fromkeys(rows[1].values, 0.8 + _NOISE + 0.1 * seeds))
    assert verdict(rows, claim).holds is True


def test_verdicts_say_if_families_are_equivalent() -> None:
    """If two families draw the same hyperplanes, the verdict says so, and nothing is tested."""
    rows = [replace(row("LSH-SDiv", 0.6), same_as_lsh_div=True), row("LSH-Div", 0.6)]
    claim = f"LSH-SDiv has a greater P@5 than LSH-Div, embedding, {HOME_BY_FOLDS}"
    assert "same distribution" in verdict(rows, claim).sentence
    assert verdict(rows, claim).effects == ()
    assert "same distribution" not in verdict([row("LSH-SDiv", 0.6)], claim).sentence


def test_claims_over_epsilon() -> None:
    """The mean over all epsilons is judged, and the differences at each are in the sentence."""

    def curve(method: str, height: float, epsilons: tuple[float | None, ...]) -> list[AtEpsilon]:
        values = dict.fromkeys((AT_FIVE, "drank", "h_score"), np.tile(height + _NOISE, (2, 1)))
        return [AtEpsilon("synthetic", method, "embedding", e, 9, values) for e in epsilons]

    leml = curve("LEML", 0.5, (None,))
    curves = [*leml, *curve("LSH-Div", 0.2, EPSILONS), *curve("LSH-SDiv", 0.4, EPSILONS)]
    # The other mode has the same curves.
    curves += [point._replace(mode="neighbour_vote") for point in curves[1:]]
    above = verdict([], "(a) over ε, LSH-SDiv has a greater P@5 than LSH-Div, embedding", curves)
    assert above.holds is True
    assert "+0.200, +0.200, +0.200, +0.200, +0.200" in above.sentence
    assert above.effects[0].size.value == pytest.approx(0.2)
    below = verdict([], "(c) over ε, LSH-SDiv has a greater h than LEML, votes", curves)
    assert below.holds is False
    same = [point._replace(values=curves[0].values) for point in curves]
    equal = verdict([], "(a) over ε, LSH-SDiv has a greater P@5 than LSH-Div, votes", same)
    assert equal.effects == ()
    assert "same distribution" in equal.sentence


def test_claims_of_times() -> None:
    """Times are compared for each document, with both forms of LEML, at the paper's size only."""
    claim = "LSH-SDiv is more than 20 times as fast as LEML's"
    rounds = np.exp(np.stack([_NOISE, _NOISE]))

    def timed(method: str, mode: Mode, setting: str, microseconds: float) -> LabelTime:
        return LabelTime(method, mode, setting, LABELS, microseconds * rounds, 0.5, 0.1)

    times = [
        timed("LEML", "embedding", ALL_ITEMS, 5_000),
        timed("LEML", "embedding", ENDS_EARLY, 500),
        timed("LSH-SDiv", "embedding", HOME, 100),
        timed("LSH-SDiv", "embedding", DEFAULT, 120),
        timed("LSH-SDiv", "neighbour_vote", HOME, 200),
        timed("LSH-SDiv", "neighbour_vote", DEFAULT, 400),
    ]
    product, early = f"{claim} product with every label", f"{claim} search that ends early"
    assert verdict([], f"{product}, embedding, {HOME}", times=times).holds is True
    assert verdict([], f"{product}, embedding, {DEFAULT}", times=times).holds is True
    assert verdict([], f"{early}, embedding, {HOME}", times=times).holds is False
    assert verdict([], f"{product}, votes, {HOME}", times=times).holds is True
    # The machine drifts by more than the difference between the methods.
    drift = np.array([[1.0], [0.5]])
    times[2] = times[2]._replace(microseconds=times[2].microseconds * 2 * drift)
    assert verdict([], f"{product}, embedding, {HOME}", times=times).holds is None
    small = [time._replace(candidates=500) for time in times]
    assert verdict([], f"{product}, embedding, {HOME}", times=small).effects == ()


def test_claims_of_times_of_other_families_at_size() -> None:
    """LSH-SDiv is compared with other families in the same mode, with home buckets."""
    rounds = np.exp(np.stack([_NOISE, _NOISE]))
    by_method = {"LEML": 500, "PCA-Hash": 90, "LSH-Div": 120, "LSH-SDiv": 100}
    times = [
        LabelTime(method, mode, HOME, LABELS, microseconds * rounds, 0.5, 0.1)
        for mode in MODES
        for method, microseconds in by_method.items()
    ]
    times = [
        t._replace(microseconds=t.microseconds + (t.method == LSH_SDIV) * _NOISE) for t in times
    ]
    for mode in MODES.values():
        where = f"{mode}, {HOME}, at its size"
        slower = verdict([], f"LSH-SDiv is faster than PCA-Hash, {where}", times=times)
        faster = verdict([], f"LSH-SDiv is faster than LSH-Div, {where}", times=times)
        assert (slower.holds, faster.holds) == (False, True)
        assert faster.effects[0].size.value == pytest.approx(1.2, rel=0.01)
    times = [time._replace(same_as_lsh_div=time.method == LSH_SDIV) for time in times]
    same = verdict(
        [], f"LSH-SDiv is faster than LSH-Div, embedding, {HOME}, at its size", times=times
    )
    assert same.effects == ()
    assert "same distribution" in same.sentence


def test_claims_of_times_of_other_families_on_data() -> None:
    """Times of the rows are paired by document and seed, and compared as ratios."""
    rows = [row("LSH-SDiv", 0.4, noise=_NOISE[::-1]), row("PCA-Hash", 0.5), row("LSH-Div", 0.3)]
    pca, div = (f"LSH-SDiv is faster than {r}, embedding, {HOME_BY_FOLDS}" for r in _RIVALS)
    faster = verdict(rows, pca)
    assert faster.holds is True
    assert faster.effects[0].size.value == pytest.approx(1.25, rel=0.01)
    assert verdict(rows, div).holds is False
    rows[0] = replace(rows[0], same_as_lsh_div=True)
    assert verdict(rows, div).effects == ()
    assert verdict(rows, pca).holds is True


def test_impossible_values_of_h_are_found() -> None:
    """In four of the paper's five rows, the printed h exceeds the maximum that P and D allow."""
    assert impossible() == ["LEML", "PCA-Hash", "LSH-Div", "LSH-SDiv"]
    assert {name: round(line.most, 3) for name, line in PAPER_ROWS.items()} == {
        "LEML": 0.445,
        "MMR": 0.417,
        "PCA-Hash": 0.406,
        "LSH-Div": 0.245,
        "LSH-SDiv": 0.473,
    }
    assert label_claims.h_is_possible().holds is False
