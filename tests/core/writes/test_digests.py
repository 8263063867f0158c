"""Digests of requests, which tell a repeated request from another one of the same name."""

import json
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from divgrpc.columns.values import columns_of
from divgrpc.storage.manifest import checksum
from divgrpc.types.filters import Filter, HasId
from divgrpc.writes.digests import digest_of
from divgrpc.writes.layout import LayoutInfo
from divgrpc.writes.writer import Delete, Upsert


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


def test_layouts_of_earlier_versions_have_no_digests() -> None:
    requests: Any = (("a", 1, 2), ("b", 2, 1, "5a"))
    info = LayoutInfo(1, 2, 3, 9, 3, displaced=False, arrays={}, parts=(), requests=requests)
    document = json.loads(json.dumps(asdict(info)))
    text = json.dumps(document | {"crc32": checksum(document)})
    assert LayoutInfo.from_json(text.encode()).requests == (("a", 1, 2, ""), ("b", 2, 1, "5a"))
