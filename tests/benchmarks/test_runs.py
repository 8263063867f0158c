"""Every benchmark runs from end to end at its smallest size, on digits if it needs a data set."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

import benchmarks.__main__  # noqa: F401  # registers all runs
from benchmarks.harness import libraries, load
from benchmarks.harness.runner import RUNS, Table
from benchmarks.runs import large, overload, peers, writes
from benchmarks.runs.selectors import BATCH_SIZES

Check = Callable[[list[Table]], object]


def first(table: Table) -> list[str]:
    return [row[0] for row in table.cells()]


def column(table: Table, name: str) -> list[Any]:
    return [row[name] for row in table.rows if row.get(name) is not None]


def _selectors(tables: list[Table]) -> None:
    names = {"greedy", "greedy, marginal", "mmr", "rerank", "max_sum", "dpp", "qp_relax"}
    for table in tables:
        assert set(first(table)) == names
        mmr = [row for row in table.rows if row["selector"] == "mmr" and "rival" in row]
        assert all(row["same picks"] == 1 for row in mmr)
        assert bool(mmr) == (not libraries.missing("pyversity"))


def _scans(tables: list[Table]) -> None:
    (table,) = tables
    assert column(table, "points") == [2_000, 5_000]
    assert all(time > 0 for time in column(table, "scores, ns a point"))
    assert ("divgrpc / faiss" in table.columns) == (not libraries.missing("faiss"))


def _filters(tables: list[Table]) -> None:
    (table,) = tables
    answers = [row for row in table.rows if row["index"].startswith("divgrpc")]
    assert len(answers) == 2 * 3 * 2
    assert all(row["recall"] >= 0.8 and row["us"] > 0 for row in answers)
    has_faiss = any(row["index"].startswith("faiss") for row in table.rows)
    assert has_faiss == (not libraries.missing("faiss"))


def _sharded(tables: list[Table]) -> None:
    (table,) = tables
    assert column(table, "shards") == [2, 2, 2, 2]
    assert column(table, "equal") == [4, 4, 4, 4]
    assert all(row["router"] > 0 and row["shard"] > 0 for row in table.rows)


def _sharded_quotas(tables: list[Table]) -> None:
    (table,) = tables
    assert set(column(table, "equal")) == {1}
    rounds = {row["query"]: row["rounds"] for row in table.rows}
    # Values come with candidates, so quotas on many points with each value take no further round.
    assert rounds["quota on 5 sources"] <= rounds["plain"]
    assert rounds["groups"] <= 5
    assert all(row["ratio"] > 0 and row["of plain"] > 0 for row in table.rows)


def _wire_filters(tables: list[Table]) -> None:
    (table,) = tables
    names = ["divgrpc", "divgrpc in process", "divgrpc, default"]
    answers = [row for row in table.rows if row["index"] in names]
    assert [row["index"] for row in answers[:3]] == names
    assert all(row["recall"] >= 0.8 and row["us"] > 0 for row in answers)


def _writes(tables: list[Table]) -> None:
    queries, merge, renewals, rates, start, runbook, wire, by_lists, by_tables, merges = tables
    assert min(column(queries, "ratio")) > 0
    assert column(by_tables, "state") == ["1 % written", "10 % written"]
    assert column(by_lists, "state") == ["1 % written", "10 % written"] * 2
    assert column(by_lists, "points") == [606, 660] * 2
    assert (merge.rows[0]["rows"], len(rates.rows), len(start.rows)) == (7_096, 4, 3)
    assert column(merges, "merges") == [0, 4, 4]
    assert min(column(merges, "writes")) > 0
    assert column(renewals, "work") == ["build", "vacuum", "retraining"]
    assert min(renewals.rows[row]["writes"] for row in (1, 2)) > 0
    assert min(column(runbook, "difference")) >= -0.01
    assert min(column(wire, "rows/s")) > 0


def _write_streams(tables: list[Table]) -> None:
    (table,) = tables
    assert column(table, "rows a message") == [1, 10, 100] * 2
    assert min(column(table, "unary rows/s")) > 0
    assert min(column(table, "stream rows/s")) > 0


def _sparse(tables: list[Table]) -> None:
    (table,) = tables
    rows = {row["contestant"]: row for row in table.rows}
    assert rows["divgrpc, nearest, exact"]["recall"] == 1
    assert rows["scipy, one product"]["recall"] == 1
    has_seismic = any(name.startswith("seismic") for name in rows)
    assert has_seismic == (not libraries.missing("seismic"))
    assert all(row["us"] > 0 for row in table.rows)


def _batches(tables: list[Table]) -> None:
    for table in tables:
        assert set(column(table, "rows")) == set(BATCH_SIZES)
        assert {name.split(",")[0] for name in first(table)} == {"lsh_sdiv", "auto"}
        assert sum(name.endswith("exact") for name in first(table)) == len(BATCH_SIZES)


def _training(tables: list[Table]) -> None:
    stages, precisions = tables
    assert first(stages) == ["start", "iteration", "iteration"]
    losses = column(stages, "loss")
    assert losses == sorted(losses, reverse=True)
    assert precisions.rows[0]["P@1"] > precisions.rows[1]["P@1"]


def _large(tables: list[Table]) -> None:
    searches = {"lsh_div, tables", "lsh_div, scan", "auto, auto"}
    for table in tables:
        assert searches <= set(first(table))
        assert len(table.rows) == 3 + (not libraries.missing("faiss"))
        assert all(row["on top"] > 0 for row in table.rows)
        assert all(row["recall"] >= 0.5 for row in table.rows if "tables" not in row["search"])


def _growth(tables: list[Table]) -> None:
    sizes, units, stages, figures = tables
    assert column(sizes, "points") == [1_000, 2_000, 4_000]
    assert all(row["recall"] >= 0.95 for row in sizes.rows)
    assert all(cost >= 0 for cost in column(units, "ns, all sizes"))
    assert "hashing" in first(stages)
    assert all(0 < row["serial"] <= 1.05 for row in stages.rows)
    rows = {row["figure"]: row for row in figures.rows}
    assert rows["index, GB"]["measured"] == pytest.approx(
        rows["index, GB"]["4,000, predicted"], rel=0.1
    )
    assert sum("reached" in row and row["reached"] is not None for row in figures.rows) == 6


def _peers(tables: list[Table]) -> None:
    by_title = {table.title.split(" at ")[0].split(":")[0]: table for table in tables}
    names = {name.split(":")[0] for name in first(by_title["J"])}
    assert {"lsh_div", "auto", "exact pass", "greedy over all points"} <= names
    assert ("faiss IVF + our greedy" in names) == (not libraries.missing("faiss"))
    ratios = by_title["Times the speed of others"]
    assert {name.split(",")[0] for name in first(ratios)} == {"lsh_div", "auto"}
    assert all(row["gap closed"] >= 0.7 for row in ratios.rows)
    assert all(row["x greedy over all"] > 0 for row in ratios.rows if "J" in row["ours, at"])


def _wire(tables: list[Table]) -> None:
    [table] = tables
    assert {"echo", "lsh_div, 1 worker", "lsh_div, 1 worker, QueryStream"} <= set(first(table))
    assert len(column(table, "goal")) == 4


def _metrics(tables: list[Table]) -> None:
    [table] = tables
    assert first(table) == ["neither", "access lines", "access lines and metrics"]
    assert table.rows[0]["ratio"] == 1.0
    assert min(column(table, "CPU us")) > 0


def _security(tables: list[Table]) -> None:
    [table] = tables
    assert first(table) == [
        "plain",
        "token that the server ignores",
        "tokens",
        "TLS",
        "TLS and tokens",
    ]
    assert table.rows[0]["ratio"] == 1.0
    assert min(column(table, "CPU us")) > 0


def _overload(tables: list[Table]) -> None:
    [table] = tables
    assert first(table) == ["64", "64"]
    assert min(column(table, "capacity, calls/s")) > 0
    assert min(column(table, "goodput")) > 0


def _replicas(tables: list[Table]) -> None:
    [table] = tables
    assert first(table) == ["yes", "no"]
    assert column(table, "calls") == [300, 300]
    assert column(table, "failed")[0] == 0


def _served_shards(tables: list[Table]) -> None:
    comparison, failures = tables
    assert column(comparison, "equal") == [30]
    assert min(column(comparison, "CPU")) > 0
    assert first(failures) == ["killed", "stopped"]
    assert (column(failures, "failed"), column(failures, "wrong")) == ([0, 0], [0, 0])


def _shard_costs(tables: list[Table]) -> None:
    [row] = tables[0].rows
    for name in ("router", "shard", "p50"):
        floor = row[f"{name} fan-out us"] + row[f"{name} work us"]
        assert row[name] == pytest.approx(row[f"{name} us"] / floor)


def _divided_builds(tables: list[Table]) -> None:
    [table] = tables
    assert column(table, "shards") == [1, 3]
    assert min(column(table, "peak, MiB")) >= 0


def _divided_training(tables: list[Table]) -> None:
    alone, divided = tables[0].rows
    assert alone["replies"] == 0
    assert divided["difference"] == "none"
    assert 0 < divided["products"] <= divided["replies"]


def _build(tables: list[Table]) -> None:
    [table] = tables
    assert first(table) == ["lsh_div", "auto"]
    assert all(row["hashing"] > 0 for row in table.rows)


def _memory(tables: list[Table]) -> None:
    upload, sharing = tables
    assert upload.rows[0]["samples"] > 2
    # Shared memory counts proportionally as unbacked, but never as private.
    more = upload.rows[0]["without files MB more"], upload.rows[0]["private MB more"]
    assert 0 < more[0] <= 1.05 * more[1]
    assert sharing.rows[0]["copies"] <= 1.05


def _evaluate(tables: list[Table]) -> None:
    [row] = tables[0].rows
    assert row["ratio"] == pytest.approx(row["call s"] / row["its queries s"])
    cpu = sum(row[f"CPU {role} s"] for role in ("front", "worker", "evaluator"))
    assert row["CPU ratio"] == pytest.approx(cpu / row["its queries s"])


def _start(tables: list[Table]) -> None:
    starts, queries = tables
    assert first(starts) == ["warm, no index", "warm, 3 indexes, lsh_div"]
    assert first(queries) == ["lsh_div"]


def _diversity(tables: list[Table]) -> None:
    """Check the tables of all parts, by title."""
    by_title = {table.title.split(" ")[0]: table for table in tables}
    [times] = by_title["Diagnose"].rows
    assert min(times["ratio"], times["diagnose s"], times["exact s"]) > 0
    assert all(row["greatest difference"] <= row["goal"] for row in by_title["Shares"].rows)
    assert len(by_title["Gain"].rows) == 3 * len(by_title["Shares"].rows)
    assert all(row["r"] <= 1 for row in by_title["Correlation"].rows)
    # Two parts have a table of times.
    assert by_title["Time"].rows
    [instances] = by_title["Feasibility"].rows
    assert instances["instances"] == 60
    assert instances["wrong"] == instances["violations"] == 0
    assert all(row["gap closed"] >= row["goal"] for row in by_title["Value"].rows)
    [picks] = by_title["Picks"].rows
    assert picks["confirmed"] == picks["goal"] >= 20
    [call] = by_title["Diversify"].rows
    # A short run of one machine may time the echo slower than the call.
    assert min(call["call"], call["echo"], call["in process"]) > 0
    assert call["above both"] == call["call"] - call["echo"] - call["in process"]
    assert ("Candidates" in by_title) == (not libraries.missing("pyversity"))
    if "Candidates" in by_title:
        assert len(by_title["Candidates"].rows) == 3 * 4
        assert all(row["ratio"] > 0 for row in by_title["Candidates"].rows)
    assert ("LangChain's" in by_title) == (not libraries.missing("langchain_core"))
    if "LangChain's" in by_title:
        assert column(by_title["LangChain's"], "same picks") == [1, 1]


_PEERS: Final = (
    "--k 5 --queries 6 --tuning 3 --diversity 0.3 --gap 0.7 --links 8 --ef-construction 50"
)
SMALL: Final[dict[str, tuple[str, Check]]] = {
    "selectors": ("--k 5 --queries 10 --candidates 20 40", _selectors),
    "batches": ("--points real 1500 --families lsh_sdiv auto --batches 1 --k 3", _batches),
    "scans": ("--points 2000 5000 --bits 64 --k 5", _scans),
    "wire-filters": ("--points 20000 --passing 0.1 --queries 5", _wire_filters),
    "sharded": ("--points 2000 --queries 4 --shards 2 --candidates 30", _sharded),
    "sharded_quotas": ("--points 3000 --queries 12 --shards 2", _sharded_quotas),
    "filters": ("--points 20000 --passing 0.5 0.01 --queries 5", _filters),
    "writes": ("--points 3000 --seconds 0.05", _writes),
    "write-streams": ("--points 3000 --seconds 0.1 --rounds 1 --in-flight 8", _write_streams),
    "sparse": ("--images 2000 --words 1000 --queries 10 --k 5", _sparse),
    "training": ("--share 0.002 --rank 8 --iterations 2", _training),
    "large": ("--points 1000 4000 --families lsh_div auto --queries 5 --recall 0.5", _large),
    "growth": ("--points 1000 2000 4000 --queries 5", _growth),
    "peers": (f"--points real {_PEERS} --families lsh_div auto --faiss 'faiss IVF'", _peers),
    "wire": ("--families lsh_div --workers 1 --seconds 0.1 --rounds 1 --in-flight 4", _wire),
    "metrics": ("--points 2000 --seconds 0.1 --rounds 1 --in-flight 4", _metrics),
    "security": ("--points 2000 --seconds 0.1 --rounds 1 --in-flight 4", _security),
    "overload": ("--pending 64 --connections 1 --seconds 0.5 --rounds 1", _overload),
    "shard_costs": ("--points 1000 --shards 2 --rounds 1", _shard_costs),
    "served_shards": (
        "--points 1000 --queries 30 --shards 2 --rounds 1 --kills 1 --stops 1",
        _served_shards,
    ),
    "divided_training": (
        "--documents 30000 --features 300 --labels 20 --rank 3 --iterations 1 --shards 0 2",
        _divided_training,
    ),
    "divided_builds": ("--points 3000 --dims 8 --shards 1 3", _divided_builds),
    "replicas": ("--calls 300 --servers 2 --in-flight 4", _replicas),
    "build": ("--points 20000 --dims 8 --rounds 1 --families lsh_div auto", _build),
    "memory": ("--rows 20000 --dims 16 --workers 2", _memory),
    "evaluate": ("--workers 1 --queries 40 --dials 2 --rounds 1", _evaluate),
    "diversity": ("--small", _diversity),
    "start": ("--families lsh_div --rounds 1 --cold 0 --indexes 3 --points 2000", _start),
}
# Benchmarks that other files test. `service` is tested only without the libraries that it compares
# with.
ELSEWHERE: Final = {"crowding", "core-mutations", "service"}


@pytest.fixture(autouse=True)
def digits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide all data sets from the benchmarks, and store learned queries in a folder of the test."""
    monkeypatch.delenv("DIVGRPC_DATA", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(large, "_REFERENCE", 1_000)
    monkeypatch.setattr(peers, "_BUILDS", 1)
    monkeypatch.setattr(load, "_WARM_UP_SECONDS", 0.1)
    monkeypatch.setattr(overload, "_CAPACITY_SECONDS", 0.3)
    monkeypatch.setattr(writes, "_MERGES", 4)


def test_every_benchmark_is_tested() -> None:
    assert SMALL.keys() | ELSEWHERE == RUNS.keys()


@pytest.mark.parametrize("name", SMALL)
def test_runs_small(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A run prints its tables, which have the rows that the options request."""
    run, (words, check) = RUNS[name], SMALL[name]
    tables = run.measure(run.parse(words))
    check(tables)
    output = capsys.readouterr().out
    assert all(f"## {table.title}" in output for table in tables)


@pytest.mark.parametrize("name", ["peers", "large", "selectors"])
def test_runs_without_other_libraries(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If no other library is installed, a benchmark measures only divgrpc."""
    monkeypatch.setattr(libraries, "missing", lambda *names: list(names))
    run, (words, check) = RUNS[name], SMALL[name]
    check(run.measure(run.parse(words)))


def test_service_without_hnswlib_has_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "missing", lambda *names: list(names))
    run = RUNS["service"]
    assert run.measure(run.parse("--points 100")) == []
