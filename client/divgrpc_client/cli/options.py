"""Options of the command line: options that commands share, and options made from tables.

A table is a class such as `QueryOptions`, whose annotations are the options of a method.
"""

import argparse
import inspect
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import dropwhile
from pathlib import Path
from types import NoneType
from typing import Any, Final, Literal, NoReturn, cast, get_args, get_origin

from divgrpc.errors import InvalidArgumentError, UnsupportedError
from divgrpc.evaluation.grid import Limits
from divgrpc.parameters import MetricWord, as_metric
from divgrpc.parameters.suggestions import refuse_word
from divgrpc.types import Auto
from divgrpc_client.formats.files import FORMATS
from divgrpc_client.messages.options import explained

TARGET_VARIABLE: Final = "DIVGRPC_TARGET"
TARGET_DEFAULT: Final = "127.0.0.1:50051"
# Default timeout of the command line. It is longer than the default of `Client`, because a person
# can wait longer than a service.
TIMEOUT_SECONDS: Final = 30.0
# What `--timeout` limits, and its default, for the commands that differ from the others in these.
_TIMEOUTS: Final = {
    "build": ("the whole build", "none"),
    "add": ("the whole call", "none"),
    "compact": ("the call", "none"),
    "retrain": ("the call", "none"),
    "diagnose": ("the whole call", "none"),
    "evaluate": ("the whole evaluation", "none"),
    "evaluate-labels": ("the whole evaluation", "none"),
    "load": ("a call", "10"),
}
# Types of values by their metavar; values with other metavars are texts.
_TYPES: Final[Mapping[str, type]] = {"N": int, "CALLS": float, "SECONDS": float}
SPLIT: Final = (
    *("--split", "FILE[:COLUMN]"),
    "Take the rows listed in column COLUMN (from 0, default 0); rows are numbered from 1.",
)


class Parser(argparse.ArgumentParser):
    """A parser whose errors come after the usage of its command, and say where to read more.

    verbs: the parsers of commands by name; empty for a command.
    """

    verbs: Mapping[str, "Parser"] = {}

    @property
    def flags(self) -> dict[str, str]:
        """The options that begin with two dashes, by the parameters that they set."""
        flags = {
            action.dest: [flag for flag in action.option_strings if flag.startswith("--")]
            for action in self._actions
        }
        return {name: names[0] for name, names in flags.items() if names and name != "help"}

    def error(self, message: str) -> NoReturn:
        """Print the usage and a message, and exit with code 2."""
        super().error(f"{message}\nRun {self.prog} --help for all arguments and examples.")


def add(verbs: Any, run: Callable[..., Any]) -> argparse.ArgumentParser:  # noqa: ANN401  # argparse names no type
    """Add a command that calls the function `run`; its name and docstring become name and help.

    The examples at the end of the docstring come last in the help, after the options.
    """
    verb = _parser(verbs, run.__name__.replace("_", "-"), inspect.getdoc(run) or "")
    verb.set_defaults(run=run, verb=verb)
    return verb


def add_group(verbs: Any, name: str, text: str) -> Any:  # noqa: ANN401  # argparse names no type
    """Add a command that has commands of its own; return what `add` takes to add one of them.

    text: the help, which ends with examples.
    """
    group = _parser(verbs, name, inspect.cleandoc(text))
    return group.add_subparsers(title="commands", metavar="COMMAND", required=True)


def _parser(verbs: Any, name: str, text: str) -> argparse.ArgumentParser:  # noqa: ANN401  # argparse names no type
    text, heading, examples = text.partition("Examples:\n")
    text = text.strip()
    parser: argparse.ArgumentParser = verbs.add_parser(
        name,
        help=first_sentence(text),
        description=text,
        epilog=f"{heading}{examples}".strip(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return parser


def add_common(verb: argparse.ArgumentParser) -> None:
    """Add the options of every command that calls a server."""
    name = verb.prog.split()[-1]
    call, default = _TIMEOUTS.get(name, ("a request", f"{TIMEOUT_SECONDS:g}"))
    verb.add_argument(
        "--target",
        metavar="HOST:PORT",
        default=os.environ.get(TARGET_VARIABLE, TARGET_DEFAULT),
        help=f"Address of the server (default ${TARGET_VARIABLE}, else {TARGET_DEFAULT}).",
    )
    add_flags(
        verb,
        ("--timeout", "SECONDS", f"Fail if {call} takes longer than this (default {default})."),
        ("--json", "", "Print JSON; errors are JSON on standard error."),
    )
    add_flags(
        verb.add_argument_group("security"),
        ("--tls", "", "Use TLS (default $DIVGRPC_TLS)."),
        ("--tls-ca", "FILE", "Authority of the server's certificate (default $DIVGRPC_TLS_CA)."),
        ("--tls-cert", "FILE", "Own certificate (default $DIVGRPC_TLS_CLIENT_CERT)."),
        ("--tls-key", "FILE", "Key of --tls-cert (default $DIVGRPC_TLS_CLIENT_KEY)."),
        (
            "--tls-server-name",
            "HOST",
            "Host name in the server's certificate (default $DIVGRPC_TLS_SERVER_NAME).",
        ),
        ("--token-file", "FILE", "File with the token (default $DIVGRPC_TOKEN_FILE)."),
        ("--insecure", "", "Send the token without TLS to another machine, too."),
    )


def security(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments `tls`, `token` and `insecure` of a client."""
    from divgrpc_client.rpc.security import tls_with

    names = ("ca", "cert", "key", "server_name")
    words = {name: getattr(arguments, f"tls_{name}") for name in names}
    tls = tls_with({name: value for name, value in words.items() if value}, is_wanted=arguments.tls)
    token = Path(arguments.token_file) if arguments.token_file else None
    return {"tls": tls, "token": token, "insecure": arguments.insecure}


@contextmanager
def with_extra(field: str, subject: str, name: str) -> Iterator[None]:
    """If an import in the `with` block fails, raise an error that names the extra to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = str(error.name).partition(".")[0]
        raise UnsupportedError(
            field, f"{subject} needs {missing}: install divgrpc[{name}]"
        ) from None


def add_flags(
    group: "argparse._ActionsContainer",
    *flags: tuple[str, str, str],
    **settings: Any,  # noqa: ANN401  # what `add_argument` takes
) -> None:
    """Add options, words as tuples of flag, metavar and help.

    An option without a metavar is a switch. `settings` are further arguments of `add_argument`
    for options with a metavar.
    """
    for flag, metavar, text in flags:
        if metavar:
            kind = _TYPES.get(metavar, str)
            group.add_argument(flag, metavar=metavar, help=text, type=kind, **settings)
        else:
            group.add_argument(flag, help=text, action="store_true")


def rows_flag(action: str) -> tuple[str, str, str]:
    """Return the option --rows for `add_flags`; its help begins with `action`."""
    example = "0:3 is the first three, 9: all but the first nine"
    text = f"{action} only these rows, counted from 0, without row STOP: {example}."
    return "--rows", "START:STOP", text


def first_sentence(text: str) -> str:
    """Return the first sentence of a help text as one line.

    The result is empty if Python removed the docstrings (`python -OO`).
    """
    if not text:
        return ""
    paragraph = " ".join(text.strip().split("\n\n")[0].split())
    return paragraph.partition(". ")[0].removesuffix(".") + "."


def add_name(verb: argparse.ArgumentParser) -> None:
    """Add the name of an index to the arguments of a command."""
    verb.add_argument("name", metavar="NAME", help="The name of the index.")


def add_conditions(verb: argparse.ArgumentParser) -> None:
    """Add --if-sequence and --write-id, which say when a write is made."""
    add_flags(
        verb,
        ("--if-sequence", "N", "Write only if this is the number of the last write."),
        (
            "--write-id",
            "NAME",
            "Name the write; a write with a name that was used is not repeated.",
        ),
    )


def add_file(
    verb: argparse.ArgumentParser,
    text: str = f"A file with one vector per row: {FORMATS}.",
    nargs: str | None = None,
) -> None:
    """Add the name of an index and a file of rows to the arguments of a command."""
    add_name(verb)
    verb.add_argument("file", metavar="FILE", nargs=nargs, help=text)
    add_reading(verb)


def add_reading(verb: argparse.ArgumentParser) -> None:
    """Add the options that say how a file of rows is read."""
    text = "Read this array of an .npz; needed if the file has several matrices."
    add_flags(verb, ("--key", "ARRAY", text))
    verb.add_argument(
        "--index-base",
        choices=["auto", "0", "1"],
        default="auto",
        help="Number of the first column of an svmlight file (default auto: 0 if the file "
        "has a column 0, else 1).",
    )
    text = "Columns of an svmlight file (default: as many as in the index, or in the file)."
    add_flags(verb, ("--dims", "N", text))


def add_documents(verb: "argparse._ActionsContainer", instead: str = "") -> None:
    """Add the options for documents and their labels; --features is required without `instead`."""
    text = (
        f"Read documents{instead}: a matrix, or text lines with labels before features "
        "(Extreme Classification's format, with or without header, or svmlight)."
    )
    add_flags(verb, ("--features", "FILE", text), required=not instead)
    text = "Read labels from a matrix (rows, L), such as scipy's .npz; nonzeros are labels."
    add_flags(verb, ("--labels", "FILE", text), SPLIT)


def add_options(verb: argparse.ArgumentParser, table: type) -> None:
    """Add the options of a table to a command."""
    verb.set_defaults(table=table)
    add_fields(verb.add_argument_group(f"options of {verb.prog.split()[-1]}"), explained(table))


def add_fields(
    group: "argparse._ActionsContainer", fields: Mapping[str, tuple[Any, str, object]]
) -> None:
    """Add an option for each field, made from the field's type, explanation and default.

    An option that is not set is absent from the namespace, so it is not sent to the server.
    """
    for name, (kind, text, default) in fields.items():
        flags = [f"--{name.replace('_', '-')}"]
        if len(name) == 1:
            flags.insert(0, f"-{name}")
        help_text = f"{first_sentence(text)[:-1]}{_default(default)}.{_how_chosen(text, default)}"
        group.add_argument(
            *flags, dest=name, default=argparse.SUPPRESS, help=help_text, **_reading(name, kind)
        )


def options_in(arguments: argparse.Namespace, table: type) -> Any:  # noqa: ANN401  # that TypedDict
    """Return those options of a table that the user has set."""
    return {name: getattr(arguments, name) for name in table.__annotations__ if name in arguments}


def _default(default: object) -> str:
    if default in (None, (None,), ((None, None),)):
        return ""
    if isinstance(default, bool):
        return f" (default {'yes' if default else 'no'})"
    words = default if isinstance(default, tuple) else (default,)
    return f" (default {' '.join(map(str, words))})"


def _how_chosen(text: str, default: object) -> str:
    """Return the sentences of an explanation from the first that mentions the default on.

    A space comes before each sentence. The text is empty if `default` itself can be shown.
    """
    _, *sentences = re.split(r"(?<=\.) ", text)
    if _default(default):
        return ""
    reasons = dropwhile(lambda sentence: "default" not in sentence.lower(), sentences)
    return "".join(f" {sentence}" for sentence in reasons).replace("`", "")


def _reading(name: str, kind: Any) -> dict[str, Any]:  # noqa: ANN401  # a type
    """Return the keyword arguments of `add_argument` for an option of the type `kind`."""
    members = [member for member in get_args(kind) if member is not NoneType]
    if kind is bool:
        return {"action": argparse.BooleanOptionalAction}
    if get_origin(kind) is Sequence:
        return {"nargs": "+", **_reading_item(name, members[0])}
    if name == "limits":
        return {"type": _limits, "metavar": "HASH:CANDIDATES"}
    if name in ("threshold", "thresholds"):
        return {"type": _threshold, "metavar": "N|none"}
    if get_origin(kind) is Literal:
        return _word(name, kind)
    if NoneType in get_args(kind) and len(members) == 1:
        return _reading(name, members[0])
    if Auto in members:
        return {"type": _dial, "metavar": "N|auto"}
    return {"type": int if kind is int else float, "metavar": "N"}


def _reading_item(name: str, kind: Any) -> dict[str, Any]:  # noqa: ANN401  # a type
    """Return the keyword arguments for an option that takes several values of the type `kind`."""
    reading = _reading(name, kind)
    if NoneType not in get_args(kind) or name == "thresholds":
        return reading
    return {"type": _or_default(reading["type"]), "metavar": "N|default"}


def _or_default(read: Callable[[str], float]) -> Callable[[str], float | None]:
    """Return a function that reads a number, or `default` as None."""

    def read_or_default(text: str) -> float | None:
        return None if text == "default" else read(text)

    read_or_default.__name__ = "number or default"
    return read_or_default


def _word(field: str, kind: Any) -> dict[str, Any]:  # noqa: ANN401  # a type
    """Return the keyword arguments of `add_argument` for an option with fixed choices.

    The error for another value names the most similar choice.
    """
    choices = get_args(kind)

    def read(text: str) -> str:
        word: str = as_metric(cast(MetricWord, text)) if field == "metric" else text
        if word not in choices:
            try:
                refuse_word(field, text, choices)
            except InvalidArgumentError as error:
                raise argparse.ArgumentTypeError(str(error)) from None
        return word

    return {"type": read, "metavar": f"{{{','.join(choices)}}}"}


def _dial(text: str) -> float | Auto:
    """Read a diversity: a number, or `auto` to let the server choose it for each query."""
    return "auto" if text == "auto" else float(text)


def _threshold(text: str) -> float:
    """Read a threshold; `none` means no limit, even if the index has a default threshold."""
    return -math.inf if text == "none" else float(text)


def _limits(text: str) -> Limits:
    """Read HASH:CANDIDATES; an omitted part is None, which means the default."""
    hash_limit, candidates_limit = (int(part) if part else None for part in text.split(":"))
    return hash_limit, candidates_limit


# argparse uses these names in its errors about values that it cannot read.
_dial.__name__ = "number or auto"
_threshold.__name__ = "number or none"
_limits.__name__ = "HASH:CANDIDATES"
