"""What each command of the command line does: read, call, show."""

import argparse
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final, TypeAlias

from divgrpc.errors import InvalidArgumentError, UnsupportedError
from divgrpc.types import Progress
from divgrpc_client import machine
from divgrpc_client.client import Client
from divgrpc_client.files import read_column, read_vectors
from divgrpc_client.options import BuildOptions, QueryOptions

# A person asks for a whole file at once, and waits; a service has the client's shorter default.
TIMEOUT_SECONDS: Final = 30.0

Tell: TypeAlias = Callable[[Progress], None]


def build(arguments: argparse.Namespace) -> None:
    """Index the rows of a file."""
    path = Path(arguments.file)
    vectors = read_vectors(path, arguments.key)
    columns = {
        name: None if source is None else read_column(source, path)
        for name in ("ids", "categories", "subtopics")
        for source in [getattr(arguments, name)]
    }
    with _client(arguments) as client, _bar(arguments) as progress:
        info = client.build(
            arguments.name,
            vectors,
            ids=columns["ids"],
            categories=columns["categories"],
            subtopics=columns["subtopics"],
            replace=arguments.replace,
            progress=progress,
            timeout=arguments.timeout,
            **_given(arguments, BuildOptions),
        )
    if arguments.json:
        machine.show(info)
    else:
        from divgrpc_client import display

        display.built(info)


def query(arguments: argparse.Namespace) -> None:
    """Ask an index about the rows of a file."""
    path = Path(arguments.file)
    queries = read_vectors(path, arguments.key)
    rows = _rows(arguments.rows, len(queries))
    with _client(arguments) as client:
        result = client.query(
            arguments.name,
            queries[rows.start : rows.stop],
            timeout=arguments.timeout,
            **_given(arguments, QueryOptions),
        )
    if arguments.json:
        machine.show_result(result, rows)
    else:
        from divgrpc_client import display

        display.result(result, rows)


def ls(arguments: argparse.Namespace) -> None:
    """List the indexes."""
    with _client(arguments) as client:
        indexes = client.list_indexes(timeout=arguments.timeout)
    if arguments.json:
        machine.show(indexes)
    else:
        from divgrpc_client import display

        display.indexes(indexes)


def info(arguments: argparse.Namespace) -> None:
    """Show one index."""
    with _client(arguments) as client:
        index = client.get_index(arguments.name, timeout=arguments.timeout)
    if arguments.json:
        machine.show(index)
    else:
        from divgrpc_client import display

        display.index(index)


def rm(arguments: argparse.Namespace) -> None:
    """Delete an index."""
    with _client(arguments) as client:
        generation = client.delete_index(arguments.name, timeout=arguments.timeout)
    if arguments.json:
        machine.show({"name": arguments.name, "generation": generation})
    else:
        sys.stdout.write(f"deleted {arguments.name}, last served as generation {generation}\n")


def demo(arguments: argparse.Namespace) -> int:
    """Run the demonstration; returns its exit code."""
    try:
        from divgrpc_client.reports import demo as report
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            "demo", f"the demonstration needs {error.name}: install divgrpc[server,report]"
        ) from None
    return report.run(Path(arguments.folder))


def _bar(
    arguments: argparse.Namespace,
) -> AbstractContextManager[Callable[[Progress], None] | None]:
    if arguments.json or not sys.stderr.isatty():
        return nullcontext()
    from divgrpc_client import display

    return display.bar()


def _client(arguments: argparse.Namespace) -> Client:
    return Client(arguments.target, timeout=TIMEOUT_SECONDS)


def _given(arguments: argparse.Namespace, table: type) -> Any:  # noqa: ANN401  # that TypedDict
    return {name: getattr(arguments, name) for name in table.__annotations__ if name in arguments}


def _rows(text: str | None, count: int) -> range:
    # As Python slices: 3:5, :10, -2:, or one row by its number.
    if text is None:
        return range(count)
    first, colon, last = text.partition(":")
    try:
        start, stop = (int(part) if part else None for part in (first, last))
    except ValueError:
        raise InvalidArgumentError(
            "rows", f"rows must be START:STOP or a number, got {text!r}"
        ) from None
    if not colon and start is not None:
        stop = start + 1 if start != -1 else None
    chosen = range(count)[start:stop]
    if not chosen:
        raise InvalidArgumentError("rows", f"rows {text!r} are none of the file's {count}")
    return chosen
