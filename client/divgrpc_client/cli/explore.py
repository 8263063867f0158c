"""The command `divgrpc explore`.

The docstring of a command is its help text.
"""

import argparse
import os
import sys
import threading
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Final

from divgrpc.errors import InvalidArgumentError, invalid
from divgrpc.types import IndexInfo
from divgrpc_client.cli import options, session
from divgrpc_client.formats import json_output
from divgrpc_client.formats.files import FORMATS, read_vectors
from divgrpc_client.formats.sparse_text import SVMLIGHT, widened
from divgrpc_client.formats.titles import read_titles
from divgrpc_protos.arrays import Matrix, row_count

if TYPE_CHECKING:
    from divgrpc_client.explorer.looks import Looks

_PAYLOAD: Final = "payload"
# Without one of these variables a browser would open in the terminal, or not at all.
_SCREENS: Final = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")


def add_explore(verb: argparse.ArgumentParser) -> None:
    """Add the arguments of `explore`."""
    options.add_name(verb)
    titles = (
        "Show points with titles: `payload`, the name of an attribute, or a text file of one title "
        "per line for ids 0, 1, 2 and so on, of lines of an id, a tab and a title, or of JSON "
        "objects with id and title (.jsonl)."
    )
    pictures = (
        "Show points with pictures: a folder of <id>.png, .jpg, .webp or .gif, a pattern with {id} "
        "or names of attributes, such as photos/{brand}/{id}.jpg, or an .npy of pictures whose "
        "first index is the id."
    )
    queries = f"Also query with the rows of this file: {FORMATS}."
    options.add_flags(
        verb,
        ("--titles", "SOURCE", titles),
        ("--thumbnails", "PATH", pictures),
        ("--queries", "FILE", queries),
    )
    options.add_reading(verb)
    port = "Serve the page on this port of the loopback interface (default 0: any free port)."
    options.add_flags(verb, ("--port", "N", port), default=0)
    options.add_flags(verb, ("--no-browser", "", "Print the address, but open no browser."))


def explore(arguments: argparse.Namespace) -> None:
    """Open a page that shows plain and diverse results of the index NAME side by side.

    The page has a slider for the diversity, a choice of selectors, a quota, the reason why each
    result is there or was left out, and a curve of relevance against diversity. A query is a stored
    point, a random one included, or a row of --queries.

    The command serves the page on this computer alone and prints its address. Ctrl-C ends it.

    Examples:
      divgrpc explore digits --thumbnails pictures.npy
      divgrpc explore shoes --titles title --thumbnails 'photos/{id}.jpg'
      divgrpc explore news --titles headlines.txt --queries queries.npy
      divgrpc explore shoes --titles payload --port 8080 --no-browser
    """
    with options.with_extra("explore", "the page", "report"):
        from divgrpc_client.explorer.application import Application, start
        from divgrpc_client.explorer.explorer import Explorer
    if not 0 <= arguments.port <= 65_535:
        raise invalid("port", f"must be from 0 to 65535, got {arguments.port}")
    with session.connect(arguments) as client:
        info = client.get_index(arguments.name, timeout=arguments.timeout)
        looks, queries = _looks(arguments, info), _queries(arguments, info)
        explorer = Explorer(client, arguments.name, looks, queries, timeout=arguments.timeout)
        server = start(Application(explorer), arguments.port)
        address = f"http://{server.host}:{server.port}/"
        text = f"exploring {arguments.name} at {address}; Ctrl-C ends it"
        value = {"name": arguments.name, "address": address}
        json_output.show_or_write(value, text, as_json=arguments.json)
        sys.stdout.flush()
        if not arguments.no_browser and any(os.environ.get(name) for name in _SCREENS):
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
        server.serve_forever()


def _looks(arguments: argparse.Namespace, info: IndexInfo) -> "Looks":
    from divgrpc_client.explorer.looks import Looks
    from divgrpc_client.formats.pictures import read_pictures

    names = {attribute.name for attribute in info.attributes}
    pictures = None
    if arguments.thumbnails is not None:
        pictures = read_pictures(Path(arguments.thumbnails))
        if unknown := sorted(pictures.attributes - names):
            sentence = f"has no attribute {unknown[0]!r}, which {arguments.thumbnails} names"
            raise InvalidArgumentError("thumbnails", f"index {info.name!r} {sentence}")
    source = arguments.titles
    if source is None:
        return Looks(pictures=pictures)
    if source in names:
        return Looks(attribute=source, pictures=pictures)
    if source == _PAYLOAD:
        if not info.has_payloads:
            raise InvalidArgumentError("titles", f"index {info.name!r} has no payloads")
        return Looks(has_payload_titles=True, pictures=pictures)
    path = Path(source)
    if not path.is_file():
        known = ", ".join([*sorted(names), _PAYLOAD] if info.has_payloads else sorted(names))
        sentence = f"is no file, and no attribute of {info.name!r}; it has {known or 'none'}"
        raise invalid("titles", f"{source!r:.80} {sentence}")
    return Looks(titles=read_titles(path), pictures=pictures)


def _queries(arguments: argparse.Namespace, info: IndexInfo) -> Matrix | None:
    if arguments.queries is None:
        return None
    path, dims = Path(arguments.queries), arguments.dims
    queries = read_vectors(path, arguments.key, base=arguments.index_base, dims=dims)
    if path.suffix in SVMLIGHT and dims is None:
        queries = widened(queries, info.dims)
    if not row_count(queries):
        raise InvalidArgumentError("queries", f"{path} has no rows")
    return queries
