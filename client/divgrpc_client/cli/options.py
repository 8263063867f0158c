"""What every command of the command line takes, and what it takes from the tables of options."""

import argparse
import math
import os
from collections.abc import Sequence
from types import NoneType
from typing import Any, Final, Literal, cast, get_args, get_origin

from divgrpc.errors import InvalidArgumentError
from divgrpc.evaluation.grid import Limits
from divgrpc.parameters import MetricWord, as_metric
from divgrpc.parameters.suggestions import refuse_word
from divgrpc.types import Auto
from divgrpc_client.cli import commands
from divgrpc_client.formats.files import FORMATS
from divgrpc_client.messages.options import GRID_DEFAULTS, explained

TARGET_VARIABLE: Final = "DIVGRPC_TARGET"
TARGET_DEFAULT: Final = "127.0.0.1:50051"


def add(verbs: Any, name: str, run: Any, text: str) -> argparse.ArgumentParser:  # noqa: ANN401  # argparse names no type for these
    """Add a command that does `run`, with what all commands take; `text` is its help."""
    verb: argparse.ArgumentParser = verbs.add_parser(
        name,
        help=first_sentence(text),
        description=text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verb.set_defaults(run=run)
    verb.add_argument(
        "--target",
        default=os.environ.get(TARGET_VARIABLE, TARGET_DEFAULT),
        help=f"Ask the server at this host:port (${TARGET_VARIABLE}; default {TARGET_DEFAULT}).",
    )
    verb.add_argument(
        "--timeout",
        type=float,
        metavar="SECONDS",
        help=f"Timeout of a request in seconds (default {commands.TIMEOUT_SECONDS:g}; "
        "10 for load; none for build and evaluate).",
    )
    verb.add_argument("--json", action="store_true", help="Print JSON, errors too.")
    return verb


def first_sentence(text: str) -> str:
    """Return the first sentence of a command's help, which may run over several lines."""
    paragraph = " ".join(text.strip().split("\n\n")[0].split())
    return paragraph.partition(". ")[0].removesuffix(".") + "."


def add_named(verb: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Let a command take the name of an index."""
    verb.add_argument("name", metavar="NAME", help="The name of the index.")
    return verb


def add_with_file(
    verb: argparse.ArgumentParser,
    text: str = f"A file with one vector per row: {FORMATS}.",
    nargs: str | None = None,
) -> None:
    """Let a command take the name of an index and a file of rows."""
    add_named(verb)
    verb.add_argument("file", metavar="FILE", nargs=nargs, help=text)
    add_reading(verb)


def add_reading(verb: argparse.ArgumentParser) -> None:
    """Let a command take options on how to read a file of rows."""
    verb.add_argument(
        "--key", help="Read this array of an .npz; needed where it has several matrices."
    )
    verb.add_argument(
        "--index-base",
        choices=["auto", "0", "1"],
        default="auto",
        help="Count the columns of an svmlight file from this one (default auto: 0 if the file "
        "has a column 0, else 1).",
    )
    verb.add_argument(
        "--dims",
        type=int,
        metavar="N",
        help="Number of columns of an svmlight file (default: those of the index, or all seen).",
    )


def add_labels(verb: argparse.ArgumentParser) -> None:
    """Let a build take labels."""
    group = verb.add_argument_group("labels, for divgrpc predict")
    add_labelled(group, ", instead of FILE")
    group.add_argument(
        "--label-names", metavar="TEXT", help="Read names of labels, one a line from label 0 on."
    )
    group.add_argument(
        "--hierarchy",
        metavar="EDGES",
        help="Read edges from parent to child, two numbers a line or an .npy; nodes below L are "
        "the labels.",
    )
    group.add_argument(
        "--roots", type=int, nargs="+", metavar="N", help="Begin the hierarchy at these nodes."
    )
    group.add_argument(
        "--label-model",
        nargs="+",
        metavar="MODEL",
        help="Train a model (leml), or read one from two files, label factors and feature map; "
        "without it neighbours vote.",
    )


def add_labelled(verb: "argparse._ActionsContainer", instead: str = "") -> None:
    """Let a command take documents and their labels; without `instead` it must be given them."""
    verb.add_argument(
        "--features",
        metavar="FILE",
        required=not instead,
        help=f"Read documents{instead}: a matrix, or text with the labels of each before its "
        "features (Extreme Classification's format, with or without header, or svmlight).",
    )
    verb.add_argument(
        "--labels",
        metavar="FILE",
        help="Read labels from a matrix (rows, L), such as scipy's .npz; nonzeros are labels.",
    )
    add_split(verb)


def add_split(verb: "argparse._ActionsContainer") -> None:
    """Let a command take a list of the rows of a file."""
    verb.add_argument(
        "--split",
        metavar="TEXT[:COLUMN]",
        help="Take the rows that a column of this file lists, counted from 1.",
    )


def add_options(verb: argparse.ArgumentParser, table: type, defaults: dict[str, object]) -> None:
    """Let a command take the options of a table."""
    # What is not given is not in the namespace, and so not on the wire.
    verb.set_defaults(table=table)
    group = verb.add_argument_group(f"options of {verb.prog.split()[-1]}")
    for name, (kind, sentence) in explained(table).items():
        flags = [f"--{name.replace('_', '-')}"]
        if len(name) == 1:
            flags.insert(0, f"-{name}")
        text = f"{first_sentence(sentence).removesuffix('.')}{_default(defaults[name])}."
        how: dict[str, Any] = {"dest": name, "default": argparse.SUPPRESS, "help": text}
        if kind is bool:
            group.add_argument(*flags, action=argparse.BooleanOptionalAction, **how)
        elif get_origin(kind) is Sequence:
            (item,) = get_args(kind)
            group.add_argument(*flags, nargs="+", **_item_type(name, item), **how)
        elif get_origin(word := _without_none(kind)) is Literal:
            group.add_argument(*flags, **_word(name, word), **how)
        elif Auto in get_args(kind):
            group.add_argument(*flags, type=_dial, metavar="N|auto", **how)
        elif name == "threshold":
            group.add_argument(*flags, type=_threshold, metavar="N|none", **how)
        else:
            number = int if _without_none(kind) is int else float
            group.add_argument(*flags, type=number, metavar="N", **how)


def _item_type(axis: str, kind: Any) -> dict[str, Any]:  # noqa: ANN401  # a type
    """Say how the values of a list are read."""
    if axis == "limits":
        return {"type": _limits, "metavar": "HASH:CANDIDATES"}
    if axis == "thresholds":
        return {"type": _threshold, "metavar": "N|none"}
    if get_origin(kind) is Literal:
        return _word(axis, kind)
    return {"type": kind, "metavar": "N"}


def _word(field: str, kind: Any) -> dict[str, Any]:  # noqa: ANN401  # a type
    """Return argparse's type for a word; its error names the nearest of the choices."""
    choices = get_args(kind)

    def read(text: str) -> str:
        ours: str = as_metric(cast(MetricWord, text)) if field == "metric" else text
        if ours not in choices:
            try:
                refuse_word(field, text, choices)
            except InvalidArgumentError as error:
                raise argparse.ArgumentTypeError(str(error)) from None
        return ours

    return {"type": read, "metavar": f"{{{','.join(choices)}}}"}


def _default(default: object) -> str:
    if default in (None, (None,), GRID_DEFAULTS["limits"]):
        return ""
    words = default if isinstance(default, tuple) else (default,)
    return f" (default {' '.join(map(str, words))})"


def _without_none(kind: Any) -> Any:  # noqa: ANN401  # types
    """Return the type of a value where None stands for none, and any other type as it is."""
    members = [member for member in get_args(kind) if member is not NoneType]
    return members[0] if NoneType in get_args(kind) and len(members) == 1 else kind


def _dial(text: str) -> float | Auto:
    """Read a dial; `auto` is chosen for each query."""
    return "auto" if text == "auto" else float(text)


_dial.__name__ = "number or auto"  # what argparse calls it


def _threshold(text: str) -> float:
    """Read a threshold; `none` is no limit, whatever the index keeps."""
    return -math.inf if text == "none" else float(text)


_threshold.__name__ = "number or none"  # what argparse calls it


def _limits(text: str) -> Limits:
    """Read HASH:CANDIDATES; what is left out is the default."""
    hash_limit, candidates_limit = (int(part) if part else None for part in text.split(":"))
    return hash_limit, candidates_limit


_limits.__name__ = "HASH:CANDIDATES"  # what argparse calls it
