"""Which indexes processes have found damaged."""

import os
from pathlib import Path

import numpy as np

from divgrpc import Index
from divgrpc.sharding.files import divide_index
from divgrpc_server.monitoring import page as pages
from divgrpc_server.monitoring.damage import DamageMeter, take_damage
from divgrpc_server.monitoring.definitions import DAMAGED
from divgrpc_server.monitoring.page import INDEXES_MAX, OTHER, Key, Page, Values, accumulate
from divgrpc_server.supervisor.index_files import IndexFiles


def a_page() -> Page:
    descriptor = pages.create()
    page = Page(descriptor)
    os.close(descriptor)
    return page


def test_an_index_that_two_processes_find_damaged_counts_once() -> None:
    one, other = a_page(), a_page()
    meter = DamageMeter(one)
    meter.set({"a", "b"})
    DamageMeter(other).set({"b"})
    series: dict[Key, Values] = {("divgrpc_ready",): [1.0]}
    for page in (one, other):
        accumulate(series, page.read())
    assert sorted(take_damage(series)) == ["a", "b"]
    assert series == {("divgrpc_ready",): [1.0]}
    meter.set({"a"})
    assert list(take_damage(one.read())) == ["a"]
    meter.set(set())
    assert list(take_damage(one.read())) == []
    for page in (one, other):
        page.close()


def test_without_metrics_nothing_is_noted() -> None:
    DamageMeter(None).set({"a"})


def test_of_many_damaged_indexes_some_have_a_common_label() -> None:
    page = a_page()
    meter = DamageMeter(page)
    meter.set({f"index-{number}" for number in range(INDEXES_MAX + 2)})
    assert OTHER in take_damage(page.read())
    meter.set({"index-0", "another"})
    assert {*take_damage(page.read())} == {"index-0", OTHER}
    page.close()


def test_damage_is_counted_by_index(tmp_path: Path) -> None:
    """A shard whose description is damaged, and what processes say of indexes that are there."""
    for name in ("whole", "divided"):
        Index.build(np.eye(8, dtype=np.float32), path=tmp_path / name)
    divide_index(tmp_path / "divided", 2)
    files = IndexFiles(tmp_path)
    assert files.read()[(DAMAGED,)] == [0]
    assert files.read(["whole", "deleted"])[(DAMAGED,)] == [1]
    (tmp_path / "divided" / "2" / "shards" / "1" / "manifest.json").write_text("{}")
    gauges = files.read()
    assert gauges[(DAMAGED,)] == [1]
    # Its own description is whole.
    assert gauges["divgrpc_index_points", "divided", "live"] == [8]
    assert files.read(["divided"])[(DAMAGED,)] == [1]
    assert files.read(["whole", "divided"])[(DAMAGED,)] == [2]
