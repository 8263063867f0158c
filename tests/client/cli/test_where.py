"""Conditions of --where, and the options that restrict points."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divgrpc.errors import InvalidArgumentError
from divgrpc.types.filters import Condition, Exists, Field, Filter, Match, Range
from divgrpc_client import Client
from divgrpc_client.cli.where import parse_condition
from support.processes.command_line import Run

ROWS = 60
names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
values = st.text() | st.booleans() | st.integers() | st.floats(allow_nan=False)


def written(value: Any) -> str:  # noqa: ANN401  # of any type that a condition may have
    """Return a value as --where reads it."""
    if isinstance(value, str):
        return json.dumps(value)
    return str(value).lower() if isinstance(value, bool) else repr(value)


@given(names, values, st.sampled_from(["", " "]))
def test_a_comparison_is_read_as_it_is_written(name: str, value: Any, space: str) -> None:  # noqa: ANN401
    def read(sign: str) -> Condition:
        return parse_condition(f"{space}{name}{space}{sign}{space}{written(value)}")

    assert read("=") == Match(name, (value,))
    assert read("!=") == Filter(must_not=(Match(name, (value,)),))
    for sign, bound in (("<", "lt"), ("<=", "lte"), (">", "gt"), (">=", "gte")):
        assert read(sign) == Range(name, **{bound: value})


@given(names, st.lists(values, min_size=1, max_size=4))
def test_a_list_is_read_as_it_is_written(name: str, items: list[Any]) -> None:
    for comma in (",", " , "):
        text = f"{name} in {comma.join(map(written, items))}"
        assert parse_condition(text) == Match(name, tuple(items))


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("brand=acme", Match("brand", ("acme",))),
        ("brand = acme shoes, red", Match("brand", ("acme shoes, red",))),
        ("brand in acme, globex corp", Match("brand", ("acme", "globex corp"))),
        ('size="42"', Match("size", ("42",))),
        ("sold=true", Match("sold", (True,))),
        ("sold != false", Filter(must_not=(Match("sold", (False,)),))),
        ("brand exists", Exists("brand")),
        ("brand absent", Filter(must_not=(Exists("brand"),))),
        ("in in 1,2.5", Match("in", (1, 2.5))),
        ("at>=2026-01-31", Range("at", gte=datetime(2026, 1, 31))),  # type: ignore[arg-type]
        (
            "at<2026-01-31T12:00:00Z",
            Range("at", lt=datetime(2026, 1, 31, 12, tzinfo=UTC)),  # type: ignore[arg-type]
        ),
        ("at=2026-99-99", Match("at", ("2026-99-99",))),
        ("code=nan", Match("code", ("nan",))),
        ("code=1_000", Match("code", ("1_000",))),
        ("url=a=b<c", Match("url", ("a=b<c",))),
    ],
)
def test_values_have_the_type_that_they_look_like(text: str, condition: Condition) -> None:
    assert parse_condition(text) == condition


@pytest.mark.parametrize(
    "text",
    [
        *("", "brand", "brand like x", "=3", "brand=", "a in ", 'a in "b', 'a="b" c', "a in b,,c"),
        *("2a=1", 'a="b","c"', 'a="\\x"'),
    ],
)
def test_a_wrong_condition_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        parse_condition(text)
    assert raised.value.field == "where"


@pytest.fixture(scope="module")
def index(client: Client) -> str:
    vectors = np.random.default_rng(2).normal(size=(ROWS, 4))
    attributes = {"brand": [f"b{row % 3}" for row in range(ROWS)], "price": np.arange(ROWS)}
    names = [f"n{row}" for row in range(ROWS)]
    client.build("shop", vectors, ids=names, attributes=attributes, replace=True)
    return "shop"


def test_commands_take_conditions(run: Run, index: str, tmp_path: Path) -> None:
    assert run("count", index, "--where", "price<30", "--where", "brand=b1").out == "10\n"
    file = tmp_path / "filter.json"
    file.write_text(json.dumps({"must": [{"key": "price", "range": {"lt": 30}}]}))
    assert run("count", index, "--filter", file).out == "30\n"
    assert run("count", index, "--filter", file, "--where", "brand in b1,b2").out == "20\n"
    lines = run("scroll", index, "--where", "price<3", "--json").out.splitlines()
    assert sorted(json.loads(line)["id"] for line in lines) == ["n0", "n1", "n2"]
    export = tmp_path / "some.jsonl"
    assert run("export", index, export, "--where", "price>=50").out.startswith("10 points of shop")
    assert len(export.read_text().splitlines()) == 10


def test_queries_are_restricted(run: Run, client: Client, index: str, tmp_path: Path) -> None:
    queries = np.random.default_rng(3).normal(size=(2, 4))
    np.save(tmp_path / "queries.npy", queries)
    cheap = Field("price") < 30
    words = ("query", index, tmp_path / "queries.npy", "-k", "5", "--json")

    def ids_of(*options: object) -> list[list[str]]:
        answer = run(*words, *options)
        assert answer.code == 0, answer.err
        return [row["ids"] for row in answer.json["results"]]

    expected = client.query(index, queries, k=5, filter=cheap, exclude_ids=["n1", "n2"])
    assert run(*words, "--where", "price<30").json["points_passing"] == 30
    assert "points_passing" not in run(*words).json
    assert ids_of("--where", "price<30", "--exclude-ids", "n1", "n2") == expected.ids.tolist()
    like = run("query", index, "--like", "n7", "n8", "-k", "5", "--json")
    assert [row["ids"] for row in like.json["results"]] == client.query(
        index, like=["n7", "n8"], k=5
    ).ids.tolist()
    both = run(*words, "--like", "n7")
    assert (both.code, "give one of the two" in both.err) == (2, True)
    neither = run("query", index)
    assert (neither.code, "--like" in neither.err) == (2, True)
    wrong = run(*words, "--where", "price~3")
    assert (wrong.code, "price<20" in wrong.err) == (2, True)
    missing = run(*words, "--filter", tmp_path / "none.json")
    assert (missing.code, "must be a file of JSON" in missing.err) == (2, True)
    undeclared = run(*words, "--where", "colour=red")
    assert (undeclared.code, "declares brand, price" in undeclared.err) == (1, True)
