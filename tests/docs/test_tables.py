"""The tables of the user guide equal the code: names, defaults, limits, statuses and warnings."""

import dataclasses
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from google.rpc import code_pb2

from divgrpc import errors
from divgrpc.errors import DivgrpcError
from divgrpc.evaluation import Grid
from divgrpc.evaluation.grid import LabelGrid
from divgrpc.labels.build_inputs import Labelling
from divgrpc.parameters import (
    LIMITS,
    BuildParameters,
    LabelParameters,
    PredictParameters,
    QueryParameters,
)
from divgrpc_server.codec.statuses import TABLE
from divgrpc_server.config import ENVIRONMENT_PREFIX, Config
from divgrpc_server.monitoring.definitions import METRICS

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "pages" / "guide"
QUERY_PROTO = ROOT / "protos" / "divgrpc_protos" / "v1" / "query.proto"

Row = dict[str, str]


def _section(page: str, heading: str) -> str:
    """Return the text below a heading of a page, up to the next heading."""
    text = (GUIDE / page).read_text(encoding="utf-8")
    section = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#+ |\Z)", text, re.M | re.S)
    assert section is not None, f"{page} has no section {heading!r}"
    return section[1]


def _tables(page: str, heading: str) -> Iterator[list[Row]]:
    """Yield the tables of a section, each as rows that map column titles to cells."""
    block: list[list[str]] = []
    for line in [*_section(page, heading).splitlines(), ""]:
        if line.startswith("|"):
            block.append([cell.strip() for cell in line.strip("|").split("|")])
        elif block:
            titles, _, *rows = block
            yield [dict(zip(titles, row, strict=True)) for row in rows]
            block = []


def _rows(page: str, heading: str) -> list[Row]:
    return [row for table in _tables(page, heading) for row in table]


def _by_name(page: str, heading: str, title: str) -> dict[str, Row]:
    """Return the rows of a section by the names in their column `title`."""
    rows = {}
    for row in _rows(page, heading):
        for name in re.findall(r"`([^`]+)`", row.get(title, "")):
            assert name not in rows, f"{page} has {name} twice"
            rows[name] = row
    return rows


def _as_text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _fixed_defaults(kind: Any) -> dict[str, str]:  # noqa: ANN401  # any dataclass
    fields = dataclasses.fields(kind)
    return {f.name: _as_text(f.default) for f in fields if f.default is not None}


def _words(hint: object) -> set[str]:
    if isinstance(hint, str):
        return {hint}
    return {word for part in get_args(hint) for word in _words(part)}


@pytest.mark.parametrize(
    ("heading", "kind"),
    [("Build", BuildParameters), ("Query", QueryParameters), ("PredictLabels", PredictParameters)],
)
def test_parameters_equal_the_code(heading: str, kind: Any) -> None:  # noqa: ANN401
    """The table has a row with the default for each parameter, and no other row."""
    rows = _by_name("parameters.md", heading, "parameter")
    assert set(rows) == {field.name for field in dataclasses.fields(kind)}
    defaults = _fixed_defaults(kind)
    assert {name: rows[name]["default"].strip("`") for name in defaults} == defaults


@pytest.mark.parametrize(
    ("heading", "kind"), [("Build", BuildParameters), ("Query", QueryParameters)]
)
def test_choices_are_all_there(heading: str, kind: Any) -> None:  # noqa: ANN401
    rows = _by_name("parameters.md", heading, "parameter")
    for name, hint in get_type_hints(kind).items():
        cells = " ".join(rows[name].values())
        assert not [word for word in _words(hint) if f"`{word}`" not in cells], name


def test_parameters_of_labels_equal_the_code() -> None:
    """The table has a row for each label argument of a build, and no other row."""
    rows = _by_name("parameters.md", "Labels", "parameter")
    assert set(rows) == set(Labelling.__annotations__)
    defaults = _fixed_defaults(LabelParameters)
    del defaults["seed"]
    assert {name: rows[name]["default"].strip("`") for name in defaults} == defaults


def test_limits_equal_the_code() -> None:
    rows = _by_name("parameters.md", "Limits of a server", "limit")
    assert {name: row["value"] for name, row in rows.items()} == {
        name: f"{value:,}" for name, value in LIMITS.items()
    }


@pytest.mark.parametrize(
    ("page", "kind"), [("evaluate.md", Grid), ("labels.md", LabelGrid)], ids=["points", "labels"]
)
def test_grids_equal_the_code(page: str, kind: Any) -> None:  # noqa: ANN401
    rows = _by_name(page, "The grid", "axis")
    assert set(rows) == {field.name for field in dataclasses.fields(kind)}
    for field in dataclasses.fields(kind):
        default = field.default
        values = default if isinstance(default, tuple) else (default,)
        if None not in values and (None, None) not in values:
            cell = rows[field.name]["default"].replace("`", "")
            assert cell == ", ".join(map(_as_text, values)), field.name


# Defaults that depend on the machine.
OF_MACHINE = {"--workers": "cores \u2212 1, at least 1", "--fronts": "cores / 4, at least 1"}


def test_options_of_the_server_equal_the_code() -> None:
    rows = _by_name("configuration.md", "Options", "option")
    assert f"`{ENVIRONMENT_PREFIX}DATA_DIR`" in _section(
        "configuration.md", "Three ways to set an option"
    )
    fields = {f"--{f.name.replace('_', '-')}": f for f in dataclasses.fields(Config)}
    fields = {name: f for name, f in fields.items() if not f.metadata["is_internal"]}
    rows = {name: row for name, row in rows.items() if not name.startswith("--no-")}
    assert set(rows) == set(fields)
    for option, field in fields.items():
        row, limits = rows[option], field.metadata
        default = OF_MACHINE.get(option, _as_text(field.default) or "none")
        assert row["default"].strip("`") == default, option
        for word in limits["choices"]:
            assert f"`{word}`" in row["values"]
        if limits["low"] > -math.inf:
            bounds = f"{limits['low']:g} to {limits['high']:g}"
            at_least = f"at least {limits['low']:g}"
            assert row["values"] == (at_least if limits["high"] == math.inf else bounds), option


def test_statuses_equal_the_code() -> None:
    statuses = _by_name("errors.md", "Statuses", "status")
    assert set(statuses) == {code_pb2.Code.Name(meaning.code) for meaning in TABLE.values()}


SERVER_ERRORS = next(kind.__module__ for kind in TABLE if kind.__name__ == "LateError")


def _classes(kind: type[DivgrpcError]) -> Iterator[type[DivgrpcError]]:
    """Yield an error class and all its subclasses that the core or the server defines."""
    yield kind
    for subclass in kind.__subclasses__():
        if subclass.__module__ in ("divgrpc.errors", SERVER_ERRORS):
            yield from _classes(subclass)


def test_reasons_equal_the_code() -> None:
    """The table has a row for each reason, with its status and retry delay."""
    expected = {}
    for kind in _classes(DivgrpcError):
        meaning = next(TABLE[parent] for parent in kind.__mro__ if parent in TABLE)
        wait = "" if meaning.retry_after is None else f"{meaning.retry_after:g}"
        expected[kind.reason] = (code_pb2.Code.Name(meaning.code), wait)
    first, _, _ = _tables("errors.md", "Reasons")
    rows = {row["reason"].strip("`"): (row["status"], row["wait, s"]) for row in first}
    assert rows == expected


def test_classes_of_errors_equal_the_code() -> None:
    *_, last = _tables("errors.md", "Reasons")
    rows = {row["class"].strip("`"): row["reason"].strip("`") for row in last}
    classes = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    assert rows == {k.__name__: k.reason for k in classes if issubclass(k, DivgrpcError)}


def test_warnings_equal_the_contract() -> None:
    comment = re.search(r"UPPER_SNAKE_CASE (.*?)\n  string code", QUERY_PROTO.read_text(), re.S)
    assert comment is not None
    codes = set(re.findall(r"\b[A-Z]+(?:_[A-Z]+)+\b", comment[1]))
    assert set(_by_name("errors.md", "Warnings", "code")) == codes


def test_metrics_equal_the_code() -> None:
    """Each metric has one row, with its kind, its labels and its help text, in the same order."""
    groups = ("Calls", "Queries", "Writes", "Builds", "Processes", "Storage")
    rows = [tuple(row.values()) for group in groups for row in _rows("monitoring.md", group)]
    assert rows == [
        (
            f"`{metric.name}`",
            metric.kind,
            ", ".join(f"`{label}`" for label in metric.labels) or "none",
            metric.help,
        )
        for metric in METRICS
    ]
