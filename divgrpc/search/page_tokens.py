"""Encodes and decodes the tokens with which a query continues after its last page.

A token says what the pages so far have shown, so a server keeps nothing between two pages. Callers
must not interpret it. It is base64url without padding, of these bytes:

    version 1, checksum 4 (CRC-32 of all that follows), fingerprint 8, flags 1,
    threshold 8 (float64, if the flags say so), dial 1 (if the flags say so),
    generation, sequence, candidates_limit, hash_limit, count (varints),
    width 1 (bits of a key), keys (count times width bits, big-endian, zeros up to a whole byte)

Keys are in the order in which points were shown, because the sums of a selector are rounded in this
order. An unordered set with the order beside it would be no shorter. The checksum finds errors, not
attacks: a forged token can only change the pages of the caller who forged it.
"""

import base64
import binascii
import struct
import zlib
from dataclasses import dataclass
from typing import Final

import numpy as np

from divgrpc.errors import invalid
from divgrpc.parameters.limits import LIMITS
from divgrpc.types import IntArray

_VERSION: Final = 1
_HEAD: Final = struct.Struct(">BI")
FINGERPRINT_BYTES: Final = 8
_HAS_THRESHOLD: Final = 1
_HAS_DIAL: Final = 2
_THRESHOLD: Final = struct.Struct(">d")
# The dial that a query chose for itself is a multiple of 1 / _DIAL_STEPS.
_DIAL_STEPS: Final = 32
_KEY_BITS_MAX: Final = 63
_VARINT_BITS_MAX: Final = 64
# More characters than the longest valid token has.
_CHARACTERS_MAX: Final = 2 * LIMITS["page_points_max"] * 8
_UNREADABLE: Final = "must be next_page_token of the page before, unchanged"
_EMPTY: Final = "is empty, because the page before was the last one"


@dataclass(frozen=True, slots=True, eq=False)
class PageToken:
    """What a page knows of the pages before it.

    fingerprint: 8 bytes that identify the request.
    generation, sequence: what page 1 showed.
    candidates_limit, hash_limit: limits of the pool; 0 means no limit.
    keys: (m,) int64 integer ids, or keys of text ids, of all points shown, in the order of showing.
    threshold: threshold of near-copies, None if nothing is collapsed.
    dial: the dial that page 1 chose, None if the request sets it.
    reason: why page 1 chose it, as in `kernels.records.Results.reasons`.
    """

    fingerprint: bytes
    generation: int
    sequence: int
    candidates_limit: int
    hash_limit: int
    keys: IntArray
    threshold: float | None = None
    dial: float | None = None
    reason: int = 0


def encode_token(token: PageToken) -> str:
    """Return a token as a text of letters, digits, `-` and `_`."""
    flags = _HAS_THRESHOLD * (token.threshold is not None) | _HAS_DIAL * (token.dial is not None)
    body = bytearray(token.fingerprint)
    body.append(flags)
    if token.threshold is not None:
        body += _THRESHOLD.pack(token.threshold)
    if token.dial is not None:
        body += bytes((round(token.dial * _DIAL_STEPS), token.reason))
    numbers = (token.generation, token.sequence, token.candidates_limit, token.hash_limit)
    for number in (*numbers, len(token.keys)):
        _append_varint(body, number)
    width = int(token.keys.max()).bit_length() if len(token.keys) else 0
    body.append(width)
    body += _pack(token.keys, width)
    payload = _HEAD.pack(_VERSION, zlib.crc32(body)) + body
    return base64.urlsafe_b64encode(payload).rstrip(b"=").decode()


def decode_token(text: object) -> PageToken:
    """Return the token in a text; raises `InvalidArgumentError` with the field `page_token`."""
    if not text:
        raise invalid("page_token", _EMPTY)
    try:
        return _decode(text if isinstance(text, str) else "")
    except (ValueError, IndexError, struct.error):
        raise invalid("page_token", _UNREADABLE) from None


def _decode(text: str) -> PageToken:
    payload = _bytes_of(text)
    version, checksum = _HEAD.unpack_from(payload)
    body = payload[_HEAD.size :]
    if version != _VERSION or zlib.crc32(body) != checksum:
        raise ValueError
    reader = _Reader(body)
    fingerprint, flags = reader.take(FINGERPRINT_BYTES), reader.byte()
    threshold = dial = None
    reason = 0
    if flags & _HAS_THRESHOLD:
        (threshold,) = _THRESHOLD.unpack(reader.take(_THRESHOLD.size))
    if flags & _HAS_DIAL:
        dial, reason = reader.byte() / _DIAL_STEPS, reader.byte()
    generation, sequence, candidates_limit, hash_limit, count = (reader.varint() for _ in range(5))
    width = reader.byte()
    if count > LIMITS["page_points_max"] or width > _KEY_BITS_MAX:
        raise ValueError
    keys = _unpack(reader.take((count * width + 7) // 8), count, width)
    if reader.place != len(body):
        raise ValueError
    return PageToken(
        *(fingerprint, generation, sequence, candidates_limit, hash_limit),
        *(keys, threshold, dial, reason),
    )


def _bytes_of(text: str) -> bytes:
    """Return the bytes in base64url; raises ValueError unless `text` is their only form."""
    if len(text) > _CHARACTERS_MAX:
        raise ValueError
    try:
        payload = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error:
        raise ValueError from None
    if base64.urlsafe_b64encode(payload).rstrip(b"=").decode() != text:
        raise ValueError
    return payload


class _Reader:
    """Reads bytes from the front on, and raises IndexError at the end."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self.place = 0

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes."""
        start, self.place = self.place, self.place + count
        if self.place > len(self._body):
            raise IndexError
        return self._body[start : self.place]

    def byte(self) -> int:
        """Return the next byte."""
        return self.take(1)[0]

    def varint(self) -> int:
        """Return the number in the next bytes, seven bits in each, the lowest first."""
        number = shift = 0
        while True:
            byte = self.byte()
            number |= (byte & 0x7F) << shift
            if byte <= 0x7F:
                return number
            shift += 7
            if shift >= _VARINT_BITS_MAX:
                raise ValueError


def _append_varint(body: bytearray, number: int) -> None:
    while number > 0x7F:
        body.append(number & 0x7F | 0x80)
        number >>= 7
    body.append(number)


def _pack(keys: IntArray, width: int) -> bytes:
    """Return the last `width` bits of each key, one after the other."""
    bits = np.unpackbits(keys.astype(">u8").view(np.uint8)).reshape(-1, 64)
    return np.packbits(bits[:, 64 - width :]).tobytes()


def _unpack(packed: bytes, count: int, width: int) -> IntArray:
    """Return the `count` keys in the bytes that `_pack` made."""
    bits = np.zeros((count, 64), np.uint8)
    flat = np.unpackbits(np.frombuffer(packed, np.uint8), count=count * width)
    bits[:, 64 - width :] = flat.reshape(count, width)
    return np.packbits(bits).view(">u8").astype(np.int64)
