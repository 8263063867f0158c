"""Commands that read stored points: get, count, scroll and export.

The docstring of a command is its help text.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import Final

from divgrpc.errors import InvalidArgumentError, invalid
from divgrpc.types import IndexInfo, Progress
from divgrpc.types.records import Records
from divgrpc_client.cli import session
from divgrpc_client.cli.options import add_flags, add_name
from divgrpc_client.cli.where import add_filter, filter_of, typed_ids
from divgrpc_client.formats import json_output
from divgrpc_client.formats.json_lines import as_object
from divgrpc_client.formats.record_files import EXPORT_FILES, record_writer

# Number of points that scroll shows.
_SHOWN: Final = 20
_WITH: Final = (
    ("--with-vectors", "", "Return vectors too; under cosine of unit length."),
    ("--with-labels", "", "Return labels, categories and sub-topics too."),
)


def add_get(verb: argparse.ArgumentParser) -> None:
    """Add the arguments of `get`."""
    add_name(verb)
    verb.add_argument("ids", metavar="ID", nargs="+", help="The ids of the points.")
    add_flags(verb, *_WITH)


def get(arguments: argparse.Namespace) -> int:
    """Show stored points by id: attributes, payloads and, if asked for, vectors and labels.

    With --json, each point is a line of JSON, in the format that divgrpc build reads. If an id is
    not found, an error names it, and the exit code is 1.

    Examples:
      divgrpc get shoes a-17 b-4
      divgrpc get shoes a-17 --with-vectors --json
      divgrpc get papers 7 --with-labels
    """
    with session.connect(arguments) as client:
        info = client.get_index(arguments.name, timeout=arguments.timeout)
        ids = typed_ids(arguments.ids, info.id_kind, "ids")
        records = client.get(
            arguments.name,
            ids,
            with_vectors=arguments.with_vectors,
            with_labels=arguments.with_labels,
            timeout=arguments.timeout,
        )
    if len(records):
        _show(arguments, records)
    stored = set(map(str, records.ids.tolist()))
    absent = [str(i) for i in ids if str(i) not in stored]
    for point_id in absent:
        sys.stderr.write(f"divgrpc: no point has the id {point_id}\n")
    return 1 if absent else 0


def add_count(verb: argparse.ArgumentParser) -> None:
    """Add the arguments of `count`."""
    add_name(verb)
    add_filter(verb)


def count(arguments: argparse.Namespace) -> None:
    """Show the number of points of an index, or the number of points that pass conditions.

    Examples:
      divgrpc count shoes
      divgrpc count shoes --where 'price<20' --where brand=acme
    """
    condition = filter_of(arguments)
    with session.connect(arguments) as client:
        points = client.count(arguments.name, condition, timeout=arguments.timeout)
    value = {"name": arguments.name, "count": points}
    json_output.show_or_write(value, str(points), as_json=arguments.json)


def add_scroll(verb: argparse.ArgumentParser) -> None:
    """Add the arguments of `scroll`."""
    add_name(verb)
    limit = f"Show at most N points (default {_SHOWN})."
    add_flags(verb, ("--limit", "N", limit), default=_SHOWN)
    add_filter(verb)
    add_flags(verb, *_WITH)


def scroll(arguments: argparse.Namespace) -> None:
    """Show the first points of an index, in the order of their ids.

    The order of text ids is fixed, but not alphabetical. divgrpc export writes all points.

    Examples:
      divgrpc scroll shoes
      divgrpc scroll shoes --limit 100 --json
      divgrpc scroll shoes --where 'brand absent'
    """
    left = arguments.limit
    if left < 1:
        raise invalid("limit", f"must be at least 1, got {left}")
    condition = filter_of(arguments)
    with session.connect(arguments) as client:
        pages = client.scroll(
            arguments.name,
            condition,
            with_vectors=arguments.with_vectors,
            with_labels=arguments.with_labels,
            page_size=min(left, 1_000),
            timeout=arguments.timeout,
        )
        for page in pages:
            _show(arguments, page, left)
            left -= len(page)
            if left <= 0:
                break


def add_export(verb: argparse.ArgumentParser) -> None:
    """Add the arguments of `export`."""
    add_name(verb)
    suffixes = " or ".join(EXPORT_FILES)
    verb.add_argument("file", metavar="FILE", help=f"The file to write, which ends in {suffixes}.")
    add_flags(verb, ("--overwrite", "", "Replace FILE if it exists."))
    add_filter(verb)


def export(arguments: argparse.Namespace) -> None:
    """Write all points of an index, or those that pass conditions, to a file for divgrpc build.

    FILE has the id, vector, attributes and payload of each point, and its labels, category and
    sub-topic if the index has some: as a line of JSON or, if its name ends in .parquet, as a row of
    a table. An .npz has them as arrays of numpy; all points must fit into memory. FILE appears only
    when it is complete. It has neither the parameters of the index, such as its metric, nor a label
    model and the names and hierarchy of labels. Under cosine, vectors have unit length.

    Examples:
      divgrpc export shoes shoes.jsonl
      divgrpc build shoes-2 shoes.jsonl --metric cosine
      divgrpc export shoes cheap.jsonl --where 'price<20'
    """
    path = Path(arguments.file)
    if path.suffix not in EXPORT_FILES:
        raise InvalidArgumentError("file", f"{path} must end in {' or '.join(EXPORT_FILES)}")
    if path.exists() and not arguments.overwrite:
        raise InvalidArgumentError("file", f"{path} exists; --overwrite replaces it")
    if not path.parent.is_dir():
        raise InvalidArgumentError("file", f"{path} must be in a folder that exists")
    part, condition = path.with_name(f".{path.name}.part"), filter_of(arguments)
    try:
        with session.connect(arguments) as client:
            info = client.get_index(arguments.name, timeout=arguments.timeout)
            points, timeout = 0, arguments.timeout
            total = client.count(arguments.name, condition, timeout=timeout)
            pages = client.scroll(
                arguments.name,
                condition,
                with_vectors=True,
                with_labels=True,
                timeout=timeout,
            )
            with (
                session.bar(arguments, "points") as progress,
                record_writer(part, path.suffix, info) as write,
            ):
                for page in pages:
                    _check_generation(info, page)
                    write(page)
                    points += len(page)
                    if progress is not None:
                        progress(Progress("exporting", points, total))
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    value = {"name": info.name, "generation": info.generation, "count": points}
    text = f"{points} points of {info.name} in {path}"
    json_output.show_or_write(value, text, as_json=arguments.json)
    if left_out := _left_out(info):
        sys.stderr.write(f"divgrpc: not exported: {', '.join(left_out)}\n")


def _left_out(info: IndexInfo) -> list[str]:
    """Return what an index has about labels that a file of points has not."""
    labels = info.labels
    if labels is None:
        return []
    parts = ["the label model"] * (labels.rank > 0) + ["names of labels"] * labels.has_names
    return parts + ["the hierarchy of labels"] * labels.has_hierarchy


def _check_generation(info: IndexInfo, page: Records) -> None:
    if page.generation != info.generation:
        raise InvalidArgumentError(
            "name", f"index {info.name!r} was replaced while it was exported; export it again"
        )


def _show(arguments: argparse.Namespace, records: Records, limit: int | None = None) -> None:
    shown = list(records)[:limit]
    if arguments.json:
        for record in shown:
            json_output.show(as_object(record, records))
        return
    from divgrpc_client.formats import tables

    tables.points(shown, list(records.attributes))
