"""`divgrpc load`: the options of the command line to a run, and the run to what is shown."""

import argparse
import os
import sys
import zlib
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

from divgrpc.errors import InvalidArgumentError
from divgrpc_client.formats import json_output
from divgrpc_client.formats.extras import extra
from divgrpc_client.formats.files import pick_rows, read_vectors
from divgrpc_client.load import showing, words
from divgrpc_client.load.points import Points
from divgrpc_client.load.results import Report, read_report, write_report
from divgrpc_client.load.running import run_load
from divgrpc_client.load.schedules import Schedule, constant, parse_schedule
from divgrpc_client.load.sessions import Settings
from divgrpc_client.load.targets import check_target
from divgrpc_client.load.traffic import Call, read_mix
from divgrpc_client.messages.options import QueryOptions
from divgrpc_protos.arrays import row_count, take

MISSED: Final = 3
VOID: Final = 4
_INTERRUPTED: Final = 130
_RATE, _SECONDS = 100.0, 10.0
_BESIDE_COMPARE: Final = {"compare", "json", "target", "run", "table"}
# Of the command line, by what the library calls them.
_SETTINGS: Final = {
    "warm_up": "warm_up",
    "processes": "processes",
    "channels": "channels",
    "timeout": "timeout",
    "retries": "retries",
    "max_in_flight": "max_in_flight",
    "quality": "quality",
    "traffic_seed": "seed",
}


def run(arguments: argparse.Namespace) -> int:
    """Do what the command line says; returns the exit code."""
    if arguments.compare is not None:
        return _compare(arguments)
    settings = _settings(arguments)
    schedule = _schedule(arguments)
    check_target(arguments.target, allow_remote=settings.allow_remote)
    calls = _calls(arguments)
    write_html = _page_writer(arguments)
    for name in ("save", "report"):
        _make_folder(arguments, name)
    watched = sys.stderr.isatty() and not arguments.json
    with showing.live() if watched else nullcontext() as tell:
        report = run_load(
            arguments.target,
            calls,
            schedule,
            settings,
            closed=arguments.closed or 0,
            objectives=arguments.objective,
            require=arguments.require,
            tell=tell,
        )
    if arguments.json:
        json_output.show(report)
    else:
        showing.show(report)
    if arguments.save is not None:
        write_report(report, Path(arguments.save))
    if write_html is not None:
        write_html(report, Path(arguments.report))
    return _code(report)


def _code(report: Report) -> int:
    if report["interrupted"]:
        return _INTERRUPTED
    if report["void"]:
        return VOID
    held = all(one["held"] for one in report["thresholds"])
    found = report["search"] is None or report["search"]["rate"] > 0
    return 0 if held and found else MISSED


def _compare(arguments: argparse.Namespace) -> int:
    _refuse(arguments, "compare", *sorted(vars(arguments).keys() - _BESIDE_COMPARE))
    one, other = (_comparable(name) for name in arguments.compare)
    if arguments.json:
        heads = ("figure", "a", "b", "ratio", "verdict")
        rows = [dict(zip(heads, row, strict=True)) for row in words.comparison(one, other)]
        json_output.show({"notes": words.differences(one, other), "figures": rows})
    else:
        showing.show_comparison(one, other)
    return VOID if one["void"] or other["void"] else 0


def _comparable(name: str) -> Report:
    """Read a report; raises `InvalidArgumentError` where what a comparison needs is not in it."""
    report = read_report(Path(name))
    try:
        words.comparison(report, report)
        words.differences(report, report)
    except (LookupError, TypeError, ValueError, AttributeError, zlib.error) as error:
        raise InvalidArgumentError("compare", f"{name} is cut or was changed: {error!r}") from None
    return report


def _settings(arguments: argparse.Namespace) -> Settings:
    given: dict[str, Any] = {
        name: value
        for option, name in _SETTINGS.items()
        if (value := getattr(arguments, option)) is not None
    }
    return Settings(poisson=arguments.poisson, allow_remote=arguments.allow_remote, **given)


def _schedule(arguments: argparse.Namespace) -> Schedule:
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


def _calls(arguments: argparse.Namespace) -> list[Call]:
    options = {n: getattr(arguments, n) for n in QueryOptions.__annotations__ if n in arguments}
    if arguments.mix is not None:
        _refuse(
            arguments, "mix", "name", "data", "key", "dims", "rows", "batch", "points", *options
        )
        return read_mix(Path(arguments.mix))
    if arguments.name is None or arguments.data is None:
        raise InvalidArgumentError("name", "say what to ask: NAME and --data, or --mix")
    path = Path(arguments.data)
    vectors = read_vectors(path, arguments.key, base=arguments.index_base, dims=arguments.dims)
    chosen = pick_rows(arguments.rows, row_count(vectors))
    vectors = take(vectors, chosen.start, chosen.stop)
    batch = 1 if arguments.batch is None else arguments.batch
    points = None
    if arguments.points is not None:
        if not arguments.quality:
            raise InvalidArgumentError("points", "--points measures what --quality samples")
        points = Points(read_vectors(Path(arguments.points)))
    return [Call(arguments.name, vectors, options, batch=batch, points=points)]


def _refuse(arguments: argparse.Namespace, beside: str, *names: str) -> None:
    """Refuse options that mean nothing beside another."""
    for name in names:
        value = getattr(arguments, name, None)
        # 0 is given, though it equals False.
        if value is not None and value is not False and value not in ([], "auto"):
            flag = "NAME" if name == "name" else f"--{name.replace('_', '-')}"
            raise InvalidArgumentError(name, f"{flag} means nothing beside --{beside}")


def _make_folder(arguments: argparse.Namespace, name: str) -> None:
    """Make the folder of a file that is written after the run, or refuse it before."""
    given = getattr(arguments, name)
    if given is None:
        return
    path = Path(given)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        writable = os.access(path if path.exists() else path.parent, os.W_OK) and not path.is_dir()
    except OSError:
        writable = False
    if not writable:
        raise InvalidArgumentError(name, f"--{name}: {path} cannot be written")


def _page_writer(arguments: argparse.Namespace) -> Any:  # noqa: ANN401  # the function, or None
    """Import what writes the page, before any work is done."""
    if arguments.report is None:
        return None
    with extra("report", "a report", "report"):
        from divgrpc_client.load.page import write_html
    return write_html
