"""The command `reshard`, which needs no server. Its docstring is its help text."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from divgrpc_client.cli import options, session
from divgrpc_client.formats import json_output

if TYPE_CHECKING:
    from divgrpc.types import IndexInfo

# Maximum number of indexes that a message names.
_NAMES_MAX: Final = 3
_JSON: Final = ("--json", "", "Print JSON; errors are JSON on standard error.")


def add_reshard(verb: argparse.ArgumentParser) -> None:
    """Add the arguments of `reshard`."""
    verb.add_argument("folder", metavar="FOLDER", help="The folder of an index.")
    verb.add_argument(
        "--shards",
        metavar="N",
        type=int,
        required=True,
        help="The number of shards, 1 to 256; 1 makes the index whole.",
    )
    options.add_flags(verb, _JSON)


def reshard(arguments: argparse.Namespace) -> None:
    """Divide the points of an index among shards.

    The index gets a new generation, with the same answers. A server that runs on the data directory
    serves it at once, if it was started with --shards; otherwise calls of an index with shards fail
    from now on. An index that was written to must be built again.

    Examples:
      divgrpc reshard indexes/shoes --shards 4
      divgrpc reshard indexes/shoes --shards 1     whole again
      divgrpc reshard indexes/shoes --shards 4 --json
    """
    with options.with_extra("reshard", "dividing indexes", "server"):
        from divgrpc.errors import IndexDamagedError, IndexNotFoundError, invalid
        from divgrpc.sharding.files import divide_index
    try:
        with session.bar(arguments, "shards") as on_progress:
            info = divide_index(arguments.folder, arguments.shards, on_progress=on_progress)
    except IndexNotFoundError:
        raise invalid("folder", _rule_for(arguments.folder)) from None
    except IndexDamagedError as error:
        root = Path(arguments.folder).absolute().parent
        raise IndexDamagedError(
            f"{arguments.folder}: {error}; divgrpc doctor {root} names the damaged files"
        ) from None
    _show(info, as_json=arguments.json)


def _rule_for(folder: str) -> str:
    """Return what a folder must be that has no index, and what to name instead."""
    names = sorted(str(file.parent) for file in Path(folder).glob("*/CURRENT"))
    if names:
        known = ", ".join(names[:_NAMES_MAX])
        hint = f"the data directory {folder}; name one of its indexes, such as {known}"
    else:
        hint = f"{folder}; an index NAME of a data directory is in the folder DIRECTORY/NAME"
    return f"must be the folder of an index, got {hint}"


def _show(info: "IndexInfo", *, as_json: bool) -> None:
    rows = [shard.rows for shard in info.shards]
    if as_json:
        shards = [{"rows": shard.rows, "bytes": shard.bytes} for shard in info.shards]
        json_output.show({"name": info.name, "generation": info.generation, "shards": shards})
        return
    parts = f"{len(rows)} shards of {min(rows):,} to {max(rows):,}" if rows else f"{info.rows:,}"
    sys.stdout.write(f"{info.name}: generation {info.generation:,}, {parts} points\n")
