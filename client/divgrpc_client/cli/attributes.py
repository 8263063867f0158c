"""The command `attributes`, which has commands of its own.

The docstring of a command is its help text.
"""

import argparse
from pathlib import Path
from typing import Any, Final, cast, get_args

from divgrpc.errors import InvalidArgumentError, invalid
from divgrpc.types.records import AttributeType
from divgrpc_client.cli import options, session
from divgrpc_client.formats import json_output
from divgrpc_client.formats.attribute_files import ATTRIBUTE_FILES, read_attributes
from divgrpc_client.formats.column_files import with_types

_GROUP: Final = """\
Change the attributes of the points of an index.

Examples:
  divgrpc attributes add shoes seasons.csv
"""


def add_group(verbs: Any) -> None:  # noqa: ANN401  # argparse names no type
    """Add the command `attributes` and its commands."""
    verb = options.add(options.add_group(verbs, "attributes", _GROUP), add)
    options.add_common(verb)
    options.add_name(verb)
    suffixes = ", ".join(ATTRIBUTE_FILES)
    verb.add_argument(
        "file", metavar="FILE", help=f"A file with the values of points ({suffixes})."
    )
    types = "keyword, integer, float or bool. Other types are found from the values"
    options.add_flags(
        verb, ("--types", "NAME=TYPE", f"Give attributes these types: {types}."), nargs="+"
    )


def add(arguments: argparse.Namespace) -> None:
    """Add attributes to the points of the index NAME, from the columns of FILE.

    A .csv file begins with a line of names. Its column `id` says which point a line belongs to, and
    every other column is a new attribute:

      id,season,year
      boot-1,autumn,2024
      shoe-1,,2025

    A .jsonl file has a line of JSON per point, where a list gives a point several values:

      {"id": "boot-1", "attributes": {"season": "autumn", "sizes": [38, 39]}}

    A .parquet file has columns as a .csv file has. Vectors and payloads in a file are ignored.

    An empty value is missing, and a point without a line has no value. A file without ids has a
    line for each point, in the order in which the index was built.

    The server adds the attributes in one pass in the background. Queries continue meanwhile, and
    give the same answers afterwards. The index must not have attributes of these names yet.

    Examples:
      divgrpc attributes add shoes seasons.csv
      divgrpc attributes add shoes seasons.csv --types code=keyword price=float
      divgrpc attributes add shoes seasons.jsonl --json
      divgrpc query shoes queries.npy --where season=autumn
    """
    types = _types(arguments.types or ())
    path = Path(arguments.file)
    with session.connect(arguments) as client:
        info = client.get_index(arguments.name)
        texts = {name for name, kind in types.items() if kind == "keyword"}
        ids, columns = read_attributes(path, texts, has_text_ids=info.id_kind == "string")
        for name in types:
            if name not in columns:
                raise invalid("types", f"names {name!r:.80}, and {path} has no such attribute")
        empty = with_types(columns)["attribute_types"]
        with session.bar(arguments, "points") as progress:
            info = client.add_attributes(
                arguments.name,
                columns,
                ids=ids,
                attribute_types=empty | types,
                progress=progress,
                timeout=arguments.timeout,
            )
    if arguments.json:
        json_output.show(info)
    else:
        from divgrpc_client.formats import tables

        tables.extended(info, list(columns), len(next(iter(columns.values()))))


def _types(pairs: list[str] | tuple[()]) -> dict[str, AttributeType]:
    """Return the types of --types by the name of the attribute."""
    kinds = get_args(AttributeType)
    types: dict[str, AttributeType] = {}
    for pair in pairs:
        name, _, kind = pair.rpartition("=")
        if not name or kind not in kinds:
            rule = f"must be NAME=TYPE, of the types {', '.join(kinds)}"
            raise InvalidArgumentError("types", f"--types {rule}, got {pair!r:.80}")
        types[name] = cast(AttributeType, kind)
    return types
