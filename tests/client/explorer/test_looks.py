"""Titles and attributes of points."""

import pytest

from divgrpc.types.records import AttributeValue, Record
from divgrpc_client.explorer.looks import Looks


def _record(payload: bytes = b"", **attributes: AttributeValue) -> Record:
    return Record(3, None, attributes, payload)


def test_titles_come_from_a_file_an_attribute_or_the_payload() -> None:
    record = _record(b"of\npayload", name="of attribute")
    assert Looks().title(record) == ""
    assert Looks(titles={3: "of file"}).title(record) == "of file"
    assert Looks(attribute="name").title(record) == "of attribute"
    assert Looks(has_payload_titles=True).title(record) == "of payload"


@pytest.mark.parametrize(
    ("payload", "title"),
    [
        (b'{"title": "A shoe", "size": 42}', "A shoe"),
        (b'{"size": 42}', '{"size": 42}'),
        (b'{"title": 42}', '{"title": 42}'),
        (b"{no json", "{no json"),
        (b"\xff", "\ufffd"),
        (b"x" * 1_000, "x" * 399 + "…"),
        (b"", ""),
    ],
)
def test_payloads_as_titles(payload: bytes, title: str) -> None:
    assert Looks(has_payload_titles=True).title(_record(payload)) == title


def test_attributes_are_shown_but_the_title() -> None:
    record = _record(name="x", price=19.5, sold=False, tags=("a", "b"), none=None, empty=())
    facts = [("price", "19.5"), ("sold", "no"), ("tags", "a, b")]
    assert Looks(attribute="name").facts(record) == facts


@pytest.mark.parametrize(
    ("quota_attribute", "value"),
    [
        ("name", "x"),
        ("sold", "no"),
        ("count", "0"),
        ("tags", "a, b"),
        ("none", "no value"),
        ("empty", "no value"),
    ],
)
def test_the_attribute_that_a_quota_counts_comes_first(quota_attribute: str, value: str) -> None:
    record = _record(name="x", sold=False, count=0, tags=("a", "b"), none=None, empty=())
    facts = Looks(attribute="name").facts(record, [quota_attribute])
    assert facts[0] == (quota_attribute, value)
    remaining = [("sold", "no"), ("count", "0"), ("tags", "a, b")]
    assert facts[1:] == [fact for fact in remaining if fact[0] != quota_attribute]
