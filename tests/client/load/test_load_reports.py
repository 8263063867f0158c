"""Figures of a run: put together from all processes, judged, compared, shown."""

import copy
import math
from dataclasses import replace
from pathlib import Path

import grpc
import numpy as np
import pytest

from divgrpc.errors import InvalidArgumentError
from divgrpc_client.load import words
from divgrpc_client.load.highest import Tried, find_highest_rate, search
from divgrpc_client.load.orders import NOT_SENT, SAMPLE, Sent
from divgrpc_client.load.page import page
from divgrpc_client.load.recordings import Recording
from divgrpc_client.load.results import (
    Report,
    build_report,
    figure,
    judged,
    read_report,
    void_reasons,
    write_report,
)
from divgrpc_client.load.schedules import Schedule, constant
from divgrpc_client.load.sessions import Session, Trialled
from divgrpc_client.load.targets import check_target, is_loopback, port_of
from divgrpc_client.load.thresholds import parse_threshold
from divgrpc_client.load.traffic import Call
from divgrpc_client.reports.page import render

BEGIN, SECONDS = 100.0, 4.0
OK = grpc.StatusCode.OK.value[0]
LATE = grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
REFUSED = grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]


def recording(processes: int = 1) -> Recording:
    """Return an empty recording of four seconds."""
    return Recording(BEGIN, BEGIN + SECONDS, calls=1, processes=processes, timeout=10)


def sent(samples: np.ndarray, *, busy: float = 0.0, lags: tuple[float, ...] = ()) -> Sent:
    """Return what a process would tell."""
    return Sent(samples.tobytes(), {}, [], 0, list(lags), busy)


def calls(
    latency: np.ndarray | float, count: int = 0, *, late: float = 0.0, code: int = OK
) -> np.ndarray:
    """Return calls due evenly over the four seconds; `latency` and `late` in seconds."""
    latency = np.broadcast_to(latency, count or np.size(latency))
    found = np.zeros(len(latency), SAMPLE)
    found["due"] = BEGIN + np.arange(len(latency)) * SECONDS / len(latency)
    found["sent"] = found["due"] + late
    found["done"] = found["due"] + latency
    found["code"] = code
    return found


def trialled(seen: Recording, *, rate: float = 100, closed: int = 0) -> Trialled:
    """Return a trial of four seconds that saw this."""
    return Trialled(constant(rate, SECONDS), closed, seen)


def report(*parts: np.ndarray, rate: float = 100) -> Report:
    """Return the report of some calls."""
    seen = recording()
    for part in parts:
        seen.add(0, sent(part), BEGIN + 1)
    session = Session("localhost:1", [Call("images", np.ones((5, 2)), {"k": 3})])
    return build_report(session, trialled(seen, rate=rate))


def test_processes_are_put_together() -> None:
    """Percentiles of three processes are those of all their calls, not means of theirs."""
    rng = np.random.default_rng(0)
    parts = [rng.lognormal(mean, 1, 3000) / 1e3 for mean in (0, 1, 3)]
    seen = recording(processes=3)
    for place, latency in enumerate(parts):
        for chunk in np.array_split(calls(latency), 7):
            seen.add(place, sent(chunk), BEGIN + 1)
    whole = np.concatenate(parts) * 1e6
    found = seen.latency.figures()
    assert seen.codes.total == len(whole)
    for percent in (50, 90, 99, 99.9):
        rank = round(percent / 100 * len(whole))
        assert found[f"p{percent:g}"] == pytest.approx(np.sort(whole)[rank - 1], rel=2e-3)
    assert found["max"] == pytest.approx(whole.max(), rel=2e-3)
    assert found["mean"] == pytest.approx(whole.mean(), rel=2e-3)


def test_only_calls_of_the_run_count() -> None:
    """What was due in the warm-up or after the end is left out, whenever it was answered."""
    seen = recording()
    samples = calls(0.5, 8)
    samples["due"] = BEGIN + np.array([-1, -0.1, 0, 1, 2, 3.9, 4, 5])
    seen.add(0, sent(samples), BEGIN + 5)
    assert seen.codes.total == 4


def test_seconds_are_those_calls_were_due_in() -> None:
    """A stall shows in the second that calls were due in, throughput where they were answered."""
    samples = calls(0.001, 400)
    stalled = (samples["due"] >= BEGIN + 1) & (samples["due"] < BEGIN + 2)
    samples["done"][stalled] = BEGIN + 2.5
    seen = recording()
    seen.add(0, sent(samples), BEGIN + 4)
    rows = seen.by_second()
    assert [row["due"] for row in rows] == [100] * 4
    assert [row["answered"] for row in rows] == [100, 0, 200, 100]
    assert [row["p50"] for row in rows] == [1000, pytest.approx(1e6, abs=2e4), 1000, 1000]


def test_old_seconds_are_closed_and_stay_right() -> None:
    """Figures of seconds whose samples are thrown away are those that they had."""
    kept, thrown = (
        Recording(0, 1e9, calls=1, processes=1, timeout=timeout) for timeout in (1e6, 1.0)
    )
    samples = calls(np.random.default_rng(1).random(3000))
    samples["due"] = np.sort(np.random.default_rng(2).random(3000) * 30)
    samples["done"] = samples["due"] + 0.5
    for seen in (kept, thrown):
        for chunk in np.array_split(samples, 40):
            seen.add(0, sent(chunk), 1)
    assert kept.by_second() == thrown.by_second()
    assert len(thrown._seconds._open) < 6


def test_codes_are_counted_and_fast_refusals_are_no_latency() -> None:
    """A deadline missed counts with its time; what was refused or never sent has none."""
    found = report(calls(0.01, 80), calls(2.0, 10, code=LATE), calls(0.0, 6, code=REFUSED))
    assert found["codes"] == {"OK": 80, "DEADLINE_EXCEEDED": 10, "RESOURCE_EXHAUSTED": 6}
    assert found["errors"] == pytest.approx(16 / 96)
    assert found["latency"]["p50"] == pytest.approx(1e4, rel=2e-3)
    assert found["latency"]["p95"] == pytest.approx(2e6, rel=2e-3)
    assert report(calls(0.0, 3, code=NOT_SENT))["codes"] == {"NOT_SENT": 3}


def test_a_rate_counts_what_came_in_time() -> None:
    """Answers after the end are no throughput: a queue that grew would look like speed."""
    seen = recording()
    seen.add(0, sent(calls(2.0, 400)), BEGIN + 4)
    assert seen.rate == pytest.approx(50, abs=1)
    assert seen.codes.answered == 400


def test_the_curve_ends_where_the_count_does() -> None:
    """No percentile is told that has not one call above it."""
    curve = report(calls(0.01, 400))["curve"]
    assert curve[0][0] == 0
    assert 99 < curve[-1][0] <= 100 * (1 - 1 / 400) + 1e-9


@pytest.mark.parametrize(
    ("late", "latency", "void"),
    [(0.0001, 0.005, False), (0.004, 0.005, True), (0.004, 0.5, False), (0.0015, 0.002, False)],
)
def test_late_calls_make_a_run_void(late: float, latency: float, void: bool) -> None:
    """It is void where lateness is much, and much of the latency it is part of."""
    seen = recording()
    seen.add(0, sent(calls(latency, 400, late=late)), BEGIN + 1)
    assert bool(void_reasons(trialled(seen))) is void


def test_a_stalled_server_makes_no_run_void() -> None:
    """A generator that was on time did its part, whatever became of the calls."""
    seen = recording()
    seen.add(0, sent(calls(3.0, 400), busy=0.5), BEGIN + 1)
    assert void_reasons(trialled(seen)) == []


def test_a_busy_generator_makes_a_run_void() -> None:
    """One process that ran or waited for a core all the time is enough, in either kind of loop."""
    for closed in (0, 8):
        seen = recording(processes=2)
        seen.add(0, sent(calls(0.01, 400), busy=1.0), BEGIN + 1)
        seen.add(1, sent(calls(0.01, 0), busy=3.9), BEGIN + 2)
        (reason,) = void_reasons(trialled(seen, closed=closed))
        assert "load generator 2 was busy" in reason


def test_calls_that_were_not_made_make_a_run_void() -> None:
    """So does a closed loop whose event loop lagged, and a run without a call."""
    seen = recording()
    seen.add(0, sent(calls(0.01, 300)), BEGIN + 1)
    (reason,) = void_reasons(trialled(seen, rate=100))
    assert "300 calls were made of 400" in reason
    few = recording()
    few.add(0, sent(calls(0.01, 60)), BEGIN + 1)
    for poisson, void in ((False, True), (True, False)):
        trial = replace(trialled(few, rate=25), poisson=poisson)
        assert bool(void_reasons(trial)) is void
    lagged = recording()
    lagged.add(0, sent(calls(0.01, 400), lags=(0.008,) * 50), BEGIN + 1)
    assert void_reasons(trialled(lagged)) == []
    (reason,) = void_reasons(trialled(lagged, closed=8))
    assert "lagged" in reason
    assert "not one call was counted" in void_reasons(trialled(recording(), closed=1))


@pytest.mark.parametrize(
    ("text", "name", "bound", "held"),
    [
        ("p99<20ms", "p99", 20_000.0, True),
        ("p99.9 <= 1s", "p99.9", 1e6, True),
        ("p50<500us", "p50", 500.0, False),
        ("max>1ms", "max", 1000.0, True),
        ("service_p99<20ms", "service_p99", 20_000.0, True),
        ("errors<0.1%", "errors", 0.001, True),
        ("errors<=0", "errors", 0.0, True),
        ("rate>=450", "rate", 450.0, False),
        ("quality>0.95", "quality", 0.95, False),
        ("p75<11ms", "p75", 11_000.0, True),
    ],
)
def test_thresholds_are_read_and_judged(text: str, name: str, bound: float, held: bool) -> None:
    """A bound holds or not by the figure it names; what was not measured does not hold."""
    threshold = parse_threshold(text)
    assert threshold.name == name
    assert threshold.bound == pytest.approx(bound)
    (one,) = judged(report(calls(0.01, 400)), [threshold])
    assert (one["text"], one["held"]) == (text, held)


@pytest.mark.parametrize(
    "text", ["p99", "p99<", "p99<20", "p99<20%", "p0<1ms", "p100<1ms", "errors<1ms", "rate>5ms",
             "speed>5", "p99=20ms", "p99<-1ms", "quality>nan"]
)  # fmt: skip
def test_what_is_no_threshold_is_refused(text: str) -> None:
    """A time without its unit too."""
    with pytest.raises(InvalidArgumentError):
        parse_threshold(text)


@pytest.mark.parametrize("code", [REFUSED, grpc.StatusCode.UNAVAILABLE.value[0], NOT_SENT])
def test_a_latency_does_not_hold_where_calls_fail(code: int) -> None:
    """Those that failed may be the slow ones, unless somebody says how many may fail."""
    wanted = [parse_threshold("p99<20ms"), parse_threshold("service_max<20ms")]
    failed = report(calls(0.01, 399), calls(0.01, 1, code=code))
    assert [(one["held"], one["too_many_errors"]) for one in judged(failed, wanted)] == [
        (False, True)
    ] * 2
    failed["thresholds"] = judged(failed, wanted)
    assert words.thresholds(failed)[0][2] == "MISSED: too many calls failed"
    allowed = [*wanted, parse_threshold("errors<1%")]
    assert [one["held"] for one in judged(failed, allowed)] == [True] * 3
    few = report(calls(0.01, 1999), calls(0.01, 1, code=code))
    assert [one["held"] for one in judged(few, wanted)] == [True] * 2


def test_rows_count_as_calls_do() -> None:
    """What is answered after the end is in neither rate."""
    one = report(calls(0.01, 300), calls(9.0, 100))
    assert (one["rate"], one["rows_rate"]) == (75, 75)


def test_reports_are_compared() -> None:
    """Every figure that both have stands beside the other, told which way it went."""
    one, other = report(calls(0.01, 400)), report(calls(0.02, 400))
    rows = {row[0]: row[1:] for row in words.comparison(one, other)}
    assert rows["p99"][-1] == "worse"
    assert float(rows["p99"][2]) == pytest.approx(2, rel=2e-3)
    assert rows["rate"][-1] == "same"
    assert "quality" not in rows
    assert {row[-1] for row in words.comparison(one, one)} == {"same"}
    assert words.differences(one, other) == []
    failed = report(calls(0.01, 400, code=REFUSED))
    rows = {row[0]: row[1:] for row in words.comparison(one, failed)}
    assert rows["p99"][1:] == ("not measured", "", "only A has it")
    assert words.comparison(failed, one)[0][-1] == "only B has it"


def test_shares_are_compared_by_what_is_missing() -> None:
    """From 1 to .951 is a small part of it, and a large one of what was missed."""
    one, other = (report(calls(0.01, 400)) for _ in range(2))
    for share, verdict in ((1.0, "same"), (0.996, "same"), (0.951, "worse")):
        for each, found in ((one, 1.0), (other, share)):
            each["quality"] = {"same_ids": found, "measured": []}
        assert {row[0]: row[-1] for row in words.comparison(one, other)}["quality"] == verdict


def test_what_cannot_be_compared_is_told() -> None:
    """Another setting, another machine, a void or an interrupted run."""
    one = report(calls(0.01, 400))
    other = copy.deepcopy(one) | {"interrupted": True, "void": ["it was late"]}
    other["setting"]["mix"][0]["options"] = {"k": 4}
    other["environment"]["processor"] = "another"
    assert words.differences(one, other) == [
        "B is void: it was late",
        "B was interrupted",
        "they differ in mix",
        "they are of two machines",
    ]


def test_reports_are_written_and_read(tmp_path: Path) -> None:
    """What is read is what was written; anything else is refused."""
    one = report(calls(0.01, 400))
    write_report(one, tmp_path / "new" / "a.json")
    again = read_report(tmp_path / "new" / "a.json")
    assert again["latency"] == one["latency"]
    for text in ("{", "[]", "{}", '{"what": "divgrpc load", "format": 99}'):
        (tmp_path / "b.json").write_text(text)
        with pytest.raises(InvalidArgumentError):
            read_report(tmp_path / "b.json")
    with pytest.raises(InvalidArgumentError):
        read_report(tmp_path / "absent.json")


def test_pages_are_the_same_bytes() -> None:
    """Equal reports have equal pages, and one without a call has a page too."""
    one = report(calls(0.01, 400))
    one["thresholds"] = judged(one, [parse_threshold("p99<20ms")])
    assert render(page(one)) == render(page(copy.deepcopy(one)))
    assert "p99&lt;20ms" in render(page(one))
    assert "VOID" in render(page(report()))


@pytest.mark.parametrize("capacity", [3, 100, 137, 1000, 5000])
def test_search_finds_the_highest_rate(capacity: float) -> None:
    """The highest rate that held is within a twentieth of the highest there is."""
    tried = search(lambda rate: Tried(rate, rate <= capacity), 100)
    held = max(one.rate for one in tried if one.held)
    assert capacity / 1.05 <= held <= capacity
    assert len(tried) < 20


@pytest.mark.parametrize(
    ("capacity", "generator", "void"), [(300, 1e9, False), (1e9, 300, True), (170, 180, False)]
)
def test_a_search_that_its_generator_ends_is_void(
    capacity: float, generator: float, void: bool
) -> None:
    """It found what the generator can, unless at a lower rate the server failed by itself."""

    class Played(Session):
        def run(self, schedule: Schedule, **_: object) -> Trialled:
            rate = schedule.steps[0].begin
            late = 0.5 if rate > generator else 0.0
            slow = 1.0 if rate > capacity else 0.01
            seen = recording()
            seen.add(0, sent(calls(slow + late, round(rate * SECONDS), late=late)), BEGIN + 1)
            return trialled(seen, rate=rate)

    session = Played("localhost:1", [Call("images", np.ones((5, 2)))])
    found, _ = find_highest_rate(session, [parse_threshold("p99<20ms")], begin=100, seconds=SECONDS)
    assert 100 < found["search"]["rate"] <= min(capacity, generator)
    assert found["search"]["bound_by_generator"] is void
    assert bool(found["void"]) is void


def test_search_ends_where_nothing_holds() -> None:
    """It goes down to where so few calls say nothing, and not on for ever where all holds."""
    tried = search(lambda rate: Tried(rate, held=False), 100, least=5)
    assert [one.rate for one in tried] == [100, 25, 6.25]
    assert len(search(lambda rate: Tried(rate, held=True), 1)) == 24


@pytest.mark.parametrize(
    "target",
    ["localhost:5", "127.0.0.1:5", "127.9.9.9:5", "[::1]:5", "dns:///localhost:5",
     "ipv4:127.0.0.1:5,127.0.0.2:5", "unix:/tmp/socket", "ipv6:[::1]:5"],
)  # fmt: skip
def test_this_machine_may_be_loaded(target: str) -> None:
    """Every way to write a loopback address is one."""
    assert check_target(target) == target


@pytest.mark.parametrize(
    "target",
    ["example.com:5", "10.0.0.1:5", "0.0.0.0:5", "ipv4:127.0.0.1:5,10.0.0.1:5", "dns:///host:5",
     "localhost.example.com:5", "dns://8.8.8.8/localhost:5", "[2001:db8::1]:5", "xds:///x", ""],
)  # fmt: skip
def test_another_machine_is_refused(target: str) -> None:
    """Unless it is said to be meant."""
    with pytest.raises(InvalidArgumentError) as caught:
        check_target(target)
    assert caught.value.field == "target"
    if target:
        assert check_target(target, allow_remote=True) == target


def test_ports_are_those_of_this_machine() -> None:
    """A server is looked for by its port, here alone."""
    assert port_of("127.0.0.1:50051") == 50051
    assert port_of("example.com:50051") is None
    assert port_of("unix:/tmp/socket") is None
    assert not is_loopback("unknown")


def test_a_percentile_that_no_table_has_is_found() -> None:
    """It comes from the histogram, which the report has whole."""
    found = report(calls(np.linspace(0.001, 0.4, 400), late=0.0005))
    assert figure(found, "p75") == pytest.approx(3e5, rel=2e-3)
    assert figure(found, "service_p75") == pytest.approx(3e5 - 500, rel=2e-3)
    assert figure(found, "p99.999") == found["latency"]["max"]
    assert math.isfinite(figure(found, "mean") or math.nan)
