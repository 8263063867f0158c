"""The command `conformance`. Its docstring is its help text."""

import argparse
import importlib
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from divgrpc.conformance import CHECKS, IndexStore, ServerStore, Store, check_store
from divgrpc.errors import InvalidArgumentError, invalid
from divgrpc_client.cli.options import TIMEOUT_SECONDS, security, with_extra
from divgrpc_client.client import Client
from divgrpc_client.formats import json_output

# Exit code if a check failed.
EXIT_CODE: Final = 5


def add_conformance(verb: argparse.ArgumentParser) -> None:
    """Add the arguments of `conformance`."""
    text = "What to check: server, in-process, or MODULE:CLASS (default server)."
    verb.add_argument("store", metavar="STORE", nargs="?", default="server", help=text)
    verb.add_argument(
        "--checks",
        metavar="NAME",
        nargs="+",
        choices=[*CHECKS],
        help=f"Run only these checks: {', '.join(CHECKS)} (default: all).",
    )


def conformance(arguments: argparse.Namespace) -> int:
    """Check that a store keeps its promises about diverse results.

    The checks index 480 small points, and compare the answers to some hundred queries with what
    the options promise: diversity 0 equals the plain search, filters hold, pages repeat no point,
    and more. Each check has one of these outcomes:

      passed         the store does what the check requires
      failed         the store does something else, and the report says what
      not supported  the store has no such option

    STORE is one of:

      server        the server at --target; the index for the checks is deleted at the end
      in-process    divgrpc.Index in this process
      MODULE:CLASS  an adapter of another store, which divgrpc.conformance.Store describes

    The exit code is 0 if no check failed, else 5.

    Examples:
      divgrpc conformance
      divgrpc conformance in-process --checks zero filter
      divgrpc conformance my_adapters:MyStore --json
    """
    with _opened(arguments) as store:
        report = check_store(store, arguments.checks)
    if arguments.json:
        json_output.show({"store": report.store, "checks": report.results})
    else:
        sys.stdout.write(f"{report}\n")
    return EXIT_CODE if report.failures else 0


@contextmanager
def _opened(arguments: argparse.Namespace) -> Iterator[Store]:
    """Open the store that a command names, and leave nothing behind."""
    if arguments.store == "server":
        timeout = TIMEOUT_SECONDS if arguments.timeout is None else arguments.timeout
        with Client(arguments.target, timeout=timeout, **security(arguments)) as client:
            store = ServerStore(client, f"conformance-{secrets.token_hex(4)}")
            try:
                yield store
            finally:
                store.delete()
    elif arguments.store == "in-process":
        with with_extra("store", "the store in-process", "server"):
            index_store = IndexStore()
        yield index_store
    else:
        yield _adapter(arguments.store)


def _adapter(words: str) -> Store:
    """Make the adapter MODULE:CLASS; modules of the current folder are found, too."""
    name, _, attribute = words.partition(":")
    if not (name and attribute):
        raise invalid("store", f"must be server, in-process or MODULE:CLASS, got {words!r}")
    sys.path.insert(0, "")
    try:
        adapter: Store = getattr(importlib.import_module(name), attribute)()
    except (ModuleNotFoundError, AttributeError) as error:
        raise InvalidArgumentError("store", f"store {words}: {error}") from error
    return adapter
