"""Tokens of pages: every token is read as it was written, and no changed token is read at all."""

import string
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divgrpc.errors import InvalidArgumentError
from divgrpc.parameters import LIMITS
from divgrpc.search import page_tokens
from divgrpc.search.page_tokens import PageToken, decode_token, encode_token

ALPHABET = string.ascii_letters + string.digits + "-_"
numbers = st.integers(0, 2**63 - 1)
tokens = st.builds(
    PageToken,
    fingerprint=st.binary(min_size=8, max_size=8),
    generation=numbers,
    sequence=numbers,
    candidates_limit=numbers,
    hash_limit=numbers,
    keys=st.lists(numbers, max_size=40).map(lambda keys: np.array(keys, np.int64)),
    threshold=st.none() | st.floats(allow_nan=False),
    dial=st.none() | st.integers(0, 32).map(lambda step: step / 32),
)


def token_of(keys: list[int]) -> PageToken:
    """Return a token with numbers that a large index has."""
    return PageToken(b"12345678", 900, 2**27, 3_200, 4_000, np.array(keys, np.int64), 0.95)


def assert_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError) as error:
        decode_token(text)
    assert error.value.field == "page_token"


@given(tokens)
def test_tokens_are_read_as_written(token: PageToken) -> None:
    text = encode_token(token)
    copy = decode_token(text)
    assert set(text) <= set(ALPHABET)
    # A token is an argument of the command line.
    assert not text.startswith("-")
    assert copy.keys.dtype == np.int64
    assert copy.keys.tolist() == token.keys.tolist()
    no_keys = np.empty(0, np.int64)
    assert str(replace(copy, keys=no_keys)) == str(replace(token, keys=no_keys))


def test_no_token_with_a_changed_character_is_read() -> None:
    text = encode_token(replace(token_of([5, 2, 2**40]), dial=0.25))
    for place in range(len(text)):
        for character in ALPHABET + "=+/ é":
            if character != text[place]:
                assert_refused(text[:place] + character + text[place + 1 :])


@given(token=tokens, data=st.data())
def test_no_shortened_or_lengthened_token_is_read(token: PageToken, data: st.DataObject) -> None:
    text = encode_token(token)
    assert_refused(text[: data.draw(st.integers(0, len(text) - 1))])
    assert_refused(text + data.draw(st.text(ALPHABET, min_size=1, max_size=5)))


@given(st.text(max_size=60))
def test_texts_that_are_no_tokens_are_refused(text: str) -> None:
    assert_refused(text)


def test_tokens_of_another_version_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    text = encode_token(token_of([1]))
    monkeypatch.setattr(page_tokens, "_VERSION", 2)
    assert_refused(text)
    assert decode_token(encode_token(token_of([1]))).keys.tolist() == [1]


def test_tokens_of_too_many_points_are_refused() -> None:
    most = LIMITS["page_points_max"]
    longest = encode_token(token_of([2**63 - 1] * most))
    assert len(decode_token(longest).keys) == most
    assert len(longest) < LIMITS["message_bytes_max"] / 2
    assert_refused(encode_token(token_of([0] * (most + 1))))


def test_ten_pages_of_ten_make_a_short_token() -> None:
    assert len(encode_token(token_of([2**21 - 1 - n for n in range(100)]))) <= 400
    any_ids = token_of([2**63 - 1 - n for n in range(100)])
    assert len(encode_token(replace(any_ids, dial=0.5))) <= 1_200


def test_an_empty_token_says_that_there_is_no_page() -> None:
    with pytest.raises(
        InvalidArgumentError, match="is empty, because the page before was the last"
    ):
        decode_token("")
