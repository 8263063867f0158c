"""The shared memory in which processes count."""

import os
import random
from collections.abc import Iterator
from itertools import pairwise

import pytest

from divgrpc_server.monitoring import page as pages
from divgrpc_server.monitoring.definitions import BUCKET_SECONDS, METRICS
from divgrpc_server.monitoring.page import (
    INDEXES_MAX,
    OTHER,
    Key,
    Page,
    Values,
    accumulate,
    lasting,
)

CALLS = ("divgrpc_calls_total", "Query", "OK")


@pytest.fixture
def sides() -> Iterator[tuple[Page, Page]]:
    """Yield the page of a child, and the page of the supervisor on the same memory."""
    descriptor = pages.create()
    sides = Page(descriptor), Page(descriptor)
    os.close(descriptor)
    yield sides
    for side in sides:
        side.close()


def test_the_other_side_reads_what_was_counted(sides: tuple[Page, Page]) -> None:
    child, supervisor = sides
    assert supervisor.read() == {}
    child.add(child.cell(*CALLS))
    child.add(child.cell(*CALLS), 2.0)
    child.set(child.cell("divgrpc_queued_bytes", "worker"), 7.5)
    child.summarise(child.cell("divgrpc_sampled_recall", "a"), 0.5)
    assert supervisor.read() == {
        CALLS: [3.0],
        ("divgrpc_queued_bytes", "worker"): [7.5],
        ("divgrpc_sampled_recall", "a"): [0.5, 1.0],
    }


def test_a_histogram_counts_each_value_in_the_first_bucket_that_holds_it(
    sides: tuple[Page, Page],
) -> None:
    child, supervisor = sides
    cell = child.cell("divgrpc_call_seconds", "Query")
    generator = random.Random(3)
    values = [*BUCKET_SECONDS, 0.0, 100.0, *(generator.expovariate(5) for _ in range(500))]
    for value in values:
        child.observe(cell, value)
    (*counts, total) = supervisor.read()["divgrpc_call_seconds", "Query"]
    limits = [-1.0, *BUCKET_SECONDS, float("inf")]
    expected = [sum(low < value <= high for value in values) for low, high in pairwise(limits)]
    assert counts == expected
    assert total == pytest.approx(sum(values))


def test_a_full_page_loses_further_series_and_keeps_the_others(sides: tuple[Page, Page]) -> None:
    child, supervisor = sides
    child.add(child.cell(*CALLS))
    methods = [f"method-{number}" for number in range(3_000)]
    for method in methods:
        child.observe(child.cell("divgrpc_call_seconds", method), 0.1)
        child.add(child.cell("divgrpc_calls_total", method, "OK"))
    series = supervisor.read()
    assert series[CALLS] == [1.0]
    assert 100 < len(series) < len(methods)
    assert all(
        value in ([1.0], series["divgrpc_call_seconds", methods[0]]) for value in series.values()
    )


def test_a_key_that_is_too_long_is_not_stored(sides: tuple[Page, Page]) -> None:
    child, supervisor = sides
    child.add(child.cell("divgrpc_calls_total", "m" * 200, "OK"))
    assert supervisor.read() == {}


def test_indexes_above_the_limit_are_counted_together(sides: tuple[Page, Page]) -> None:
    child, _ = sides
    names = [f"index-{number}" for number in range(INDEXES_MAX)]
    assert [child.index_label(name) for name in names] == names
    assert child.index_label("one-more") == OTHER
    assert child.index_label(names[0]) == names[0]


def test_gauges_end_with_their_process() -> None:
    series: dict[Key, Values] = {CALLS: [3.0], ("divgrpc_queued_bytes", "worker"): [7.5]}
    assert lasting(series) == {CALLS: [3.0]}


def test_sums_are_by_series_and_value() -> None:
    totals: dict[Key, Values] = {CALLS: [3.0]}
    accumulate(totals, {CALLS: [1.0], ("divgrpc_sampled_recall", "a"): [0.5, 1.0]})
    accumulate(totals, {("divgrpc_sampled_recall", "a"): [0.25, 1.0]})
    assert totals == {CALLS: [4.0], ("divgrpc_sampled_recall", "a"): [0.75, 2.0]}


def test_names_follow_the_conventions_of_prometheus() -> None:
    """Counters end with `_total`; other metrics end with their unit, if they have one."""
    for metric in METRICS:
        assert metric.name.startswith("divgrpc_")
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert metric.help.endswith("."), metric.name
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
