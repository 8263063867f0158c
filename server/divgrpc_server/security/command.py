"""The command `divgrpc-server token`, which makes a token."""

import argparse
import datetime as dt
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from divgrpc.errors import InvalidArgumentError
from divgrpc_server.security import tokens
from divgrpc_server.security.roles import ROLES

_DESCRIPTION: Final = """\
Makes a token for a caller of the server.

The secret is printed once, on standard output, and is stored nowhere: give it to the caller. The
entry for the server's file of tokens has only its hash. Without --append, the entry is printed on
standard error. A running server uses a changed file within a second.

To replace a token, make another one with a new name, give it to the caller, and later remove the
old entry. To revoke a token, remove its entry.
"""
_EPILOG: Final = """\
Examples:
  divgrpc-server token shop --role reader --indexes 'shop-*'
  divgrpc-server token shop --role writer --indexes 'shop-*' --append tokens.toml > shop.token
  divgrpc-server token trial --role reader --indexes '*' --days 30 --calls 4
  divgrpc-server --tokens tokens.toml
"""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    command = argparse.ArgumentParser(
        prog="divgrpc-server token",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.add_argument("name", metavar="NAME", help="name of the token in logs")
    command.add_argument("--role", required=True, choices=ROLES, help="what the token permits")
    command.add_argument(
        *("--indexes", "-i"),
        required=True,
        nargs="+",
        metavar="PATTERN",
        help="names of indexes that the token covers; * stands for any characters",
    )
    command.add_argument("--days", type=int, metavar="N", help="days until the token expires")
    helps = {
        "calls": "calls in flight at each front",
        "max_indexes": "indexes that the patterns cover",
        "max_rows": "points of these indexes",
        "max_bytes": "bytes of these indexes",
    }
    for name, text in helps.items():
        flag = "--" + name.replace("_", "-")
        command.add_argument(flag, type=int, metavar="N", help=f"quota: the most {text}")
    command.add_argument("--append", metavar="FILE", help="append the entry to this file")
    return command


def run(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code: 2 if an argument or the file is wrong."""
    options = parser().parse_args(arguments)
    secret = tokens.new_secret()
    entry = _entry(options, secret)
    file = Path(options.append) if options.append else None
    try:
        tokens.parse(entry, Path("the new entry"))
        if file is not None:
            text = file.read_text(encoding="utf-8") if file.exists() else ""
            tokens.parse(f"{text}\n{entry}", file)
            _append(file, f"\n{entry}" if text else entry)
    except (InvalidArgumentError, OSError) as error:
        sys.stderr.write(f"divgrpc-server token: {error}\n")
        return 2
    if file is None:
        sys.stderr.write(f"Append this to the file of tokens:\n\n{entry}\nThe token:\n")
    sys.stdout.write(f"{secret}\n")
    return 0


def _entry(options: argparse.Namespace, secret: str) -> str:
    patterns = ", ".join(f'"{pattern}"' for pattern in options.indexes)
    lines = [
        "[[token]]",
        f'name = "{options.name}"',
        f'hash = "sha256:{tokens.digest_of(secret).hex()}"',
        f'role = "{options.role}"',
        f"indexes = [{patterns}]",
    ]
    if options.days is not None:
        end = dt.datetime.now(dt.UTC) + dt.timedelta(days=options.days)
        lines.append(f"expires = {end.strftime('%Y-%m-%dT%H:%M:%SZ')}")
    quotas = ((name, getattr(options, name)) for name in tokens.QUOTAS)
    lines += [f"{name} = {value}" for name, value in quotas if value is not None]
    return "\n".join(lines) + "\n"


def _append(file: Path, text: str) -> None:
    """Append in one write, so that a server never reads a part; a new file is for its owner."""
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
