"""`divgrpc load`: the options of the command line to a run, and the run to what is shown."""

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

from rich.live import Live

from divgrpc.errors import InvalidArgumentError
from divgrpc_client.formats import json_output
from divgrpc_client.formats.extras import extra
from divgrpc_client.formats.files import pick_rows, read_vectors
from divgrpc_client.formats.tables import console
from divgrpc_client.load.mix import Call, read_mix
from divgrpc_client.load.recorder import Recorder, codes
from divgrpc_client.load.report import Report, write_report
from divgrpc_client.load.run import run_load
from divgrpc_client.load.schedule import Schedule, constant, parse_schedule
from divgrpc_client.load.settings import Settings, check_target
from divgrpc_client.load.text import show
from divgrpc_client.messages.options import QueryOptions
from divgrpc_protos.arrays import row_count, take

MISSED: Final = 3
VOID: Final = 4
_INTERRUPTED: Final = 130
_RATE, _SECONDS = 100.0, 10.0
# Options of the command line that `Settings` has under the same name; the seed has another.
_SETTINGS: Final = (
    *("warm_up", "processes", "channels", "timeout", "retries", "max_in_flight", "quality"),
)


def run(arguments: argparse.Namespace) -> int:
    """Do what the command line says; returns the exit code."""
    settings = _settings(arguments)
    schedule = _schedule(arguments)
    check_target(arguments.target, allow_remote=settings.allow_remote)
    calls = _calls(arguments)
    write_html = _page_writer(arguments)
    for name in ("save", "report"):
        _make_folder(arguments, name)
    watched = sys.stderr.isatty() and not arguments.json
    with _live(schedule) if watched else nullcontext() as tell:
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
        show(report)
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
    succeeded = report["search"] is None or report["search"]["rate"] > 0
    return 0 if held and succeeded else MISSED


@contextmanager
def _live(schedule: Schedule) -> Iterator[Callable[[Recorder], None]]:
    """Show a line on standard error while a run lasts; yields what to call once a second."""
    with Live(console=console(stderr=True), transient=True, auto_refresh=False) as line:

        def look(recorder: Recorder) -> None:
            counts = codes(recorder.samples())
            calls = ", ".join(f"{count:,} {name}" for name, count in counts.items()) or "0 calls"
            line.update(
                f"{schedule.seconds:,.0f} s at each rate: {calls}, {sum(recorder.in_flight):,} in "
                "flight; Ctrl-C ends it with what it has",
                refresh=True,
            )

        yield look


def _settings(arguments: argparse.Namespace) -> Settings:
    values: dict[str, Any] = {name: getattr(arguments, name) for name in _SETTINGS}
    values["seed"] = arguments.traffic_seed
    return Settings(
        poisson=arguments.poisson,
        allow_remote=arguments.allow_remote,
        **{name: value for name, value in values.items() if value is not None},
    )


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
        _refuse(arguments, "mix", "name", "data", "key", "dims", "rows", "batch", *options)
        return read_mix(Path(arguments.mix))
    if arguments.name is None or arguments.data is None:
        raise InvalidArgumentError("name", "say what to ask: NAME and --data, or --mix")
    path = Path(arguments.data)
    vectors = read_vectors(path, arguments.key, base=arguments.index_base, dims=arguments.dims)
    rows = pick_rows(arguments.rows, row_count(vectors))
    vectors = take(vectors, rows.start, rows.stop)
    batch = 1 if arguments.batch is None else arguments.batch
    return [Call(arguments.name, vectors, options, batch=batch)]


def _refuse(arguments: argparse.Namespace, beside: str, *names: str) -> None:
    """Refuse options that mean nothing beside another."""
    for name in names:
        value = getattr(arguments, name, None)
        # 0 counts as given, though it equals False.
        if value is not None and value is not False and value not in ([], "auto"):
            flag = "NAME" if name == "name" else f"--{name.replace('_', '-')}"
            raise InvalidArgumentError(name, f"{flag} means nothing beside --{beside}")


def _make_folder(arguments: argparse.Namespace, name: str) -> None:
    """Make the folder of a file that is written after the run, or refuse it before."""
    value = getattr(arguments, name)
    if value is None:
        return
    path = Path(value)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        writable = os.access(path if path.exists() else path.parent, os.W_OK) and not path.is_dir()
    except OSError:
        writable = False
    if not writable:
        raise InvalidArgumentError(name, f"--{name}: {path} cannot be written")


def _page_writer(arguments: argparse.Namespace) -> Callable[[Report, Path], None] | None:
    """Import what writes the page, before any work is done."""
    if arguments.report is None:
        return None
    with extra("report", "a report", "report"):
        from divgrpc_client.load.page import write_html
    return write_html
