"""Options of the command line for quotas and groups."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from divgrpc.errors import InvalidArgumentError
from divgrpc.types.quotas import GroupBy, Quota, QuotaRule
from divgrpc_client import Client
from divgrpc_client.cli.quotas import add_quotas, quotas_of
from support.processes.command_line import Run


def parsed(*words: str) -> dict[str, Any]:
    parser = ArgumentParser()
    add_quotas(parser)
    return quotas_of(parser.parse_args(words))


def test_bounds_become_quotas() -> None:
    fields = parsed(
        *("--max-each", "brand=2", "--min-each", "year = 1", "--quota", "source:own=1..3"),
        *("--quota", "brand:absent=..1", "--quota", "year:2024=2", "--on-infeasible", "relax"),
        *("--quota", 'source:"absent"=4..'),
    )
    assert fields == {
        "quotas": [
            Quota("brand", max_each=2, rules=[QuotaRule(None, None, 1)]),
            Quota("year", min_each=1, rules=[QuotaRule(2024, 2, 2)]),
            Quota("source", rules=[QuotaRule("own", 1, 3), QuotaRule("absent", 4, None)]),
        ],
        "on_infeasible": "relax",
    }
    assert parsed("--group-by", "brand=5x2") == {"group_by": GroupBy("brand", 5, 2)}
    assert parsed("--group-by", "brand=5") == {"group_by": GroupBy("brand", 5, 1)}
    assert parsed() == {}


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (("--max-each", "brand"), "max_each"),
        (("--max-each", "brand=2", "--max-each", "brand=3"), "max_each"),
        (("--min-each", "brand=-1"), "min_each"),
        (("--quota", "brand=2"), "quota"),
        (("--quota", "brand:b1=.."), "quota"),
        (("--group-by", "brand"), "group_by"),
    ],
)
def test_texts_that_are_no_bounds(words: tuple[str, ...], field: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"such as|twice") as error:
        parsed(*words)
    assert error.value.field == field


def test_queries_have_quotas_and_groups(run: Run, client: Client, tmp_path: Path) -> None:
    vectors = np.random.default_rng(2).normal(size=(60, 4))
    client.build("shop-quotas", vectors, attributes={"brand": list("abc") * 20}, replace=True)
    np.save(tmp_path / "queries.npy", vectors[:1])
    words = ("query", "shop-quotas", tmp_path / "queries.npy")
    within = run(*words, "-k", "6", "--max-each", "brand=2", "--with-attributes", "--json").json
    brands = [attributes["brand"] for attributes in within["results"][0]["attributes"]]
    assert sorted(brands) == list("aabbcc")
    groups = run(*words, "--group-by", "brand=2x2", "--json").json["results"][0]["groups"]
    assert [group["size"] for group in groups] == [2, 2]
    table = run(*words, "--group-by", "brand=2x2").out
    assert "group" in table
    failed = run(*words, "--max-each", "brand=2")
    assert failed.code != 0
    assert "6 of 10 results" in failed.err
    relaxed = run(*words, "--max-each", "brand=2", "--on-infeasible", "relax", "--json").json
    assert relaxed["quota_shortfalls"][0]["count"] == 6
    why = run(*words, "-k", "6", "--max-each", "brand=2", "--explain", "--diversity", "0").out
    assert "was full" in why
    explained = run(*words, "-k", "6", "--max-each", "brand=2", "--explain", "--json").json
    refusals = explained["results"][0]["explanation"]["refusals"]
    assert {(refusal["rule"], refusal["attribute"]) for refusal in refusals} == {("max", "brand")}
