"""Explanations and reports over gRPC equal those of the core."""

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from divgrpc import GroupBy, Index, Quota
from divgrpc.errors import InvalidArgumentError
from divgrpc.types import Explanation, FloatArray, QueryResult, Report
from divgrpc_client import Client


def grouped_points() -> FloatArray:
    rng = np.random.default_rng(4)
    points = np.repeat(rng.normal(size=(8, 16)), 12, axis=0)
    return (points + 0.3 * rng.normal(size=points.shape)).astype(np.float32)


POINTS = grouped_points()
TEXTS = [f"p-{number}" for number in range(len(POINTS))]
KINDS = [["red", "blue"][number % 2] for number in range(len(POINTS))]


def assert_same(wire: QueryResult, core: QueryResult) -> None:
    assert wire.ids.tolist() == core.ids.tolist()
    assert wire.parameters == core.parameters
    assert len(wire.explanations) == len(core.explanations)
    for one, other in zip(wire.explanations, core.explanations, strict=True):
        for field in fields(Explanation):
            values, expected = getattr(one, field.name), getattr(other, field.name)
            if field.name == "refusals":
                assert values == expected
                continue
            assert np.asarray(values).dtype == np.asarray(expected).dtype, field.name
            assert np.array_equal(values, expected, equal_nan=values_are_numbers(values))
    assert (wire.report is None) == (core.report is None)
    if wire.report is not None and core.report is not None:
        assert_same_report(wire.report, core.report)


def values_are_numbers(values: Any) -> bool:  # noqa: ANN401  # of any column
    return np.asarray(values).dtype.kind == "f"


def assert_same_report(wire: Report, core: Report) -> None:
    for field in fields(Report):
        values, expected = getattr(wire, field.name), getattr(core, field.name)
        if isinstance(values, np.ndarray):
            values, expected = {"": values}, {"": expected}
        assert values.keys() == expected.keys()
        for name, column in values.items():
            assert np.array_equal(column, expected[name], equal_nan=True), field.name


@pytest.mark.parametrize("ids", [None, TEXTS], ids=["integers", "texts"])
@pytest.mark.parametrize("options", [{}, {"selector": "dpp"}, {"diversity": "auto"}], ids=str)
def test_explanations_equal_the_core(
    ids: list[str] | None, options: dict[str, Any], client: Client
) -> None:
    name = f"explained-{len(ids or '')}-{len(str(options))}"
    arguments: dict[str, Any] = {"ids": ids, "attributes": {"kind": KINDS}}
    client.build(name, POINTS, **arguments)
    index = Index.build(POINTS, **arguments)
    every = {"k": 6, "explain": True, "with_report": True, **options}
    queries = POINTS[::20]
    wire = client.query(name, queries, **every)
    assert wire.report is not None
    assert set(wire.report.entropies) == {"kind"}
    assert_same(wire, index.query(queries, **every))
    plain = client.query(name, queries, k=6, **options)
    assert plain.explanations == ()
    assert plain.report is None
    assert plain.ids.tolist() == wire.ids.tolist()
    assert_same(client.query(name, like=wire.ids[0, :1], **every), index.query(
        like=wire.ids[0, :1].tolist(), **every))  # fmt: skip


@pytest.mark.parametrize("ids", [None, TEXTS], ids=["integers", "texts"])
def test_explanations_within_quotas_equal_the_core(ids: list[str] | None, client: Client) -> None:
    """Refusals name a text, a missing value, or no value at all."""
    name = f"explained-quotas-{len(ids or '')}"
    makers = [[None, "own", "other"][number % 3] for number in range(len(POINTS))]
    arguments: dict[str, Any] = {"ids": ids, "attributes": {"kind": KINDS, "maker": makers}}
    client.build(name, POINTS, **arguments)
    index = Index.build(POINTS, **arguments)
    limits: list[dict[str, Any]] = [
        {"quotas": [Quota("maker", max_each=2), Quota("kind", rules={"red": (2, 4)})]},
        {"quotas": [Quota("maker", rules={"own": (3, 3)})]},
        {"group_by": GroupBy("maker", groups=2, per_group=2)},
    ]
    refusals = []
    for part in limits:
        k = 4 if "group_by" in part else 6
        every = {"k": k, "explain": True, "diversity": 0.6, **part}
        wire = client.query(name, POINTS[::30], **every)
        assert_same(wire, index.query(POINTS[::30], **every))
        refusals += [refusal for one in wire.explanations for refusal in one.refusals]
    assert {refusal.rule for refusal in refusals} >= {"max", "min", "groups"}
    assert {refusal.value for refusal in refusals} >= {None, "own"}


def test_explain_and_qp_relax_exclude_each_other(client: Client) -> None:
    client.build("explained-shares", POINTS)
    with pytest.raises(InvalidArgumentError) as fault:
        client.query("explained-shares", POINTS[0], selector="qp_relax", explain=True)
    assert fault.value.field == "explain"
