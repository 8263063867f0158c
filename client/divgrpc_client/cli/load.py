"""The command `divgrpc load`: its options and the load test that they describe."""

import argparse
import os
import sys
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Final

from divgrpc.errors import InvalidArgumentError
from divgrpc_client.cli import options
from divgrpc_client.formats import json_output
from divgrpc_client.messages.options import QueryOptions

# Every command imports this module, and only `load` needs the package that sends load.
if TYPE_CHECKING:
    from divgrpc_client.load import Call, Report, Schedule, Settings

_EXIT_MISSED: Final = 3
_EXIT_VOID: Final = 4
_EXIT_INTERRUPTED: Final = 130
_RATE, _SECONDS = 100.0, 10.0
_BOUND: Final = "FIGURE<BOUND"


def load(arguments: argparse.Namespace) -> int:
    """Send calls to a server at a set rate, and report latency, errors and throughput.

    Latency is measured from the time at which a call was due, even if it was sent later. So the
    latencies include the delays that a stalling server causes. With --closed no call is due, and
    latency is measured from the time at which a call was sent.

    A mix is a TOML file with a [[call]] table for each kind of call. Each table must have index and
    data. It may have key, index_base, dims, rows, batch, share, method and any parameter of divgrpc
    query or predict, but no filter. The method is "Query", "PredictLabels", "Upsert" or "Delete".
    Writes change the index; they have the options first_id and id_prefix.

    The exit code is 3 if a bound of --require was missed, or if no rate met --objective. It is 4 if
    the run is VOID, which means that the load generator, not the server, was the bottleneck. More
    --processes may help, or a generator on another machine. Ctrl-C ends a run early, and the report
    then covers the calls made so far.

    Examples:
      divgrpc load images --data queries.npy --rate 500 --duration 30
      divgrpc load images --data queries.npy --rate 500 --poisson --require 'p99<20ms'
      divgrpc load images --data queries.npy --schedule '100..1000/30s'    a ramp
      divgrpc load images --data queries.npy --schedule '100:10s,200:10s'  steps
      divgrpc load images --data queries.npy --objective 'p99<20ms'        find the highest rate
      divgrpc load images --data queries.npy --closed 64    keep 64 calls in flight
      divgrpc load --mix mix.toml --rate 500 --report load.html --save load.json
    """
    with options.with_extra("load", "load", "cli"):
        from divgrpc_client.formats.tables import console
        from divgrpc_client.load import run_load, write_report
        from divgrpc_client.load.settings import check_target
        from divgrpc_client.load.text import show
    if arguments.report is not None:
        with options.with_extra("report", "a report", "report"):
            from divgrpc_client.load.page import write_html
    settings, schedule = _settings(arguments), _schedule(arguments)
    check_target(arguments.target, allow_remote=settings.allow_remote)
    calls = _calls(arguments)
    for name in ("save", "report"):
        _make_folder(name, getattr(arguments, name))
    seconds = f"{settings.warm_up + schedule.seconds:,.0f} s"
    status = f"Each run takes {seconds}; Ctrl-C ends it early"
    is_watched = sys.stderr.isatty() and not arguments.json
    with console(stderr=True).status(status) if is_watched else nullcontext():
        report = run_load(
            *(arguments.target, calls, schedule, settings),
            closed=arguments.closed or 0,
            objectives=arguments.objective or (),
            require=arguments.require or (),
        )
    if arguments.json:
        json_output.show(report)
    else:
        show(report)
    if arguments.save is not None:
        write_report(report, Path(arguments.save))
    if arguments.report is not None:
        write_html(report, Path(arguments.report))
    return _code(report)


def _code(report: "Report") -> int:
    if report["interrupted"]:
        return _EXIT_INTERRUPTED
    if report["void"]:
        return _EXIT_VOID
    is_met = all(outcome["held"] for outcome in report["thresholds"])
    has_rate = report["search"] is None or report["search"]["rate"] > 0
    return 0 if is_met and has_rate else _EXIT_MISSED


def _settings(arguments: argparse.Namespace) -> "Settings":
    from divgrpc_client.load import Settings

    values = {field.name: getattr(arguments, field.name, None) for field in fields(Settings)}
    values["seed"] = arguments.traffic_seed
    values |= options.security(arguments)
    return Settings(**{name: value for name, value in values.items() if value is not None})


def _schedule(arguments: argparse.Namespace) -> "Schedule":
    from divgrpc_client.load import constant, parse_schedule

    if arguments.schedule is not None:
        _refuse(arguments, "schedule", "rate", "duration", "closed", "objective")
        return parse_schedule(arguments.schedule)
    if arguments.closed is not None:
        _refuse(arguments, "closed", "rate", "poisson", "objective")
        if arguments.closed < 1:
            raise InvalidArgumentError("closed", f"--closed must be 1 or more: {arguments.closed}")
    elif arguments.rate is None and not arguments.objective:
        raise InvalidArgumentError(
            "rate", "say how much: --rate, --schedule, --closed or --objective"
        )
    rate = _RATE if arguments.rate is None else arguments.rate
    seconds = _SECONDS if arguments.duration is None else arguments.duration
    schedule = constant(rate, seconds)
    if schedule.calls < 1:
        raise InvalidArgumentError("rate", f"{rate:g} a second for {seconds:g} s is not one call")
    return schedule


def _calls(arguments: argparse.Namespace) -> "list[Call]":
    from divgrpc_client.load.calls import call_of, read_mix

    settings = options.options_in(arguments, QueryOptions)
    if arguments.mix is not None:
        _refuse(arguments, "mix", "name", "data", "key", "dims", "rows", "batch", *settings)
        return read_mix(Path(arguments.mix))
    if arguments.name is None or arguments.data is None:
        raise InvalidArgumentError("name", "say what to ask: NAME and --data, or --mix")
    names = ("data", "key", "index_base", "dims", "rows", "batch")
    values = {name: getattr(arguments, name) for name in names}
    table = {name: value for name, value in values.items() if value is not None}
    return [call_of({"index": arguments.name, **table, **settings}, Path())]


def _refuse(arguments: argparse.Namespace, option: str, *names: str) -> None:
    """Raise an error if one of the options `names` is set together with `option`."""
    for name in names:
        value = getattr(arguments, name, None)
        if value is not None and value is not False:
            flag = "NAME" if name == "name" else f"--{name.replace('_', '-')}"
            raise InvalidArgumentError(name, f"{flag} means nothing beside --{option}")


def _make_folder(name: str, file: str | None) -> None:
    """Make the folder of an output file; raise before the run if the file cannot be written."""
    if file is None:
        return
    path = Path(file)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        writable = os.access(path if path.exists() else path.parent, os.W_OK) and not path.is_dir()
    except OSError:
        writable = False
    if not writable:
        raise InvalidArgumentError(name, f"--{name}: {path} cannot be written")


def add_load(verb: argparse.ArgumentParser) -> None:
    """Add the options of `load`."""
    verb.add_argument("name", metavar="NAME", nargs="?", help="The name of the index.")
    data = "A file of queries, one vector per row; needed unless --mix is given."
    options.add_flags(verb, ("--data", "FILE", data))
    options.add_reading(verb)
    options.add_flags(
        verb,
        options.rows_flag("Draw from"),
        ("--batch", "N", "Rows in a call (default 1)."),
        ("--mix", "TOML", "Send a mix of calls, described in this file, not queries of NAME."),
    )
    title = "rates; one of --rate, --schedule, --closed and --objective is needed"
    _add_rates(verb.add_argument_group(title))
    in_flight = "Maximum of calls in flight; more are not sent and count as errors (default 10000)."
    # These options set the fields of `Settings`. Its docstring explains them for callers in Python.
    options.add_flags(
        verb.add_argument_group("calls"),
        ("--warm-up", "SECONDS", "Send calls for this long before calls are counted (default 2)."),
        ("--processes", "N", "Number of processes that send calls (default 1)."),
        ("--channels", "N", "Number of connections that each process opens (default 4)."),
        ("--max-in-flight", "N", in_flight),
        ("--traffic-seed", "N", "Draw times and calls from this seed (default 0)."),
        ("--allow-remote", "", "Allow a server on another machine."),
    )
    group = verb.add_argument_group("reports")
    text = (
        "Exit with 3 unless this bound holds, such as p99<20ms, errors<0.1%% or rate>450. May be "
        "repeated."
    )
    options.add_flags(group, ("--require", _BOUND, text), action="append")
    page = "Write the report to this file as a page with charts; needs divgrpc[report]."
    save = "Write the report to this file as JSON."
    options.add_flags(group, ("--save", "JSON", save), ("--report", "HTML", page))
    options.add_options(verb, QueryOptions)


def _add_rates(group: "argparse._ActionsContainer") -> None:
    schedule = (
        "Change the rate over time: steps of RATE:DURATION, or ramps of FROM..TO/DURATION, such as "
        "100:10s,100..500/30s."
    )
    closed = "Keep N calls in flight instead of a rate; latency then begins when a call is sent."
    objective = (
        "Find the highest rate that keeps this bound, written as in --require. The search starts "
        "at --rate (default 100), doubles the rate while the bound holds or quarters the rate "
        "until the bound holds, and then narrows the gap to 5 %%. Each trial lasts --warm-up plus "
        "--duration. May be repeated."
    )
    duration = "How long to hold the rate, or each rate that --objective tries (default 10)."
    rate = "Calls per second, even if earlier calls are unanswered (default 100 with --objective)."
    options.add_flags(
        group,
        ("--rate", "CALLS", rate),
        ("--duration", "SECONDS", duration),
        ("--schedule", "STEPS", schedule),
        ("--closed", "N", closed),
        ("--poisson", "", "Send calls at random times (a Poisson process), not evenly spaced."),
    )
    options.add_flags(group, ("--objective", _BOUND, objective), action="append")
