"""The report page of an evaluation, for various kinds of rows."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from divgrpc.errors import InvalidArgumentError
from divgrpc.evaluation import Grid, evaluate
from divgrpc.index import Index
from divgrpc.types import EvaluateRow, FloatArray, Selector
from divgrpc_client import Client
from divgrpc_client.cli import main
from divgrpc_client.formats.evaluation_tables import setting
from divgrpc_client.reports import charts
from divgrpc_client.reports.evaluation import report, write_report
from divgrpc_client.reports.page import render
from divgrpc_client.reports.showing import (
    Looks,
    read_point_categories,
    read_thumbnails,
    side_by_side,
)
from support.data.evaluation_rows import made_rows, without_h
from support.data.served_index import random_points
from support.processes.running_server import RunningServer


def _html(rows: list[EvaluateRow]) -> str:
    return render(report(rows, index="products"))


@pytest.fixture(scope="module")
def html() -> str:
    return _html(made_rows())


def _build(client: Client, name: str, points: FloatArray) -> None:
    kinds = np.arange(len(points)) % 6
    client.build(name, points, categories=kinds % 2, subtopics=kinds, replace=True)


def test_the_same_rows_give_the_same_bytes(tmp_path: Path) -> None:
    rows = made_rows(searches=("exact",), ks=(10,))
    for name in ("one", "two"):
        write_report(rows, tmp_path / name, index="products", facts=("today",))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_every_setting_and_every_k_is_shown(html: str) -> None:
    lines = html[html.index("empty: queries without") :].count('<tr><th scope="row"')
    assert lines == sum(not row.by_fold for row in made_rows())
    assert re.findall(r'<img src="data:image/svg[^"]*" alt="(.*?)">', html) == [
        *(
            f"Accuracy against diversity, k = {k}, {stage}"
            for k in (10, 20)
            for stage in (
                "exact search without limits",
                "tables search, hash limit 800, candidates 200",
            )
        ),
        "h against time, k = 10",
        "h against time, k = 20",
    ]


def _with_limits(row: EvaluateRow, hash_limit: int, candidates_limit: int) -> EvaluateRow:
    parameters = replace(row.parameters, hash_limit=hash_limit, candidates_limit=candidates_limit)
    return replace(row, parameters=parameters)


def test_default_limits_are_one_chart_with_one_curve_per_method() -> None:
    """Default limits follow the diversity; limits of the caller are the same at all diversities."""
    rows = made_rows(searches=("auto",), ks=(10,), choices=False)
    limits_by_name: dict[str, Callable[[float], tuple[int, int]]] = {
        "default limits": lambda dial: (800 + int(50 * dial), 200 + int(1000 * dial)),
        "hash limit 60, candidates default": lambda dial: (60, 200 + int(1000 * dial)),
        "hash limit 60, candidates 200": lambda _: (60, 200),
    }
    for name, limits in limits_by_name.items():
        text = _html([_with_limits(row, *limits(row.parameters.diversity)) for row in rows])
        assert re.findall(r'alt="(Accuracy.*?)">', text) == [
            f"Accuracy against diversity, k = 10, auto search, {name}"
        ]
        assert re.search(rf"searches and limits</th>\s*<td[^>]*>auto search, {name}</td>", text)


def test_default_limits_beside_limits_of_the_caller_are_charts_of_their_own() -> None:
    rows = [
        _with_limits(replace(row, number=2 * row.number + place), *limits)
        for row in made_rows(searches=("auto",), ks=(10,), choices=False)
        for place, limits in enumerate([(60, 20), (int(900 * row.parameters.diversity) + 1,) * 2])
    ]
    text = _html(rows)
    names = ["auto search, hash limit 60, candidates 20", "auto search, default limits"]
    alts = re.findall(r'alt="Accuracy against diversity, k = 10, (.*?)">', text)
    assert alts == names
    assert "; ".join(names) in text


def test_ids_are_unique_and_links_have_targets(html: str) -> None:
    ids = re.findall(r'\bid="([^"]*)"', html)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="|url\()#([^")]+)', html)) <= set(ids)


def test_the_lead_names_the_best_beside_the_nearest() -> None:
    rows = made_rows(ks=(10,))
    choices = [row for row in rows if row.by_fold]
    best = max(choices, key=lambda row: row.metrics["h_score"].value)
    lead = report(rows).lead
    assert lead.startswith(f"At k = 10, {setting(best)}, reaches h")
    assert ("plain nearest" in lead) == (best.parameters.selector != "nearest")


@pytest.mark.parametrize(
    "rows",
    [
        [],
        made_rows(("nearest",), ("exact",), (1,), choices=False),
        [without_h(row) for row in made_rows(searches=("exact",), ks=(10,))],
        [replace(row, on_front=False, queries=1) for row in made_rows(ks=(5,))],
        [
            replace(row, microseconds=row.microseconds._replace(p50=0.0))
            for row in made_rows(searches=("exact",), ks=(10,))
        ],
    ],
    ids=["none", "one", "no h", "no front", "no time"],
)
def test_a_page_can_be_made_of_any_rows(rows: list[EvaluateRow]) -> None:
    text = _html(rows)
    assert "<h1>" in text
    assert not re.search(r">\s*nan\s*<", text)


def test_a_new_default_is_shown_without_a_claim_about_limits() -> None:
    """Rows do not tell which limits are stored."""
    rows = made_rows(("greedy",), ("tables",), (10,))
    text = _html([*rows, replace(rows[-1], number=len(rows), is_default=True)])
    assert "has its method, diversity and search now, and of the limits those that" in text


def test_failures_are_shown() -> None:
    rows = made_rows(searches=("exact",), ks=(10,), choices=False)
    text = _html([replace(without_h(row), queries=3) for row in rows])
    notes = re.findall(r'role="note">(.*?)<', text)
    short, empty = sum(row.short > 0 for row in rows), sum(row.empty > 0 for row in rows)
    heads = ["Only", "No", "Nothing", str(empty), str(short)]
    assert [note.split()[0] for note in notes] == heads


def test_rows_of_the_core_make_a_page() -> None:
    kinds = np.arange(60) % 6
    index = Index.build(random_points(60), categories=kinds % 2, subtopics=kinds)
    rows = evaluate(index, random_points(9, seed=2), np.arange(9) % 2, grid=Grid(ks=(3,)))
    assert "greedy</th>" in _html(list(rows))


def _axis_end(svg: str, axis: str) -> float:
    part = svg[svg.index(f'<g id="matplotlib.axis_{axis}">') :].split('<g id="matplotlib.axis_')[1]
    return max(float(text) for text in re.findall(r">([\d.]+)</text>", part))


def test_charts_have_text_in_the_colours_of_each_scheme() -> None:
    """Charts keep text as text, escape markup in names, and have a dark form of every colour."""
    curve = charts.Curve("a <b> $x$", [(0.1, 0.9), (float("nan"), 0.5), (0.4, 0.6)])
    chart = charts.trade_off([curve], "a <title>")
    assert "a &lt;b&gt; $x$" in chart.svg
    assert "<title>a &lt;title&gt;</title>" in chart.svg
    style, drawing = chart.svg.split("</style>", 1)
    colours = set(re.findall(r"(?:fill|stroke): (#\w{6})", drawing))
    assert {charts.LIGHT.ink, charts.LIGHT.series[0]} <= colours
    rules = dict(re.findall(r'\[style\*="fill: (#\w+)"\] { fill: (#\w+) !important }', style))
    assert colours <= set(rules)
    assert rules[charts.LIGHT.ink] == charts.DARK.ink
    assert charts.trade_off([curve], "a <title>") == chart
    for empty in (charts.trade_off([], "none"), charts.h_against_time([], [], [], "none")):
        assert "<svg" in empty.svg


def test_axes_of_metrics_end_at_1() -> None:
    curve = charts.Curve("greedy", [(0.2, 1.0), (1.0, 0.7)])
    svg = charts.trade_off([curve], "title").svg
    assert _axis_end(svg, "1") == _axis_end(svg, "2") == 1.0


def test_times_have_a_suitable_unit() -> None:
    times = (0.5, 20, 999, 999.6, 1_000, 25_000, 999_600, 2e6)
    words = ["0.5 µs", "20 µs", "999 µs", "1 ms", "1 ms", "25 ms", "1 s", "2 s"]
    assert [charts.time_words(duration) for duration in times] == words


def test_categories_of_points_are_read_by_id(tmp_path: Path) -> None:
    path = tmp_path / "categories.txt"
    path.write_text("1\t4\n2\t\n")
    assert read_point_categories(path) == {1: 4}


def test_thumbnails_of_arrays_and_of_folders(tmp_path: Path) -> None:
    path = tmp_path / "pictures.npy"
    for array in (np.zeros((2, 8, 8), np.uint8), np.ones((2, 8, 8)), np.ones((2, 8, 8, 3))):
        np.save(path, array)
        thumbnail = read_thumbnails(path)
        assert thumbnail(1).startswith("data:image/png;base64,")
        assert thumbnail(2) == ""
    Image.new("RGB", (300, 200)).save(tmp_path / "5.jpg")
    (tmp_path / "6.png").write_text("no picture")
    thumbnail = read_thumbnails(tmp_path)
    assert thumbnail(5).startswith("data:image/png;base64,")
    assert len(thumbnail(5)) < 1_000
    assert thumbnail(4) == ""
    with pytest.raises(InvalidArgumentError, match="no picture"):
        thumbnail(6)


@pytest.mark.parametrize(
    ("flag", "content"),
    [
        ("--titles", None),
        ("--titles", b"\xff\xfe\xfa"),
        ("--thumbnails", None),
        ("--thumbnails", b"no array"),
        ("--point-categories", b"one\n"),
        ("--show", -1),
    ],
)
def test_wrong_files_are_refused_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: str, content: bytes | int | None
) -> None:
    path = tmp_path / "given.npy"
    if isinstance(content, bytes):
        path.write_bytes(content)
    value = str(content) if isinstance(content, int) else str(path)
    words = ["evaluate", "x", "x.npy", "--json", "--report", str(tmp_path / "r.html"), flag, value]
    assert main.main(words) == 2
    (violation,) = json.loads(capsys.readouterr().err)["error"]["field_violations"]
    # The shared reader reports an array file that it cannot read as an error of `file`.
    assert violation["field"] in (flag.removeprefix("--").replace("-", "_"), "file")


def test_options_of_a_page_need_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["evaluate", "x", "x.npy", "--titles", "t.txt"]) == 2
    assert "--titles is for --report alone" in capsys.readouterr().err


def test_lists_equal_the_results_of_queries(client: Client) -> None:
    """Lists have a method's results in order; categories or relevant ids mark wrong results."""
    points, queries = random_points(90), random_points(5, seed=3)
    _build(client, "shown", points)
    categories = np.arange(5) % 2
    rows = list(client.evaluate("shown", queries, categories, ks=[4, 7], diversities=[0.5]))
    looks = Looks(
        titles={n: f"point {n}" for n in range(80)}, categories={n: n % 2 for n in range(90)}
    )
    lists = side_by_side(client, "shown", queries, rows, looks, count=2, categories=categories)
    assert [part.heading for part in lists] == ["Query 0, category 0", "Query 4, category 0"]
    plain, greedy = lists[1].lists
    assert plain.name.startswith("nearest")
    assert greedy.name.startswith("greedy at diversity 0.5")
    ids = client.query("shown", queries[4], k=4, selector="nearest").ids[0].tolist()
    texts = [f"point {n}" if n < 80 else f"id {n}" for n in ids]
    assert [result.text for result in plain.results] == texts
    assert [result.wrong for result in plain.results] == [n % 2 == 1 for n in ids]
    by_ids = side_by_side(client, "shown", queries, rows, Looks(), count=9, relevant=[[ids[0]]] * 5)
    assert len(by_ids) == 5
    assert by_ids[4].lists[0].caption == "1 of 4 relevant"


@pytest.mark.parametrize("keep", [True, False])
def test_lists_treat_near_copies_as_the_evaluation_did(client: Client, keep: bool) -> None:
    points = random_points(30).repeat(3, axis=0)
    name = f"copies-{keep}".lower()
    _build(client, name, points)
    query = random_points(1, seed=3)
    evaluation = client.evaluate(
        name, query, [0], ks=[6], diversities=[0.5], folds=0, keep_duplicates=keep
    )
    rows = list(evaluation)
    (part,) = side_by_side(client, name, query, rows, Looks())
    selectors: tuple[Selector, ...] = ("nearest", "greedy")
    for shown, selector in zip(part.lists, selectors, strict=False):
        result = client.query(
            name, query, k=6, selector=selector, diversity=0.5, keep_duplicates=keep
        )
        assert [item.text for item in shown.results] == [f"id {n}" for n in result.ids[0] if n >= 0]


def test_the_command_writes_its_page(
    server: RunningServer, client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _build(client, "evaluated-by-file", random_points(90))
    np.savez(tmp_path / "queries.npz", q=random_points(6, seed=3), y=np.arange(6) % 2)
    np.save(tmp_path / "pictures.npy", np.zeros((90, 4, 4), np.uint8))
    words = [
        "evaluate",
        "evaluated-by-file",
        str(tmp_path / "queries.npz"),
        "--key",
        "q",
        "--categories",
        "y",
    ]
    words += ["--ks", "3", "--target", server.target, "--json", "--show", "2"]
    words += ["--thumbnails", str(tmp_path / "pictures.npy")]
    path = tmp_path / "folder" / "report.html"
    assert main.main([*words, "--report", str(path)]) == 0
    output = capsys.readouterr()
    assert json.loads(output.out)["rows"]
    assert str(path) in output.err
    text = path.read_text()
    assert text.count("<article") == 2
    assert text.count('<img src="data:image/png') == 2 * 2 * 3
    assert "90 points of" in text
