"""Load on servers that stall, fail or answer, and the exit codes of `divgrpc load`."""

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from divgrpc.errors import InvalidArgumentError, UnavailableError
from divgrpc_client import Client
from divgrpc_client.cli import main
from divgrpc_client.load import Call, Settings, constant, parse_threshold, read_mix, run_load
from divgrpc_client.load import session as session_module
from divgrpc_client.load.calls import call_of
from divgrpc_client.load.report import build_report
from divgrpc_client.load.schedule import Schedule, Step
from divgrpc_client.load.session import Session
from divgrpc_protos.v1 import query_pb2, writes_pb2
from support.checks.refusals import failing
from support.data import labelled_documents
from support.processes.command_line import Ran, Run, start
from support.processes.running_server import RunningServer, eventually
from support.processes.scripted_server import ScriptedIndex, serving

STALL_SECONDS, STALLS_AFTER = 1.5, 40
QUERIES = np.eye(6, dtype=np.float32)
CALLS = [Call("images", QUERIES)]
QUICK = Settings(warm_up=0, channels=2, seed=1)


class Stalling(ScriptedIndex):
    """A server that answers at once, except for one stall after STALLS_AFTER queries."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()

    def Query(  # noqa: N802  # the contract's name
        self, request: query_pb2.QueryRequest, context: grpc.ServicerContext
    ) -> query_pb2.QueryResponse:
        """Wait until the stall ends, then answer."""
        if len(self.queries) == STALLS_AFTER and self.gate.is_set():
            self.gate.clear()
            threading.Timer(STALL_SECONDS, self.gate.set).start()
        self.gate.wait(20)
        return super().Query(request, context)


@pytest.mark.parametrize("closed", [0, 1])
def test_a_stall_counts_for_every_call_that_was_due(closed: int) -> None:
    """In an open loop all of them are late, in a closed loop only one is."""
    script = Stalling()
    with serving(script) as target:
        report = run_load(target, CALLS, constant(40, 4), QUICK, closed=closed)
    half = STALL_SECONDS * 1e6 / 2
    assert report["latency"]["max"] > half
    assert (report["latency"]["p90"] > half) is (not closed)
    assert ("closed" in report["setting"]["loop"]) is bool(closed)
    assert report["codes"] == {"OK": report["calls"]}


def test_statuses_are_counted(script: ScriptedIndex, target: str) -> None:
    failures = [grpc.StatusCode.RESOURCE_EXHAUSTED] * 7 + [grpc.StatusCode.INTERNAL] * 2
    with Session(target, CALLS, QUICK) as session:
        script.failures.extend(failures)
        report = build_report(session.run(constant(100, 1)))
    assert report["codes"] == {"OK": 91, "RESOURCE_EXHAUSTED": 7, "INTERNAL": 2}
    assert report["errors"] == pytest.approx(0.09)


def test_a_process_with_many_files_may_start_generators(script: ScriptedIndex, target: str) -> None:
    """A descriptor of a thousand and more does not fit `select`, which generators call."""
    with ExitStack() as stack:
        for _ in range(1_100):
            stack.callback(os.close, os.dup(2))
        report = run_load(target, CALLS, constant(50, 1), QUICK)
    assert report["codes"] == {"OK": 50}
    assert len(script.queries) == 1 + 50


class Watching(ScriptedIndex):
    """A server that replaces the token in a file, and then breaks the file."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file, self.tokens = file, list[Any]()

    def Query(  # noqa: N802  # the contract's name
        self, request: query_pb2.QueryRequest, context: grpc.ServicerContext
    ) -> query_pb2.QueryResponse:
        """Note the token, and answer."""
        self.tokens.append(dict(context.invocation_metadata())["authorization"])
        texts = {5: "second", 10: "two words"}
        if text := texts.get(len(self.tokens)):
            self.file.write_text(text)
        return super().Query(request, context)


def test_a_token_is_read_again_when_its_file_changes(tmp_path: Path) -> None:
    script = Watching(tmp_path / "token")
    script.file.write_text("first")
    settings = replace(QUICK, token=script.file, insecure=True)
    with serving(script) as target:
        report = run_load(target, CALLS, constant(100, 0.5), settings, closed=1)
    assert report["codes"] == {"OK": report["calls"]}
    assert {*script.tokens[:5]} == {"Bearer first"}
    assert {*script.tokens[5:]} == {"Bearer second"}
    assert len(script.tokens) > 15


def test_calls_of_the_warm_up_are_sent_and_not_counted(script: ScriptedIndex, target: str) -> None:
    report = run_load(target, CALLS, constant(50, 1), Settings(warm_up=1))
    assert report["calls"] == 50
    assert len(script.queries) == 1 + 50 + 50
    assert report["seconds"] == 1


def test_a_ramp_from_0_is_warmed_up_at_its_mean_rate(script: ScriptedIndex, target: str) -> None:
    ramp = Schedule((Step(0, 100, 1),))
    report = run_load(target, [Call("images", QUERIES)], ramp, Settings(warm_up=1))
    assert report["calls"] == 50
    assert len(script.queries) == 1 + 50 + 50


def test_calls_beyond_max_in_flight_are_not_sent() -> None:
    """A server that never answers gets `max_in_flight` calls at a time, and the run still ends."""
    script = Stalling()
    settings = Settings(warm_up=0, max_in_flight=3, timeout=1)
    with serving(script) as target, Session(target, CALLS, settings) as session:
        script.gate.clear()
        report = build_report(session.run(constant(100, 1)))
        script.gate.set()
    assert report["calls"] == 100
    assert report["codes"]["NOT_SENT"] > 50
    assert 3 <= report["codes"]["DEADLINE_EXCEEDED"] <= 12
    assert report["errors"] > 0.8


def test_processes_share_a_schedule(script: ScriptedIndex, target: str) -> None:
    settings = Settings(warm_up=0, processes=2, poisson=True)
    report = run_load(target, [Call("images", QUERIES, {"k": 3})], constant(120, 1), settings)
    assert report["calls"] == len(script.queries) - 1  # one query checked the call
    assert report["setting"]["schedule"] == "120..120/1s"
    assert len(report["generators_busy"]) == 2
    query_bytes = {query.queries.dense.data for query in script.queries}
    assert query_bytes == {row.tobytes() for row in QUERIES}
    assert {query.k for query in script.queries} == {3}


def test_every_process_uses_all_its_connections(script: ScriptedIndex, target: str) -> None:
    run_load(target, CALLS, constant(50, 1), Settings(warm_up=0, processes=2, channels=2))
    assert len(script.peers) == 1 + 2 * 2  # one connection checked the call


def test_a_refused_call_ends_the_run_before_any_load(script: ScriptedIndex, target: str) -> None:
    script.failures = [grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.NOT_FOUND]
    with failing(grpc.StatusCode.NOT_FOUND):
        run_load(target, CALLS, constant(100, 1), QUICK)
    assert script.calls["Query"] == 1


def test_an_interrupted_run_keeps_its_samples(target: str) -> None:
    """The run ends at once, and its report covers the time before the interruption."""
    with Session(target, CALLS, QUICK) as session:
        threading.Timer(4, session.interrupt).start()
        run = session.run(constant(50, 600))
    assert run.interrupted
    assert run.seconds < 5
    assert len(run.samples) == pytest.approx(50 * run.seconds, abs=5)


def test_an_interrupted_search_makes_no_further_trial(target: str) -> None:
    with Session(target, CALLS, QUICK) as session:
        session.interrupt()
        run, trials = session.find_highest_rate([parse_threshold("p99<1s")], 50, 600, None)
    assert run.interrupted
    assert [trial["held"] for trial in trials] == [False]


@pytest.mark.parametrize(("number", "word"), [(signal.SIGKILL, "died"), (signal.SIGSTOP, "silent")])
def test_a_dead_or_hanging_generator_ends_the_run(
    target: str, monkeypatch: pytest.MonkeyPatch, number: int, word: str
) -> None:
    """The run ends although the first generator would go on for minutes."""
    start = subprocess.Popen
    programs: list[subprocess.Popen[bytes]] = []

    def start_and_signal(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:  # noqa: ANN401
        programs.append(start(*arguments, **options))
        if len(programs) == 2:
            threading.Timer(3, programs[1].send_signal, [number]).start()
        return programs[-1]

    monkeypatch.setattr(subprocess, "Popen", start_and_signal)
    if number == signal.SIGSTOP:
        # Not for a dead generator: the other one may be silent for a second on a busy machine.
        monkeypatch.setattr(session_module, "_SILENCE_SECONDS", 1.0)
    settings = replace(QUICK, processes=2, timeout=1.0)
    seconds = 600 if number == signal.SIGKILL else 10
    with Session(target, CALLS, settings) as session, pytest.raises(UnavailableError, match=word):
        session.run(constant(50, seconds))


def test_the_memory_of_messages_is_bounded() -> None:
    wide = [Call("images", np.zeros((3, 3_000_000), np.float32))] * 4
    session = Session("localhost:1", wide)
    assert [len(messages) for messages in session.messages] == [2] * 4


@pytest.mark.parametrize("name", ["retries", "quality"])
def test_settings_without_effect_are_refused(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="must be 0, got 1"):
        Settings(**{name: 1})  # type: ignore[arg-type]  # numbers


def test_mixes_are_read(tmp_path: Path) -> None:
    np.save(tmp_path / "queries.npy", QUERIES)
    (tmp_path / "mix.toml").write_text(
        '[[call]]\nindex = "a"\ndata = "queries.npy"\nshare = 4\nrows = "1:3"\n'
        "k = 5\ndiversity = 0.5\n"
        '[[call]]\nmethod = "PredictLabels"\nindex = "b"\ndata = "queries.npy"\nbatch = 2\n'
    )
    query_call, label_call = read_mix(tmp_path / "mix.toml")
    assert query_call.options == {"k": 5, "diversity": 0.5}
    assert (query_call.method, query_call.share, len(query_call.messages(0))) == ("Query", 4, 2)
    assert (label_call.method, label_call.share) == ("PredictLabels", 1)
    assert (label_call.batch, len(label_call.messages(0))) == (2, 3)


ONE_CALL = '[[call]]\nindex = "a"\ndata = "queries.npy"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must hold"),
        ("[[call", "TOML"),
        ('[[call]]\nindex = "a"', "data is missing"),
        ('[[call]]\nindex = "a"\ndata = "absent.npy"', "absent.npy"),
        (f"{ONE_CALL}kk = 5", "kk"),
        (f'{ONE_CALL}method = "Build"', "method"),
        (f"{ONE_CALL}batch = 7", "batch"),
        (f"{ONE_CALL}k = [5, 10]", "k"),
        (f"{ONE_CALL}share = [1, 2]", "call 1"),
        (f"{ONE_CALL}share = 0", "share"),
        (f"rate = 5\n{ONE_CALL}", "nothing else"),
    ],
)
def test_wrong_mixes_are_refused(tmp_path: Path, text: str, message: str) -> None:
    np.save(tmp_path / "queries.npy", QUERIES)
    (tmp_path / "mix.toml").write_text(text)
    with pytest.raises((InvalidArgumentError, TypeError), match=message):
        _ = [call.messages(0) for call in read_mix(tmp_path / "mix.toml")]


@pytest.fixture(scope="module")
def queries(client: Client, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    rng = np.random.default_rng(0)
    client.build("load", rng.standard_normal((300, 8), dtype=np.float32), replace=True)
    path = tmp_path_factory.mktemp("load") / "queries.npy"
    np.save(path, rng.standard_normal((40, 8), dtype=np.float32))
    yield path
    client.delete_index("load")


@pytest.fixture
def run(server: RunningServer, queries: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: object) -> Ran:
        words = ["load", *map(str, arguments)]
        if "--data" not in words and "--mix" not in words:
            words += ["load", "--data", str(queries)]
        if "--target" not in words:
            words += ["--target", server.target]
        return Ran(main.main(words), *capsys.readouterr())

    return run


def test_the_command_reports(run: Run, tmp_path: Path) -> None:
    json_path, page = tmp_path / "out" / "a.json", tmp_path / "out" / "a.html"
    words = ("--rate", 40, "--duration", 2, "--warm-up", 0.2, "-k", 5, "--search", "exact")
    ran = run(*words, "--require", "errors<1%", "--save", json_path, "--report", page)
    report = json.loads(json_path.read_text())
    # On a busy machine the run may be void, but the recorded figures are correct in any case.
    assert ran.code == (4 if report["void"] else 0), ran.err
    assert "latency, from when due" in ran.out
    assert report["codes"] == {"OK": 80}
    assert report["server"]["workers"] == 2
    assert report["by_call"][0]["call"] == "Query load, k 5, search exact"
    assert "data:image/svg" in page.read_text()
    assert '<span class="good">held</span>' in page.read_text()


def test_a_missed_requirement_sets_the_exit_code(run: Run) -> None:
    """The exit code is 3, or 4 if the run is void; --json prints the verdict too."""
    ran = run("--closed", 2, "--duration", 1, "--warm-up", 0, "--require", "rate>1000000", "--json")
    report = ran.json
    assert ran.code == (4 if report["void"] else 3)
    assert report["thresholds"][0]["held"] is False


def test_an_objective_that_never_holds_finds_no_rate(run: Run) -> None:
    ran = run("--objective", "p50<1us", "--rate", 40, "--duration", 1, "--warm-up", 0, "--json")
    report = ran.json
    search = report["search"]
    assert (search["objective"], search["rate"]) == (["p50<1us"], 0)
    assert {trial["held"] for trial in search["trials"]} == {False}
    assert ran.code in (3, 4)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rate", 5, "--target", "example.com:50051"], "another machine"),
        ([], "say how much"),
        (["--rate", 5, "--closed", 2], "means nothing beside"),
        (["--schedule", "5:5s", "--rate", 5], "means nothing beside"),
        (["--schedule", "fast"], "schedule must be"),
        (["--rate", 0.1, "--duration", 1], "not one call"),
        (["--rate", 5, "--require", "p99<20"], "unit"),
        (["--rate", 5, "--rows", "90:"], "none of the file"),
        (["--rate", 5, "--batch", 41], "batch"),
        (["--rate", 5, "--processes", 0], "processes"),
        (["--closed", 0], "closed"),
        (["--schedule", "5:5s", "--rate", 0], "means nothing beside"),
        (["--rate", 5, "--mix", "absent.toml", "--diversity", 0], "means nothing beside"),
        (["--objective", "quality>0.9"], "objective knows"),
        (["--objective", "rate>60"], "objective must be"),
        (["--objective", "p99>20ms"], "objective must be"),
        (["--rate", 5, "--save", "/dev/null/a.json"], "cannot be written"),
        (["--rate", 5, "--save", "/"], "cannot be written"),
        (["--rate", 5, "--mix", "absent.toml"], "absent.toml"),
    ],
)
def test_invalid_options_are_refused(run: Run, words: list[object], message: str) -> None:
    ran = run(*words)
    assert ran.code == 2
    assert message in ran.err


def test_a_mix_may_predict_labels(run: Run, client: Client, queries: Path, tmp_path: Path) -> None:
    documents = labelled_documents.documents(80)
    labels = labelled_documents.labels_of(documents)
    client.build("load-labels", documents, labels=labels, replace=True)
    np.save(tmp_path / "documents.npy", documents.toarray().astype(np.float32))
    (tmp_path / "mix.toml").write_text(
        f'[[call]]\nindex = "load"\ndata = "{queries}"\nbatch = 4\n'
        '[[call]]\nindex = "load-labels"\ndata = "documents.npy"\nmethod = "PredictLabels"\n'
        'mode = "neighbour_vote"\n'
    )
    ran = run("--mix", tmp_path / "mix.toml", "--rate", 40, "--duration", 1, "--json")
    client.delete_index("load-labels")
    report = ran.json
    assert report["codes"] == {"OK": 40}
    assert [row["calls"] > 5 for row in report["by_call"]] == [True, True]


def test_a_mix_may_write(run: Run, client: Client, tmp_path: Path) -> None:
    """Writes are made anew each time that their message is sent."""
    points = np.concatenate([QUERIES, QUERIES + 1])
    ids = [f"p-{row}" for row in range(len(points))]
    client.build("load-writes", points, ids=ids, replace=True)
    np.save(tmp_path / "points.npy", QUERIES)
    table = '[[call]]\nindex = "load-writes"\ndata = "points.npy"\n'
    (tmp_path / "mix.toml").write_text(
        f'{table}{table}method = "Upsert"\nbatch = 2\nfirst_id = 100\nid_prefix = "p-"\n'
        f'{table}method = "Delete"\nid_prefix = "p-"\n'
    )
    ran = run("--mix", tmp_path / "mix.toml", "--rate", 60, "--duration", 1, "--json")
    info = client.get_index("load-writes").writes
    [page] = client.scroll("load-writes")
    client.delete_index("load-writes")
    report = ran.json
    assert report["codes"] == {"OK": 60}
    writes = sum(row["calls"] for row in report["by_call"][1:])
    # One more write of each kind checks the mix, and others warm the server up.
    assert info is not None
    assert info.sequence >= writes + 2 > len(QUERIES)
    added = {f"p-{100 + row}" for row in range(len(QUERIES))}
    assert set(page.ids) == added | set(ids[len(QUERIES) :])


def test_ids_of_a_mix_count_from_row_0_of_the_file(tmp_path: Path) -> None:
    np.save(tmp_path / "points.npy", QUERIES)
    table: dict[str, Any] = {"index": "a", "data": "points.npy", "method": "Delete", "rows": "2:4"}
    options: list[dict[str, Any]] = [{}, {"first_id": 100}]
    for first, option in zip((0, 100), options, strict=True):
        messages = call_of(table | option, tmp_path).messages(0)
        ids = [list(writes_pb2.DeleteRequest.FromString(message).ids) for message in messages]
        assert sorted(ids) == [[first + 2], [first + 3]]


@pytest.mark.parametrize(
    ("options", "field"),
    [({"k": 5}, "k"), ({"first_id": -1}, "first_id"), ({"id_prefix": 1}, "id")],
)
def test_a_write_of_a_mix_is_checked(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgumentError, match=field):
        Call("a", QUERIES, options, method="Upsert").messages(0)


def test_ctrl_c_gives_the_report_so_far(
    server: RunningServer, client: Client, tmp_path: Path
) -> None:
    client.build("interrupted", QUERIES, replace=True)
    np.save(tmp_path / "queries.npy", QUERIES)
    json_path = tmp_path / "a.json"
    words = ("load", "interrupted", "--data", tmp_path / "queries.npy", "--rate", 50)
    options = ("--duration", 600, "--warm-up", 0, "--save", json_path)
    log = tmp_path / "log"
    with log.open("wb") as sink:
        process = start(server.target, *words, *options, stdout=sink)
    call_count = _calls(server)
    eventually(lambda: _calls(server) > call_count + 50, 60)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    client.delete_index("interrupted")
    report: dict[str, Any] = json.loads(json_path.read_text())
    assert report["interrupted"]
    assert 0 < report["calls"] < 20_000
    assert "Interrupted" in log.read_text()


def _calls(server: RunningServer) -> int:
    return server.log.count('"method": "Query"') + server.log.count("method=Query")
