"""The file of tokens, its faults, and the command that makes entries."""

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from divgrpc.errors import InvalidArgumentError
from divgrpc_server.__main__ import run
from divgrpc_server.security.roles import ROLES, includes
from divgrpc_server.security.tokens import QUOTAS, Token, TokenFile, digest_of, new_secret, parse
from support.requests.raw_security import entry, write

FILE = Path("tokens.toml")
GOOD = entry("good", "good", "reader", ["*"])


def text_with(line: str, *, after: str = "indexes") -> str:
    """Return two entries; the second, from line 7 on, has `line` in place of the one of a key."""
    lines = entry("other", "other", "admin", ["a"]).splitlines()
    place = next(n for n, text in enumerate(lines) if text.startswith(after))
    lines[place] = line
    return f"{GOOD}\n" + "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("", None, "must have [[token]] tables"),
        ("[token]\nname = 'x'", None, "must have [[token]] tables"),
        ("x = 1", None, "must have [[token]] tables"),
        ("[[token]]\nname = x", None, "line 2"),
        ("[[token]]\ncalls = " + "9" * 5_000, None, "is not TOML"),
        ("x = " + "[" * 100_000, None, "is not TOML"),
        (text_with('role = "owner"', after="role"), 10, "must be one of reader, writer, admin"),
        (text_with("", after="role"), 7, "role is missing"),
        (text_with('hash = "sha256:00"', after="hash"), 9, "64 hexadecimal digits"),
        (text_with("indexes = []"), 11, "must be a list of names"),
        (text_with('indexes = ["Shop"]'), 11, "'Shop'"),
        (text_with('indexes = ["../x"]'), 11, "'../x'"),
        (text_with("indexes = ['a']\nexpires = 2027-01-01"), 12, "a time with its zone"),
        (text_with("indexes = ['a']\ncalls = -1"), 12, "from 0 up"),
        (text_with("indexes = ['a']\ncalls = true"), 12, "from 0 up"),
        (text_with("indexes = ['a']\nmax_row = 5"), 12, "max_row is none of"),
        (text_with('name = "good"', after="name"), 8, "occurs twice"),
        (text_with('name = "a b"', after="name"), 8, "name must be"),
        (
            text_with(GOOD.splitlines()[2], after="hash"),
            9,
            "is also the hash of",
        ),
    ],
)
def test_faults_are_named_with_their_line(text: str, line: int | None, reason: str) -> None:
    with pytest.raises(InvalidArgumentError) as refusal:
        parse(text, FILE)
    message = str(refusal.value)
    assert refusal.value.field == "tokens"
    assert str(FILE) in message
    assert reason in message
    assert "\n" not in message
    if line is not None:
        assert f"line {line}:" in message


@pytest.mark.parametrize("content", [None, b"", b"\xff", b"[[token]]"])
def test_a_broken_file_ends_the_start(
    tmp_path: Path, content: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tokens.toml"
    if content is not None:
        file.write_bytes(content)
    assert run(["--tokens", str(file)], {}) == 2
    assert capsys.readouterr().err.startswith(f"divgrpc-server: tokens names {file}")


@given(st.text("ab*", min_size=1, max_size=6), st.text("ab", min_size=1, max_size=6))
def test_patterns_match_as_a_recursive_definition_says(pattern: str, name: str) -> None:
    def matches(pattern: str, name: str) -> bool:
        if not pattern:
            return not name
        if pattern[0] == "*":
            return matches(pattern[1:], name) or (bool(name) and matches(pattern, name[1:]))
        return bool(name) and name[0] == pattern[0] and matches(pattern[1:], name[1:])

    assert Token("x", b"", "reader", (pattern,)).covers(name) == matches(pattern, name)


def test_roles_include_those_before_them() -> None:
    for place, role in enumerate(ROLES):
        assert [includes(role, needed) for needed in ROLES] == [n <= place for n in range(3)]


def name_of(file: TokenFile, secret: str) -> str | None:
    token = file.find(secret)
    return None if token is None else token.name


def test_a_file_that_changes(tmp_path: Path) -> None:
    """A broken version is reported once and changes nothing."""
    path = tmp_path / "tokens.toml"
    write(path, entry("one", "one", "reader", ["*"]))
    file = TokenFile(str(path))
    assert name_of(file, "one") == "one"
    write(path, entry("two", "two", "reader", ["*"]))
    assert name_of(file, "one") == "one"
    assert file.refresh()
    assert name_of(file, "one") is None
    path.write_text("nothing")
    with pytest.raises(InvalidArgumentError):
        file.refresh()
    assert not file.refresh()
    path.unlink()
    with pytest.raises(InvalidArgumentError):
        file.refresh()
    assert name_of(file, "two") == "two"
    end = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 2))
    write(path, entry("two", "two", "reader", ["*"], expires=end))
    assert file.refresh()
    assert name_of(file, "two") is None


def test_a_file_that_could_not_be_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rights may change, or a descriptor become free, while the file stays the same."""
    path = tmp_path / "tokens.toml"
    write(path, entry("one", "one", "reader", ["*"]))
    tokens = TokenFile(str(path))
    write(path, entry("two", "two", "reader", ["*"]))
    monkeypatch.setattr(Path, "read_text", _fail)
    with pytest.raises(InvalidArgumentError, match="cannot be read"):
        tokens.refresh()
    assert not tokens.refresh()  # the same reason is given once
    monkeypatch.undo()
    assert tokens.refresh()
    assert tokens.find("two") is not None


def _fail(*_arguments: object, **_options: object) -> str:
    raise PermissionError(13, "Permission denied")


def test_the_command_makes_an_entry_for_its_secret(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tokens.toml"
    options = ["--role", "writer", "--indexes", "shop-*", "faq", "--days", "3"]
    quotas = [word for name in QUOTAS for word in (f"--{name.replace('_', '-')}", "7")]
    assert run(["token", "shop", *options, *quotas, "--append", str(path)], {}) == 0
    secret = capsys.readouterr().out.strip()
    assert run(["token", "more", *options], {}) == 0
    out, err = capsys.readouterr()
    assert out.strip() not in err
    path.write_text(path.read_text() + err.partition("\n\n")[2].partition("\nThe token")[0])
    shop, more = parse(path.read_text(), path)
    assert (shop.name, shop.role, shop.indexes) == ("shop", "writer", ("shop-*", "faq"))
    assert shop.digest == digest_of(secret)
    assert more.digest == digest_of(out.strip())
    assert shop.quotas() == dict.fromkeys(QUOTAS, 7)
    assert more.quotas() == {}
    assert 2.9 * 86_400 < shop.expires - time.time() < 3.1 * 86_400
    assert path.stat().st_mode & 0o077 == 0
    before = path.read_text()
    assert run(["token", "shop", *options, "--append", str(path)], {}) == 2
    assert "occurs twice" in capsys.readouterr().err
    assert path.read_text() == before


def test_secrets_are_long_and_differ() -> None:
    secrets = {new_secret() for _ in range(100)}
    assert len(secrets) == 100
    assert all(len(secret) == len("divgrpc_") + 43 for secret in secrets)
