"""The tokens of callers, in a TOML file that is read again when it changes.

The file has only the SHA-256 hash of each token. A slow hash, as for passwords, would defend
against guessing, but nobody can guess a random token of 256 bits, and each call computes the hash.
"""

import datetime as dt
import hashlib
import hmac
import math
import re
import secrets
import time
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from divgrpc.errors import InvalidArgumentError, invalid
from divgrpc_server.security.roles import ROLES
from divgrpc_server.security.watched_files import WatchedFiles

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_HASH: Final = re.compile(r"sha256:([0-9a-f]{64})")
_PATTERN: Final = re.compile(r"[a-z0-9_*-]{1,63}")
_HEADING: Final = re.compile(r"\s*\[\[\s*token\s*\]\]")
# The begin of each token, by which programs that look for leaked secrets recognise it.
_PREFIX: Final = "divgrpc_"
_SECRET_BYTES: Final = 32
_KEY: Final = secrets.token_bytes(16)
QUOTAS: Final = ("calls", "max_indexes", "max_rows", "max_bytes")
_KEYS: Final = ("name", "hash", "role", "indexes", "expires", *QUOTAS)


@dataclass(frozen=True, slots=True)
class Token:
    """One entry of the file; see the page "Security" for the fields.

    expires: seconds since 1970, infinity if the token does not expire.
    calls, max_indexes, max_rows, max_bytes: quotas, None where there is none.
    """

    name: str
    digest: bytes
    role: str
    indexes: tuple[str, ...]
    expires: float = math.inf
    calls: int | None = None
    max_indexes: int | None = None
    max_rows: int | None = None
    max_bytes: int | None = None

    # What each call asks, computed once: the place of the role in `ROLES`, whether the token covers
    # every index, whether a quota limits what its indexes hold, and the names that it covers.
    rank: int = field(init=False, compare=False)
    covers_all: bool = field(init=False, compare=False)
    limits_storage: bool = field(init=False, compare=False)
    _names: re.Pattern[str] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        patterns = map(_expression, self.indexes)
        limits = (self.max_indexes, self.max_rows, self.max_bytes)
        object.__setattr__(self, "rank", ROLES.index(self.role))
        object.__setattr__(self, "covers_all", "*" in self.indexes)
        object.__setattr__(self, "limits_storage", any(limit is not None for limit in limits))
        object.__setattr__(self, "_names", re.compile("|".join(patterns), re.DOTALL))

    def covers(self, index: str) -> bool:
        """Return whether a pattern matches the name of an index; `*` stands for any characters."""
        return self._names.fullmatch(index) is not None

    def quotas(self) -> dict[str, int]:
        """Return the quotas of the token by name."""
        values = {name: getattr(self, name) for name in QUOTAS}
        return {name: value for name, value in values.items() if value is not None}


def _expression(pattern: str) -> str:
    """Return a regular expression for a pattern.

    The parts between stars are atomic, so that no name takes long: the first place at which a part
    occurs is always good enough.
    """
    first, *middle = pattern.split("*")
    if not middle:
        return re.escape(first)
    last = middle.pop()
    parts = "".join(f"(?>.*?{re.escape(part)})" for part in middle)
    return f"{re.escape(first)}{parts}.*{re.escape(last)}"


class TokenFile:
    """The tokens of a file; if a new version is broken, the last good one stays in use."""

    def __init__(self, path: str) -> None:
        """Read the file; raises `InvalidArgumentError` as `parse` does."""
        self._file = WatchedFiles(
            (path,), lambda: {_place_of(t.digest): t for t in read(Path(path))}
        )

    def refresh(self) -> bool:
        """Read the file if it has changed since the last call; return whether tokens changed.

        Raises `InvalidArgumentError` once for each broken version.
        """
        return self._file.refresh()

    def find(self, secret: str) -> Token | None:
        """Return the token, None if there is none or if it has expired.

        The time of the search shows nothing of the tokens in the file: a hash of the digest with
        the key of this process finds the entry, which is compared in constant time.
        """
        digest = digest_of(secret)
        token = self._file.value.get(_place_of(digest))
        if token is None or not hmac.compare_digest(token.digest, digest):
            return None
        return token if time.time() < token.expires else None

    def is_valid(self, token: Token) -> bool:
        """Return whether a token is still in the file as it was, and has not expired."""
        return (
            self._file.value.get(_place_of(token.digest)) == token and time.time() < token.expires
        )


def _place_of(digest: bytes) -> bytes:
    """Return a keyed hash of a digest, which nobody outside of this process can compute."""
    return hashlib.blake2b(digest, digest_size=16, key=_KEY).digest()


def new_secret() -> str:
    """Return a new random token."""
    return _PREFIX + secrets.token_urlsafe(_SECRET_BYTES)


def digest_of(secret: str) -> bytes:
    """Return the SHA-256 hash of a token."""
    return hashlib.sha256(secret.encode()).digest()


def read(path: Path) -> tuple[Token, ...]:
    """Read the file of tokens; raises `InvalidArgumentError`, which names the file and the line."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise invalid("tokens", f"names {path}, which is not text in UTF-8") from error
    except OSError as error:
        raise invalid("tokens", f"names {path}, which cannot be read: {error.strerror}") from error
    return parse(text, path)


def parse(text: str, path: Path) -> tuple[Token, ...]:
    """Return the tokens of a file; raises `InvalidArgumentError`, which names `path` and a line."""
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        # Not only `TOMLDecodeError`: numbers may be too long, and lists too deep.
        raise invalid("tokens", f"names {path}, which is not TOML: {error}") from error
    entries = tables.pop("token", None)
    if tables or not isinstance(entries, list) or not all(isinstance(e, dict) for e in entries):
        raise invalid("tokens", f"names {path}, which must have [[token]] tables and nothing else")
    tokens: list[Token] = []
    names: set[str] = set()
    owners: dict[bytes, str] = {}
    for place, entry in enumerate(entries):
        try:
            token = _parse_entry(entry)
            if token.name in names:
                raise invalid("name", f"{token.name!r} occurs twice; each token needs its own")
            if token.digest in owners:
                raise invalid("hash", f"is also the hash of {owners[token.digest]!r}")
            names.add(token.name)
            owners[token.digest] = token.name
        except InvalidArgumentError as error:
            line = _line_of(text, place, error.field)
            raise invalid("tokens", f"names {path}, line {line}: {error}") from error
        tokens.append(token)
    return tuple(tokens)


def _parse_entry(entry: Mapping[str, object]) -> Token:
    for key in entry:
        if key not in _KEYS:
            raise invalid(key, f"is none of {', '.join(_KEYS)}")
    name, role, text = (_text(entry, key) for key in ("name", "role", "hash"))
    if not _NAME.fullmatch(name):
        raise invalid("name", "must be 1 to 64 of A-Z, a-z, 0-9, dot, _, @ and -")
    if role not in ROLES:
        raise invalid("role", f"must be one of {', '.join(ROLES)}, got {role!r}")
    digest = _HASH.fullmatch(text)
    if digest is None:
        raise invalid("hash", "must be sha256: and 64 hexadecimal digits in lower case")
    quotas = {key: _count(key, entry[key]) for key in QUOTAS if key in entry}
    expires = _time(entry["expires"]) if "expires" in entry else math.inf
    patterns = _patterns(entry.get("indexes"))
    return Token(name, bytes.fromhex(digest[1]), role, patterns, expires, **quotas)


def _patterns(value: object) -> tuple[str, ...]:
    rule = 'must be a list of names, in which * stands for any characters, such as ["shop-*"]'
    if not isinstance(value, list) or not value:
        raise invalid("indexes", rule)
    for pattern in value:
        if not isinstance(pattern, str) or not _PATTERN.fullmatch(pattern):
            raise invalid("indexes", f"{rule}, got {pattern!r}")
    return tuple(value)


def _text(entry: Mapping[str, object], key: str) -> str:
    value = entry.get(key)
    if not isinstance(value, str):
        raise invalid(key, "must be a text" if key in entry else "is missing")
    return value


def _count(key: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise invalid(key, f"must be a whole number from 0 up, got {value!r}")
    return value


def _time(value: object) -> float:
    if not isinstance(value, dt.datetime) or value.tzinfo is None:
        raise invalid("expires", "must be a time with its zone, such as 2027-01-01T00:00:00Z")
    return value.timestamp()


def _line_of(text: str, place: int, key: str) -> int:
    """Return the line of a key in the table number `place`, or else the line of its heading."""
    lines = text.splitlines()
    headings = [number for number, line in enumerate(lines) if _HEADING.match(line)]
    if place >= len(headings):
        return 1
    begin, end = headings[place], [*headings, len(lines)][place + 1]
    for number in range(begin, end):
        if re.match(rf"\s*{re.escape(key)}\s*=", lines[number]):
            return number + 1
    return begin + 1
