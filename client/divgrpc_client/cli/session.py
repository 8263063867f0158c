"""The client and the progress bar of a command."""

import argparse
import sys
from contextlib import AbstractContextManager, nullcontext

from divgrpc_client.cli.options import TIMEOUT_SECONDS, security, with_extra
from divgrpc_client.client import Client
from divgrpc_client.messages.options import OnProgress


def connect(arguments: argparse.Namespace) -> Client:
    """Return a client of the server that a command names."""
    # Tables need rich. The commands with --csv import rich even to print CSV or JSON.
    if not arguments.json or "csv" in arguments:
        with with_extra("json", "this command", "cli"):
            import rich  # noqa: F401  # refused here, before the server does anything
    return Client(arguments.target, timeout=TIMEOUT_SECONDS, **security(arguments))


def bar(arguments: argparse.Namespace, unit: str = "rows") -> AbstractContextManager[OnProgress]:
    """Return a progress bar for people who watch a terminal, and None for anybody else."""
    if arguments.json or not sys.stderr.isatty():
        return nullcontext()
    from divgrpc_client.formats import tables

    return tables.bar(unit)
