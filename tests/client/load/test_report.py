"""Reports of load runs: figures combined from all processes, and verdicts on them."""

import copy
import html
import json
import math
from pathlib import Path

import grpc
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from divgrpc.errors import InvalidArgumentError
from divgrpc_client.load import Call, Settings, constant, parse_threshold, session, write_report
from divgrpc_client.load.page import page_of
from divgrpc_client.load.record import NOT_SENT, SAMPLE, Run, by_second, counted, latencies
from divgrpc_client.load.record import figures as figures_of
from divgrpc_client.load.report import Report, build_report, figure, judge, void_reasons
from divgrpc_client.load.schedule import Schedule
from divgrpc_client.load.session import Session
from divgrpc_client.load.settings import check_target
from divgrpc_client.load.text import notes, summary, tables
from divgrpc_client.reports.page import render
from support.checks.refusals import refused

BEGIN, SECONDS = 100.0, 4.0
OK = grpc.StatusCode.OK.value[0]
LATE = grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
REFUSAL = grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
CALL = Call("images", np.ones((5, 2)), {"k": 3})


def calls(
    latency: np.ndarray | float, count: int = 0, *, late: float = 0.0, code: int = OK
) -> np.ndarray:
    """Return calls that are due at regular intervals over the run; times are in seconds."""
    latency = np.broadcast_to(latency, count or np.size(latency))
    samples = np.zeros(len(latency), SAMPLE)
    samples["due"] = BEGIN + np.arange(len(latency)) * SECONDS / len(latency)
    samples["sent"] = samples["due"] + late
    samples["done"] = samples["due"] + latency
    samples["code"] = code
    return samples


def recorded(
    *parts: np.ndarray, rate: float = 100, closed: int = 0, busy: float = 0.0, **settings: int
) -> Run:
    load_settings = Settings(**settings)  # type: ignore[arg-type]  # counts and switches
    samples = counted([samples.tobytes() for samples in parts], BEGIN, BEGIN + SECONDS)
    return Run(
        *("localhost:1", [CALL], load_settings, None, constant(rate, SECONDS), closed),
        *(BEGIN, BEGIN + SECONDS, samples, [0.2, busy]),
    )


def report(*parts: np.ndarray) -> Report:
    return build_report(recorded(*parts))


@settings(deadline=None, derandomize=True, max_examples=30)
@given(st.lists(st.lists(st.floats(1e-4, 50), max_size=40), min_size=1, max_size=4))
def test_figures_are_those_of_all_calls(parts: list[list[float]]) -> None:
    """Percentiles are computed by nearest rank over the calls of all processes together."""
    run = recorded(*(calls(np.array(latency)) for latency in parts))
    whole = sorted(value * 1e6 for latency in parts for value in latency)
    figures = figures_of(latencies(run.samples))
    if not whole:
        assert set(figures.values()) == {None}
        return
    for percent in (50, 90, 99, 99.9):
        rank = math.ceil(percent / 100 * len(whole) - 1e-9)
        assert figures[f"p{percent:g}"] == pytest.approx(whole[rank - 1], rel=1e-5, abs=0.1)
    assert figures["max"] == pytest.approx(whole[-1], rel=1e-5, abs=0.1)
    assert figures["mean"] == pytest.approx(np.mean(whole), rel=1e-5, abs=0.1)


def test_only_calls_of_the_run_count() -> None:
    samples = calls(0.5, 8)
    samples["due"] = BEGIN + np.array([-1, -0.1, 0, 1, 2, 3.9, 4, 5])
    assert len(recorded(samples).samples) == 4


def test_latencies_are_counted_in_the_second_of_the_due_time() -> None:
    """`answered` counts a call in the second in which it ended."""
    samples = calls(0.001, 400)
    stall = (samples["due"] >= BEGIN + 1) & (samples["due"] < BEGIN + 2)
    samples["done"][stall] = BEGIN + 2.5
    rows = by_second(recorded(samples))
    assert [row["due"] for row in rows] == [100] * 4
    assert [row["answered"] for row in rows] == [100, 0, 200, 100]
    fast = pytest.approx(1000, abs=1)
    expected = [fast, pytest.approx(1e6, abs=2e4), fast, fast]
    assert [row["p50"] for row in rows] == expected


def test_codes_are_counted_and_fast_refusals_are_no_latency() -> None:
    """Latencies include calls that missed their deadline, but not refused or unsent ones."""
    load_report = report(calls(0.01, 80), calls(2.0, 10, code=LATE), calls(0.0, 6, code=REFUSAL))
    assert load_report["codes"] == {"OK": 80, "DEADLINE_EXCEEDED": 10, "RESOURCE_EXHAUSTED": 6}
    assert load_report["errors"] == pytest.approx(16 / 96)
    assert load_report["latency"]["p50"] == pytest.approx(1e4, rel=1e-5)
    assert load_report["latency"]["p95"] == pytest.approx(2e6, rel=1e-5)
    assert report(calls(0.0, 3, code=NOT_SENT))["codes"] == {"NOT_SENT": 3}


def test_answers_after_the_end_do_not_count_in_the_rate() -> None:
    """If answers after the end counted, a growing queue would look like a high rate."""
    late = report(calls(2.0, 400))
    assert late["rate"] == pytest.approx(50, abs=1)
    assert late["codes"] == {"OK": 400}


@pytest.mark.parametrize(
    ("late", "latency", "void"),
    [(0.0001, 0.005, False), (0.004, 0.005, True), (0.004, 0.5, False), (0.0015, 0.002, False)],
)
def test_late_calls_make_a_run_void(late: float, latency: float, void: bool) -> None:
    """A run is void if a large share of calls was sent late, by much compared with the latency."""
    assert bool(void_reasons(recorded(calls(latency, 400, late=late)))) is void


def test_a_stalled_server_does_not_make_a_run_void() -> None:
    """The run is valid, because the generator sent its calls on time while the server stalled."""
    assert void_reasons(recorded(calls(3.0, 400), busy=0.5)) == []


@pytest.mark.parametrize("closed", [0, 8])
def test_a_busy_generator_makes_a_run_void(closed: int) -> None:
    (reason,) = void_reasons(recorded(calls(0.01, 400), busy=0.97, closed=closed))
    assert "load generator 2 was busy" in reason


def test_calls_that_were_not_made_make_a_run_void() -> None:
    (reason,) = void_reasons(recorded(calls(0.01, 300)))
    assert "300 calls were made of 400" in reason
    for poisson, void in ((False, True), (True, False)):
        assert bool(void_reasons(recorded(calls(0.01, 60), rate=25, poisson=poisson))) is void
    assert void_reasons(recorded(calls(0.01, 300), closed=8)) == []
    assert "not one call was counted" in void_reasons(recorded(closed=1))


@pytest.mark.parametrize(
    ("text", "name", "bound", "is_held"),
    [
        ("p99<20ms", "p99", 20_000.0, True),
        ("p99.9 <= 1s", "p99.9", 1e6, True),
        ("p50<500us", "p50", 500.0, False),
        ("max>1ms", "max", 1000.0, True),
        ("errors<0.1%", "errors", 0.001, True),
        ("errors<=0", "errors", 0.0, True),
        ("rate>=450", "rate", 450.0, False),
        ("mean<11ms", "mean", 11_000.0, True),
        ("p75<11ms", "p75", 11_000.0, True),
    ],
)
def test_thresholds_are_read_and_judged(text: str, name: str, bound: float, is_held: bool) -> None:
    threshold = parse_threshold(text)
    assert threshold.name == name
    assert threshold.bound == pytest.approx(bound)
    samples = calls(0.01, 400)
    (one,) = judge(report(samples), recorded(samples), [threshold])
    assert (one["text"], one["held"]) == (text, is_held)


@pytest.mark.parametrize(
    "text",
    [
        *("p99", "p99<", "p99<20", "p99<20%", "p0<1ms", "p100<1ms", "errors<1ms", "rate>5ms"),
        *("speed>5", "p99=20ms", "p99<-1ms", "quality>0.9", "service_p99<1s", "rate>nan"),
    ],
)
def test_invalid_thresholds_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError):
        parse_threshold(text)


@pytest.mark.parametrize("code", [REFUSAL, grpc.StatusCode.UNAVAILABLE.value[0], NOT_SENT])
def test_a_latency_threshold_fails_if_too_many_calls_fail(code: int) -> None:
    """Failed calls may be the slow ones; a threshold on errors allows a share of failures."""
    thresholds = [parse_threshold("p99<20ms"), parse_threshold("max<20ms")]

    def outcomes(good: int, *more: str) -> list[tuple[object, object]]:
        samples = calls(0.01, good), calls(0.01, 1, code=code)
        limits = [*thresholds, *map(parse_threshold, more)]
        verdicts = judge(report(*samples), recorded(*samples), limits)
        return [(one["held"], one["too_many_errors"]) for one in verdicts]

    assert outcomes(399) == [(False, True)] * 2
    assert outcomes(399, "errors<1%") == [(True, False)] * 3
    assert outcomes(1999) == [(True, False)] * 2


def test_reports_are_json(tmp_path: Path) -> None:
    one = report(calls(0.01, 400))
    write_report(one, tmp_path / "new" / "a.json")
    again = json.loads((tmp_path / "new" / "a.json").read_text())
    assert again["latency"] == one["latency"]
    assert again["codes"] == {"OK": 400}


def test_pages_are_the_same_bytes() -> None:
    samples = calls(0.01, 400)
    one = report(samples)
    one["thresholds"] = judge(one, recorded(samples), [parse_threshold("p99<20ms")])
    text = render(page_of(one))
    assert text == render(page_of(copy.deepcopy(one)))
    assert "p99&lt;20ms" in text
    assert "VOID" in render(page_of(report()))


@pytest.mark.parametrize(
    ("rate", "words"), [(566.0, "566 calls a second"), (0.0, "none that was tried")]
)
def test_a_highest_rate_is_told_with_its_objective(rate: float, words: str) -> None:
    one = report(calls(0.01, 400))
    one["search"] = {"rate": rate, "objective": ["p99<1s", "errors<0.1%"], "trials": []}
    (note,) = notes(one)
    assert note.startswith(f"Highest rate with p99<1s and errors<0.1%: {words}.")
    assert note.endswith(
        "those of that trial." if rate else "those of the trial at the lowest rate."
    )
    assert html.escape(note) in render(page_of(one))


def test_a_run_interrupted_in_its_warm_up_does_not_blame_the_generator() -> None:
    run = recorded(busy=1.0)
    run.interrupted = True
    assert list(notes(build_report(run))) == ["Interrupted: no call was counted yet."]


def test_notes_name_what_limits_a_report() -> None:
    one = report(calls(0.01, 400))
    assert list(notes(one)) == []
    assert "400 calls in 4.0 s" in summary(one)
    one["interrupted"] = True
    assert list(notes(one)) == ["Interrupted: these are the figures up to then."]
    (closed,) = notes(build_report(recorded(calls(0.01, 400), closed=8)))
    assert closed.startswith("Closed loop")


@pytest.mark.parametrize(("closed", "start"), [(0, "due"), (8, "sent")])
def test_latency_is_labelled_with_its_start(closed: int, start: str) -> None:
    """Nothing is due in a closed loop, so its latency is counted from when a call was sent."""
    one = build_report(recorded(calls(0.01, 400), closed=closed))
    (_, times), *_ = tables(one)
    assert times[0][0] == f"latency, from when {start}"
    page = html.unescape(render(page_of(one)))
    assert f"Latency is counted from when a call was {start}" in page
    assert f"calls that were {start} in each second" in page


class Played(Session):
    """A session in which server and generator each hold up to a given number of calls a second."""

    def __init__(self, capacity: float, generator: float = 1e9) -> None:
        super().__init__("localhost:1", [CALL])
        self.capacity, self.generator = capacity, generator

    def run(self, schedule: Schedule, **_: object) -> Run:
        """Return the run that such a server and generator would give."""
        rate = schedule.steps[0].begin
        late = 0.5 if rate > self.generator else 0.0
        slow = 1.0 if rate > self.capacity else 0.01
        return recorded(calls(slow + late, round(rate * SECONDS), late=late), rate=rate)


GOAL = parse_threshold("p99<20ms")


@pytest.mark.parametrize("capacity", [40, 100, 137, 1000])
def test_search_finds_the_highest_rate(capacity: float) -> None:
    run, trials = Played(capacity).find_highest_rate([GOAL], 100, SECONDS, None)
    search = build_report(run, trials)["search"]
    assert capacity / 1.05 <= search["rate"] <= capacity
    assert run.schedule == constant(search["rate"], SECONDS)
    assert len(trials) < 20


def test_search_ends_if_no_rate_or_every_rate_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search also stops at a rate with too few calls to judge, or after a number of trials."""
    run, trials = Played(0).find_highest_rate([GOAL], 100, SECONDS, None)
    assert [trial["rate"] for trial in trials] == [100, 25, 6.25]
    assert run.schedule == constant(6.25, SECONDS)
    monkeypatch.setattr(session, "_TRIALS_MAX", 6)
    run, trials = Played(1e9).find_highest_rate([GOAL], 100, SECONDS, None)
    assert [trial["rate"] for trial in trials] == [100, 200, 400, 800, 1600, 3200]


def test_a_search_from_a_low_rate_goes_up() -> None:
    """A first trial with too few calls is not the result if its rate holds."""
    run, _ = Played(1000).find_highest_rate([GOAL], 1, SECONDS, None)
    assert 1000 / 1.05 <= run.schedule.steps[0].begin <= 1000


@pytest.mark.parametrize(
    ("capacity", "generator", "void"), [(300, 1e9, False), (1e9, 300, True), (170, 180, False)]
)
def test_a_search_that_is_limited_by_its_generator_is_void(
    capacity: float, generator: float, void: bool
) -> None:
    """The result would be the generator's capacity, unless the server fails first."""
    run, trials = Played(capacity, generator).find_highest_rate([GOAL], 100, SECONDS, None)
    one = build_report(run, trials)
    assert 100 < one["search"]["rate"] <= min(capacity, generator)
    assert bool(one["void"]) is void
    failed_rates = [trial["rate"] for trial in trials if not trial["held"]]
    reason = f"at {min(failed_rates):,.0f} calls a second, calls were sent late: p99 500.0 ms"
    assert [text.startswith(reason) for text in one["void"]] == [True] * void


def test_this_machine_may_be_loaded() -> None:
    targets = "localhost:5 127.0.0.1:5 127.9.9.9:5 [::1]:5 dns:///localhost:5 unix:/tmp/socket"
    for target in targets.split():
        assert check_target(target) == target


@pytest.mark.parametrize(
    "target",
    ["example.com:5", "10.0.0.1:5", "0.0.0.0:5", "ipv4:127.0.0.1:5,10.0.0.1:5", "dns:///host:5",
     "localhost.example.com:5", "dns://8.8.8.8/localhost:5", "[2001:db8::1]:5", "xds:///x", ""],
)  # fmt: skip
def test_another_machine_is_refused(target: str) -> None:
    with refused("target"):
        check_target(target)
    if target:
        assert check_target(target, allow_remote=True) == target


def test_any_percentile_can_be_required() -> None:
    samples = calls(np.linspace(0.001, 0.4, 400))
    one, run = report(samples), recorded(samples)
    assert figure(one, run, "p75") == pytest.approx(3e5, rel=2e-3)
    assert figure(one, run, "p99.999") == one["latency"]["max"]
    assert figure(one, run, "mean") == one["latency"]["mean"]
