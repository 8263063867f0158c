"""Functions that both tables share: options, names of data sets, progress, facts and output."""

import argparse
import json
import math
import os
import platform
import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.console import Console

import divgrpc
from divgrpc.errors import InvalidArgumentError
from divgrpc.types import Interval
from divgrpc_client.reports.page import Body, Cell, Column, Page, Table, write_page
from divgrpc_lab.data.topics import DATA_VARIABLE
from divgrpc_lab.records import Record, command, commit, write_records
from divgrpc_lab.verdicts import Verdict, print_verdicts

# The first sentence of the output and of the page of all commands except the demonstration.
NOT_THE_PAPERS_DATA: Final = (
    "This is not the paper's data: its ImageNet images (Table 1) and LSHTC3 documents (Table 2) "
    "are not measured, so directions can be compared but values cannot."
)

# Characters that a number may start with. "" stands for an empty cell.
_NUMBER_STARTS: Final = ("", *"-+0123456789")


def add_options(verb: argparse.ArgumentParser, name: str, *, has_sets: bool = True) -> None:
    """Add the options of a run that measures data sets; --sets is added only if `has_sets`."""
    verb.add_argument(
        "--data",
        metavar="FOLDER",
        help="The folder of the data sets (default $DIVGRPC_DATA, else scikit-learn's digits).",
    )
    text = "Measure these sets (default all)."
    if has_sets:
        verb.add_argument("--sets", nargs="*", metavar="SET", help=text)
    verb.set_defaults(sets=None)
    text = "Keep finished measurements here, and reuse those that an earlier run kept."
    verb.add_argument("--work", type=Path, metavar="FOLDER", help=text)
    page = Path(f"{name}.html")
    text = f"Write the page here (default {page})."
    verb.add_argument("--out", type=Path, default=page, help=text)
    verb.add_argument("--json", type=Path, metavar="FILE", help="Write all figures as JSON.")
    text = "Write the tables of the site to this folder, in the form of docs/records."
    verb.add_argument("--records", type=Path, metavar="FOLDER", help=text)
    text = "A fact for the records, such as a busy machine; may be repeated."
    verb.add_argument("--note", action="append", default=[], metavar="TEXT", help=text)
    verb.add_argument("--quick", action="store_true", help="Run a short form that decides little.")


def data_folder(arguments: argparse.Namespace) -> str | None:
    """Return the folder of the data sets, or None if the digits take their place."""
    return arguments.data or os.environ.get(DATA_VARIABLE)


def set_names(arguments: argparse.Namespace, choices: Collection[str]) -> list[str]:
    """Return the names of the data sets to measure, by default all `choices`.

    Creates the folders of the output files, so that a folder that cannot be created is reported
    before the work. Raises `InvalidArgumentError` for an unknown name, for a data set that is not
    in the folder, and for --sets without a folder.
    """
    folder = data_folder(arguments)
    names = list(choices) if arguments.sets is None else arguments.sets
    for name in names:
        if name not in choices:
            raise InvalidArgumentError(
                "sets", f"sets must be of {', '.join(choices)}, got {name!r}"
            )
        if folder and not Path(folder, f"{name}.npz").is_file():
            raise InvalidArgumentError("data", f"there is no {name}.npz in {folder}")
    if arguments.sets and not folder:
        raise InvalidArgumentError("sets", f"sets need their folder: --data or {DATA_VARIABLE}")
    for path in filter(None, (arguments.out, arguments.json)):
        path.parent.mkdir(parents=True, exist_ok=True)
    if arguments.records is not None:
        arguments.records.mkdir(parents=True, exist_ok=True)
        commit()  # is cached, so that an edit during the run does not count
    return list(names)


def plan_values(
    arguments: argparse.Namespace, minima: Mapping[str, int], more: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the options on the command line that set the amount of work, by name.

    minima: the least value of each option that takes one number.
    more: the names of further options.

    Raises `InvalidArgumentError` for a number below its minimum, and for any of these options
    together with --quick.
    """
    names = (*minima, *more)
    values = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    for name, value in values.items():
        option = name.replace("_", "-")
        if arguments.quick:
            raise InvalidArgumentError(name, f"--quick sets this option: leave --{option} out")
        if name in minima and value < minima[name]:
            raise InvalidArgumentError(name, f"{option} must be at least {minima[name]}")
    return values


def warn_of_digits(out: Console, more: str = "") -> None:
    """Print a warning that the digits replace the data sets; `more` ends its sentence."""
    text = (
        f"No data: neither --data nor {DATA_VARIABLE} names a folder, so this is measured on the "
        f"digits of scikit-learn, which proves nothing about the paper's claims{more}."
    )
    out.print(text, style="bold red")


def facts(begin: float, machine: str, **more: str) -> dict[str, str]:
    """Return the facts of a run that began at `begin`, in seconds of the monotonic clock."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "divgrpc": divgrpc.__version__,
        "Python": platform.python_version(),
        "machine": f"{platform.machine()}, {machine}",
        **more,
        "minutes": f"{(time.monotonic() - begin) / 60:.0f}",
    }


def finish(
    out: Console,
    arguments: argparse.Namespace,
    claims: Sequence[Verdict],
    page: Page,
    figures: Mapping[str, Any],
    *,
    records: Iterable[Record] = (),
) -> None:
    """Print the verdicts and write the page; --json adds all figures, --records the records."""
    print_verdicts(out, claims)
    out.print(", ".join(page.facts), style="dim")
    if arguments.json is not None:
        text = json.dumps(plain(figures), allow_nan=False)
        arguments.json.write_text(text + "\n", encoding="utf-8")
    if arguments.records is not None:
        # Leave out the first fact, the date, because a record has its own field for it.
        notes = [*page.facts[1:], *arguments.note]
        has_data = bool(data_folder(arguments))
        words = command(arguments.words, has_data=has_data)
        write_records(arguments.records, records, words, notes)
    write_page(page, arguments.out)
    out.print(f"\nPage: {arguments.out}", soft_wrap=True)


def plain(value: Any) -> Any:
    """Return a value ready for JSON.

    Named tuples and dataclasses become dictionaries. Numbers of NumPy are rounded to five decimals,
    and arrays become lists. NaN becomes None, and infinity becomes a string.
    """
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if is_dataclass(value):
        value = {item.name: getattr(value, item.name) for item in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        value = value.round(5).tolist()
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


def records_table(caption: str, records: Sequence[Any]) -> Table:
    """Return a table of records, which are dicts or named tuples; field names become headings."""
    rows = [item if isinstance(item, dict) else item._asdict() for item in records]
    heads = list(dict.fromkeys(head for row in rows for head in row))
    lines = [[_cell(row.get(head)) for head in heads] for row in rows]
    columns = [
        Column(
            head.replace("_", " "),
            numeric=place > 0 and all(line[place].text[:1] in _NUMBER_STARTS for line in lines),
        )
        for place, head in enumerate(heads)
    ]
    return Table(caption, columns, [Body(lines)])


def interval_text(interval: Interval) -> str:
    """Return both ends of an interval without leading zeros, so that many columns fit a page."""
    return " to ".join(re.sub(r"^(-?)0\.", r"\1.", f"{end:.3f}") for end in interval[1:])


def _cell(value: object) -> Cell:
    """Return a cell with a value; floats have three digits, or no decimals from 100 up."""
    if isinstance(value, Interval):
        return Cell(f"{value.value:.3f}", detail=f"{value.low:.3f} to {value.high:.3f}")
    if isinstance(value, tuple):
        return Cell(" ".join(_cell(item).text for item in value))
    if isinstance(value, float):
        return Cell(f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}")
    return Cell("" if value is None else f"{value:,}" if isinstance(value, int) else str(value))
