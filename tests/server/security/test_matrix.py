"""Calls of every method, role and pattern are permitted as the page Security says."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from divgrpc_client import Client
from divgrpc_server.security.roles import ROLE_OF_METHOD, ROLES, includes
from support.checks.documentation import pages
from support.processes.running_server import RunningServer
from support.requests.named_requests import METHODS, NAMELESS, naming
from support.requests.raw_security import Answer, call, entry, write

PATTERNS = {"all": ["*"], "prefix": ["shop-*"], "names": ["faq", "shop-1"], "other": ["news"]}
# Whether a pattern covers shop-1, shop-2, and news-1, which exists but is covered by `all` alone.
COVERED = {"all": "111", "prefix": "110", "names": "100", "other": "000"}
INDEXES = ("shop-1", "shop-2", "news-1")
_DENIED, _UNKNOWN = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED
_ROW = re.compile(r"^\| `(\w+)` \| (yes|no) \| (yes|no) \| (yes|no) \| ([^|]+) \|$", re.M)


def documented() -> dict[str, dict[str, bool]]:
    """Return for each call of the page which role may make it."""
    section = pages()["guide/security.md"].partition("### Roles")[2].partition("\n### ")[0]
    return {
        name: {role: word == "yes" for role, word in zip(ROLES, words, strict=True)}
        for name, *words, _ in _ROW.findall(section)
    }


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Run a server with a token for each role and pattern, and the index news-1."""
    folder = tmp_path_factory.mktemp("matrix")
    entries = [
        entry(f"{role}-{pattern}", f"{role}-{pattern}", role, names)
        for role in ROLES
        for pattern, names in PATTERNS.items()
    ]
    late = entry("late", "late", "admin", ["*"], expires="2020-01-01T00:00:00Z")
    file = write(folder / "tokens.toml", *entries, late)
    with RunningServer(folder, "--tokens", str(file), "--workers", "1") as server:
        with Client(server.target, token="admin-all", timeout=60) as client:  # noqa: S106
            client.build("news-1", [[1.0, 0.0], [0.0, 1.0]])
        yield server


def test_the_page_has_every_call() -> None:
    table = documented()
    assert tuple(sorted(table)) == METHODS == tuple(sorted(ROLE_OF_METHOD))
    for method, roles in table.items():
        assert roles == {role: includes(role, ROLE_OF_METHOD[method]) for role in ROLES}


@pytest.mark.parametrize("method", METHODS)
def test_calls_without_a_valid_token(guarded: RunningServer, method: str) -> None:
    """All of them are UNAUTHENTICATED, and unknown and expired tokens get the same answer."""
    reasons = {
        None: "TOKEN_MISSING",
        "admin-all": "TOKEN_MALFORMED",
        "Bearer ": "TOKEN_MALFORMED",
        "Basic admin-all": "TOKEN_MALFORMED",
        "Bearer wrong": "TOKEN_REFUSED",
        "Bearer admin-al": "TOKEN_REFUSED",
        "Bearer admin-all2": "TOKEN_REFUSED",
        "Bearer late": "TOKEN_REFUSED",
    }
    answers: dict[str, set[Answer]] = {}
    with guarded.channel() as channel:
        for index in INDEXES:
            for token, reason in reasons.items():
                answer = call(channel, method, naming(method, index), token)
                assert (answer.code, answer.reason) == (_UNKNOWN, reason), token
                assert answer.messages == []
                answers.setdefault(reason, set()).add(answer._replace(messages=()))  # type: ignore[arg-type]
    assert all(len(same) == 1 for same in answers.values())


@pytest.mark.parametrize("method", METHODS)
def test_calls_with_a_valid_token(guarded: RunningServer, method: str) -> None:
    """A role that permits the call, and a pattern that covers the index, are both needed."""
    table = documented()
    with guarded.channel() as channel:
        for role in ROLES:
            for pattern, bits in COVERED.items():
                for index, bit in zip(INDEXES, bits, strict=True):
                    if method == "DeleteIndex" and index == "news-1" and bit == "1":
                        continue  # other calls need it
                    answer = call(
                        channel, method, naming(method, index), f"bearer {role}-{pattern}"
                    )
                    is_permitted = table[method][role] and (bit == "1" or method in NAMELESS)
                    assert (answer.code != _DENIED) == is_permitted, (role, pattern, index, answer)
                    assert answer.code != _UNKNOWN
                    if not is_permitted:
                        assert answer.reason == "PERMISSION_DENIED"
                        assert f"role {role}" in answer.detail
                        assert answer.messages == []


@pytest.mark.parametrize("method", [method for method in METHODS if method not in NAMELESS])
def test_an_index_that_is_not_covered_is_not_revealed(guarded: RunningServer, method: str) -> None:
    """news-1 exists and news-2 does not; the answers differ by the name alone."""
    with guarded.channel() as channel:
        answers = [
            call(channel, method, naming(method, index), "Bearer admin-prefix")
            for index in ("news-1", "news-2")
        ]
    assert answers[0].code is _DENIED
    assert answers[0] == answers[1]._replace(detail=answers[1].detail.replace("news-2", "news-1"))


@pytest.mark.parametrize("method", ["Evaluate", "EvaluateLabels"])
def test_set_default_needs_the_role_admin(guarded: RunningServer, method: str) -> None:
    request = naming(method, "news-1") + (b"\x68\x01" if method == "Evaluate" else b"\x78\x01")
    with guarded.channel() as channel:
        for role in ROLES:
            answer = call(channel, method, request, f"Bearer {role}-all")
            assert (answer.code is _DENIED) == (role != "admin")
            assert ("set_default" in answer.detail) == (role != "admin")


def test_lists_have_covered_indexes_alone(guarded: RunningServer) -> None:
    names = {}
    for pattern in PATTERNS:
        with Client(guarded.target, token=f"reader-{pattern}", timeout=30) as client:
            names[pattern] = [info.name for info in client.list_indexes()]
    assert names == {"all": ["news-1"], "prefix": [], "names": [], "other": []}


def test_reflection_needs_a_token_and_health_does_not(tmp_path: Path) -> None:
    file = write(tmp_path / "tokens.toml", entry("one", "one", "reader", ["*"]))
    watch, reflect = "/grpc.health.v1.Health/Check", "grpc.reflection.v1.ServerReflection"
    path = f"/{reflect}/ServerReflectionInfo"
    for option, code in (
        ("--reflection", _UNKNOWN),
        ("--workers=1", grpc.StatusCode.UNIMPLEMENTED),
    ):
        with (
            RunningServer(tmp_path, "--tokens", str(file), option) as server,
            server.channel() as bare,
        ):
            channel: Any = bare
            assert channel.unary_unary(watch)(b"", timeout=30) == b"\x08\x01"
            with pytest.raises(grpc.RpcError) as refusal:
                list(channel.stream_stream(path)(iter((b"\x3a\x01*",)), timeout=30))
            assert refusal.value.code() is code
            if code is _UNKNOWN:
                token = (("authorization", "Bearer one"),)
                stream = channel.stream_stream(path)
                assert list(stream(iter((b"\x3a\x01*",)), timeout=30, metadata=token))
