"""The records of `make conformance` say what passed, what failed and what a store lacks."""

from benchmarks.conformance import failures, outcomes
from divgrpc.conformance import CHECKS, check_store
from support.data.memory_store import MemoryStore


def test_records_show_each_outcome() -> None:
    store, plain = MemoryStore(), MemoryStore()
    store.higher_is_nearer = False
    plain.features = ("scores",)
    reports = [check_store(store), check_store(plain)]
    table = outcomes("one", reports)
    assert table.columns == ["check", "what it requires", "memory", "memory"]
    assert [row[0] for row in table.rows] == list(CHECKS)
    rows = {row[0]: list(row[2:]) for row in table.rows}
    assert rows["scores"] == ["failed", "passed"]
    assert rows["zero"] == ["passed", "not supported"]
    lines = failures("two", reports).rows
    assert [line[:2] for line in lines] == [["memory", "scores"], ["memory", "diverse_scores"]]
    assert all("nearer point" in line[2] for line in lines)
