"""The commands `snapshot` and `restore`, which need no server. Their docstrings are help texts."""

import argparse
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from divgrpc_client.cli import options, session
from divgrpc_client.formats import json_output

if TYPE_CHECKING:
    from divgrpc.backup import SnapshotEntry

_PIPE: Final = "-"
_JSON: Final = ("--json", "", "Print JSON; errors are JSON on standard error.")


def add_snapshot(verb: argparse.ArgumentParser) -> None:
    """Add the arguments of `snapshot`."""
    text = "The data directory of a server, or the folder of one index."
    verb.add_argument("folder", metavar="FOLDER", help=text)
    verb.add_argument("file", metavar="FILE", help="A new file, or - for standard output.")
    options.add_flags(verb, _JSON)


def add_restore(verb: argparse.ArgumentParser) -> None:
    """Add the arguments of `restore`."""
    verb.add_argument("file", metavar="FILE", help="A snapshot, or - for standard input.")
    text = "A data directory. It is made if it does not exist."
    verb.add_argument("folder", metavar="FOLDER", help=text)
    replace = "Replace indexes of the same names; without it, nothing is restored if one exists."
    options.add_flags(verb, ("--replace", "", replace), _JSON)


def snapshot(arguments: argparse.Namespace) -> None:
    """Copy an index, or all indexes of a data directory, into one file.

    A server may serve these indexes, and write to them, meanwhile. The copy has each index as it
    was at one moment, and compares all checksums. The file is a tar file with a SHA-256 digest.

    Examples:
      divgrpc snapshot indexes monday.tar
      divgrpc snapshot indexes/shoes shoes.tar --json
      divgrpc snapshot indexes - | gzip > monday.tar.gz
    """
    with options.with_extra("snapshot", "copying indexes", "server"):
        from divgrpc.backup import write_snapshot
    with session.bar(arguments, "MiB") as on_progress:
        entries = write_snapshot(arguments.folder, arguments.file, on_progress=on_progress)
    if arguments.file != _PIPE:
        _show(entries, as_json=arguments.json)
    else:
        # Standard output has the snapshot.
        sys.stderr.write("".join(map(_as_line, entries)))


def restore(arguments: argparse.Namespace) -> None:
    """Make the indexes of a snapshot in a data directory.

    Every byte of the snapshot is checked first: either all its indexes are made, or nothing is
    changed. A server that runs on the data directory serves them at once. Writes that were made
    after the snapshot are not in it.

    Examples:
      divgrpc restore monday.tar indexes
      divgrpc restore monday.tar indexes --replace
      gunzip < monday.tar.gz | divgrpc restore - indexes
    """
    with options.with_extra("restore", "restoring indexes", "server"):
        from divgrpc.backup import restore_snapshot
    with session.bar(arguments, "MiB") as on_progress:
        entries = restore_snapshot(
            arguments.file, arguments.folder, replace=arguments.replace, on_progress=on_progress
        )
    _show(entries, as_json=arguments.json)


def _show(entries: "list[SnapshotEntry]", *, as_json: bool) -> None:
    if as_json:
        json_output.show({"indexes": [asdict(entry) for entry in entries]})
    else:
        sys.stdout.write("".join(map(_as_line, entries)))


def _as_line(entry: "SnapshotEntry") -> str:
    parts = [f"generation {entry.generation:,}"]
    parts += [f"write {entry.sequence:,}"] if entry.sequence else []
    return f"{entry.name}: {', '.join(parts)}, {entry.bytes / 1e6:,.1f} MB\n"
