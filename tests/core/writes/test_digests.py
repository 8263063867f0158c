"""Digests of requests, which tell a repeated request from another one of the same name."""

import json
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from divgrpc.columns.filters import as_filter
from divgrpc.columns.values import columns_of
from divgrpc.storage.layouts import LayoutInfo
from divgrpc.storage.manifest import checksum
from divgrpc.types.filters import Field, Filter, HasId
from divgrpc.writes.digests import digest_of
from divgrpc.writes.requests import Delete, Upsert


def test_a_digest_depends_on_what_a_request_writes() -> None:
    """It depends neither on its name and condition nor on the types of its arguments."""
    upsert = Upsert([1, 2], [[1, 0], [0, 1]], payloads=["a", None])
    same = Upsert(np.array([1, 2]), np.eye(2), {}, [b"a", b""], if_sequence=7, write_id="x")
    assert digest_of(upsert) == digest_of(same)
    other_requests = (
        replace(upsert, ids=["1", "2"]),
        replace(upsert, vectors=None),
        replace(upsert, payloads=None),
        replace(upsert, mode="insert_only"),
        replace(upsert, columns=columns_of({"brand": ["a", "b"]}, 2)),
        replace(upsert, columns=columns_of({"brand": ["a", "c"]}, 2)),
        replace(upsert, columns=columns_of({"price": [1, 2]}, 2)),
        Delete([1, 2]),
        Delete([1, 2], Filter(must=(HasId((1,)),))),
        Delete(None, Filter(must=(HasId((1,)),))),
    )
    assert len({digest_of(request) for request in (upsert, *other_requests)}) == 1 + len(
        other_requests
    )


def test_the_order_of_a_set_does_not_matter() -> None:
    """It differs from one process to the next."""

    def digests(values: object) -> list[str]:
        conditions: tuple[Any, ...] = (
            Field("brand").is_in(values),  # type: ignore[arg-type]  # any values
            {"must": [{"key": "brand", "match": {"any": values}}]},
            {"must": [{"has_id": values}]},
        )
        return [digest_of(Delete(None, as_filter(condition))) for condition in conditions]

    # Equal sets, in the two orders that collisions give them.
    assert digests({0, 8}) == digests({8, 0}) == digests([0, 8])
    assert digests({0, 8}) != digests({0, 9})


def test_layouts_of_earlier_versions_have_no_digests() -> None:
    requests: Any = (("a", 1, 2), ("b", 2, 1, "5a"))
    info = LayoutInfo(1, 2, 3, 9, 3, displaced=False, arrays={}, parts=(), requests=requests)
    document = json.loads(json.dumps(asdict(info)))
    text = json.dumps(document | {"crc32": checksum(document)})
    assert LayoutInfo.from_json(text.encode()).requests == (("a", 1, 2, ""), ("b", 2, 1, "5a"))
