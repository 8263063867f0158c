"""Entry point of the command line: the parser, error messages and exit codes (see `_END`)."""

import argparse
import errno
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import divgrpc
from divgrpc.errors import DivgrpcError, InvalidArgumentError
from divgrpc.evaluation import FOLDS
from divgrpc.parameters.suggestions import instead, nearest
from divgrpc.platforms import allow_open_files
from divgrpc_client.cli import (
    attributes,
    commands,
    conformance,
    diagnosing,
    diversify,
    doctor,
    interrupts,
    options,
    plan,
    points,
    quotas,
    shards,
    snapshots,
    where,
    writing,
)
from divgrpc_client.cli.explore import add_explore, explore
from divgrpc_client.cli.load import add_load, load
from divgrpc_client.formats.files import FORMATS
from divgrpc_client.messages.options import (
    BuildOptions,
    GridOptions,
    LabelGridOptions,
    PredictOptions,
    QueryOptions,
)
from divgrpc_client.rpc.errors import RpcError

_TOP: Final = """\
Search for results that are near the query and different from one another.

The commands call a server, which divgrpc-server starts. Every command explains its options:
divgrpc query --help
"""
_END: Final = """\
Examples:
  divgrpc build images vectors.npy         index the rows of a file
  divgrpc query images queries.npy -k 10   ten diverse results for each row
  divgrpc explore images                   plain and diverse results in a browser
  divgrpc predict papers documents.txt     five labels for each document
  divgrpc diversify found.npy              ten diverse rows of a file
  divgrpc upsert images new.jsonl          insert points, or replace those with these ids
  divgrpc info images                      what Build chose, and what it measured

Exit codes:
  0    done
  1    the server refused or could not be reached, or the output could not be written
  2    the command itself is wrong: an unknown option, an unreadable file
  3    a load test missed a required bound
  4    a load test was void: its generator, not the server, was the bottleneck
  5    divgrpc doctor found something wrong with an index, or a check of divgrpc conformance failed
  130  interrupted; a build in progress was cancelled
"""
# A parameter in a message with its value.
_SETTING: Final = re.compile(r"\b(?P<name>[a-z_]+)=\"?(?P<value>[\w.]*\w)\"?")
# Explanation of SOURCE in the help of options that read a column of numbers.
_SOURCE: Final = (
    "an .npy file, a text file of one number per line, an array of the .npz, or `labels` for those "
    "of the svmlight file"
)
# Options that come without a command.
_TOP_OPTIONS: Final = ("--help", "--version")
# Names that other programs give to commands of this one.
_OTHER_COMMANDS: Final = {
    "list": "ls", "remove": "rm", "drop": "rm", "show": "info", "describe": "info",
    "search": "query", "insert": "upsert", "create": "build",
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    # gRPC would write lines of its own beside the message of an error.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    parser = _parser()
    words = sys.argv[1:] if argv is None else argv
    _check_command(parser, words)
    arguments, unknown = parser.parse_known_args(words)
    if unknown:
        suggestion = _instead(unknown, arguments)
        arguments.verb.error(f"unrecognized arguments: {' '.join(unknown)}{suggestion}")
    as_json: bool = getattr(arguments, "json", False)
    files_max = allow_open_files()
    try:
        with interrupts.interruptible():
            code = int(arguments.run(arguments) or 0)
            sys.stdout.flush()
    except DivgrpcError as error:
        _complain(error, arguments.verb.flags, as_json=as_json)
        refused_here = isinstance(error, InvalidArgumentError) and not isinstance(error, RpcError)
        return 2 if refused_here else 1
    except KeyboardInterrupt:
        interrupts.report()
        return interrupts.EXIT_CODE
    except BrokenPipeError:
        # The program that reads the output, such as `head`, has ended.
        _give_up_output()
        return 1
    except OSError as error:
        _give_up_output()
        file = f"{error.filename}: " if error.filename else ""
        message = f"{file}{error.strerror or error}"
        if error.errno == errno.EMFILE:
            message += f": this command needs more than {files_max:,}; allow more by `ulimit -n`"
        _tell(message, {"reason": "NOT_WRITTEN"}, as_json=as_json)
        return 1
    return code


def _check_command(parser: options.Parser, words: Sequence[str]) -> None:
    """Exit with a suggestion if the first word is neither a command nor an option of `parser`."""
    first = words[0] if words else "--help"
    if first in parser.verbs or any(name.startswith(first) for name in ("-h", *_TOP_OPTIONS)):
        return
    if first.startswith("-"):
        verb = next((parser.verbs[word] for word in words if word in parser.verbs), parser)
        command = "divgrpc COMMAND" if verb is parser else verb.prog
        verb.error(f"options come after the command: {command} {first}")
    near = _OTHER_COMMANDS.get(first) or nearest(first, [*parser.verbs])
    suggestion = f": did you mean {near}?" if near else f"; there are {', '.join(parser.verbs)}"
    parser.error(f"there is no command {first!r}{suggestion}")


def _instead(unknown: list[str], arguments: argparse.Namespace) -> str:
    """Return a suggestion for the first unknown option, or an empty string."""
    if {"--yes", "-y"} & {*unknown}:
        return ": leave it out, because commands ask no questions"
    flags = [word for word in unknown if word.startswith("--")]
    if not flags:
        return ""
    name = flags[0].removeprefix("--").partition("=")[0].replace("-", "_")
    table = getattr(arguments, "table", object)
    parameters = {*getattr(table, "__annotations__", ()), *arguments.verb.flags}

    def as_option(word: re.Match[str]) -> str:
        return f"--{word[0].replace('_', '-')}" if word[0] in parameters else word[0]

    return re.sub(r"[a-z_]+", as_option, instead(name, sorted(parameters)))


def _give_up_output() -> None:
    """Redirect standard output to /dev/null if it cannot be written.

    Otherwise Python would report the error again at exit.
    """
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _tell(message: str, details: dict[str, object], *, as_json: bool) -> None:
    if as_json:
        text = json.dumps({"error": {"message": message, **details}})
    else:
        text = f"divgrpc: {message}"
    sys.stderr.write(f"{text}\n")


def _in_flags(message: str, fields: Sequence[str], flags: Mapping[str, str]) -> str:
    """Replace parameters in a message by the options of the command that set them.

    These are parameters with a value, and the fields that the message is about. Other words may be
    names that a caller has chosen.
    """
    message = message.replace("set replace=True to replace it", "--replace replaces it")
    message = message.replace(
        "set either categories or relevant", "set either --categories or --relevant"
    )

    def as_option(setting: re.Match[str]) -> str:
        flag, value = flags.get(setting["name"]), setting["value"]
        if flag is None or value == "False":
            return setting[0]
        return flag if value == "True" else f"{flag} {value}"

    message = _SETTING.sub(as_option, message)
    for field in {*fields} & flags.keys():
        # A name without an underscore may begin a sentence.
        if "_" in field or message.startswith(f"{field} must "):
            message = re.sub(rf"^{field}\b", flags[field], message)
    return message


def _complain(error: DivgrpcError, flags: Mapping[str, str], *, as_json: bool) -> None:
    details: dict[str, object] = {"reason": error.reason}
    fields: list[str] = []
    if isinstance(error, RpcError):
        violations = [{"field": f, "description": d} for f, d in error.field_violations]
        fields = [field for field, _ in error.field_violations]
        details |= {
            "code": error.code.name,
            "detail": error.detail,
            "field_violations": violations,
            "retry_after": error.retry_after,
            "request_id": error.request_id,
        }
    elif isinstance(error, InvalidArgumentError):
        details["field_violations"] = [{"field": error.field, "description": str(error)}]
        fields = [error.field]
    message = str(error)
    _tell(message if as_json else _in_flags(message, fields, flags), details, as_json=as_json)


def _parser() -> options.Parser:
    parser = options.Parser(
        prog="divgrpc",
        description=_TOP,
        epilog=_END,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=divgrpc.__version__)
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for run, add_arguments in _calls():
        verb = options.add(verbs, run)
        options.add_common(verb)
        if add_arguments is not None:
            add_arguments(verb)
    attributes.add_group(verbs)
    doctor.add_doctor(options.add(verbs, doctor.doctor))
    snapshots.add_snapshot(options.add(verbs, snapshots.snapshot))
    snapshots.add_restore(options.add(verbs, snapshots.restore))
    shards.add_reshard(options.add(verbs, shards.reshard))
    plan.add_plan(options.add(verbs, plan.plan))
    options.add_flags(
        options.add(verbs, commands.warm),
        ("--quiet", "", "Show no progress, only the outcome."),
        ("--json", "", "Print the outcome as JSON."),
    )
    parser.verbs = verbs.choices
    return parser


def _calls() -> Iterator[tuple[Callable[..., object], Callable[..., None] | None]]:
    """Yield the functions of the commands that call a server, and those that add arguments."""
    yield from (
        (commands.build, _add_build),
        (commands.query, _add_query),
        (commands.predict, _add_predict),
        (commands.evaluate, _add_evaluate),
        (commands.evaluate_labels, _add_evaluate_labels),
        (diagnosing.diagnose, diagnosing.add_diagnose),
        (commands.ls, None),
        (commands.info, options.add_name),
        (commands.rm, options.add_name),
        (diversify.diversify, diversify.add_diversify),
        (points.get, points.add_get),
        (points.count, points.add_count),
        (points.scroll, points.add_scroll),
        (points.export, points.add_export),
        (writing.upsert, writing.add_upsert),
        (writing.delete, writing.add_delete),
        (writing.compact, writing.add_compact),
        (writing.retrain, writing.add_retrain),
        (explore, add_explore),
        (load, add_load),
        (conformance.conformance, conformance.add_conformance),
    )


def _add_build(verb: argparse.ArgumentParser) -> None:
    options.add_file(verb, nargs="?")
    options.add_flags(
        verb,
        (
            *("--ids", "SOURCE"),
            f"Take one id per row from {_SOURCE}, or a text file of one text per line "
            "(default 0, 1, 2 and so on).",
        ),
        (
            *("--columns", "CSV"),
            "Take attributes, and ids from a column `id`, from a .csv file with one line per row.",
        ),
        ("--categories", "SOURCE", "Take one category per row, -1 for none; SOURCE as for --ids."),
        ("--subtopics", "SOURCE", "Take one sub-topic per row, -1 for none; SOURCE as for --ids."),
        ("--replace", "", "Replace an index of this name; without --replace, the build fails."),
    )
    group = verb.add_argument_group("labels, for divgrpc predict")
    options.add_documents(group, ", instead of FILE")
    edges = "two numbers a line or an .npy; of L labels, label i is node i"
    options.add_flags(
        group,
        ("--label-names", "FILE", "Read the label names, one per line, label 0 first."),
        ("--hierarchy", "EDGES", f"Read edges from parent to child, {edges}."),
    )
    model = "one from two files, label factors and feature map; by default neighbours vote"
    options.add_flags(
        group,
        ("--roots", "N", "Use these nodes as the roots of the hierarchy."),
        ("--label-model", "MODEL", f"Train a model (leml), or read {model}."),
        nargs="+",
    )
    options.add_options(verb, BuildOptions)


_PARTIAL: Final = (
    *("--allow-partial", ""),
    "Answer without the points of shards that have no live server.",
)


def _add_query(verb: argparse.ArgumentParser) -> None:
    options.add_file(verb, nargs="?")
    options.add_flags(verb, options.rows_flag("Send"))
    text = "Fail if the index has no write of this number (default 0)."
    options.add_flags(verb, ("--min-sequence", "N", text), default=0)
    options.add_flags(verb, _PARTIAL)
    where.add_restriction(verb)
    where.add_pages(verb)
    quotas.add_quotas(verb)
    options.add_options(verb, QueryOptions)


def _add_predict(verb: argparse.ArgumentParser) -> None:
    options.add_file(
        verb, f"A file with one document per row: {FORMATS}, or text as build takes it."
    )
    options.add_flags(verb, options.SPLIT, options.rows_flag("Send"), _PARTIAL)
    where.add_filter(verb)
    options.add_options(verb, PredictOptions)


def _add_evaluate(verb: argparse.ArgumentParser) -> None:
    options.add_file(verb)
    categories = f"Take the points of each row's category as relevant; SOURCE is {_SOURCE}."
    relevant = "Take the relevant ids of each row from a line of this text file"
    options.add_flags(
        verb,
        ("--categories", "SOURCE", categories),
        ("--relevant", "FILE", f"{relevant}, instead of --categories."),
    )
    _add_choosing(verb, "Make the best choice the default of this index, until it is built again.")
    options.add_flags(verb, ("--per-query", "", "Add figures per query; only with --json."))
    where.add_filter(verb)
    by_id = "one per line for ids 0, 1, 2 and so on, or lines of an id, a tab and"
    pictures = "a folder of <id>.png or .jpg, or an .npy of pictures whose first index is the id"
    category_help = "Box results of a category other than the query's. Categories of points:"
    options.add_flags(
        verb.add_argument_group("a page with charts and tables; needs divgrpc[report]"),
        ("--report", "HTML", "Write curves and tables to this file."),
        ("--titles", "FILE", f"Show results with titles: {by_id} a title."),
        ("--thumbnails", "PATH", f"Show results with pictures: {pictures}."),
        ("--point-categories", "FILE", f"{category_help} {by_id} a category."),
        ("--show", "N", "Number of queries to show (default 4 with titles or pictures, else 0)."),
    )
    options.add_options(verb, GridOptions)


def _add_evaluate_labels(verb: argparse.ArgumentParser) -> None:
    options.add_name(verb)
    options.add_documents(verb)
    options.add_reading(verb)
    options.add_flags(verb, options.rows_flag("Use"))
    _add_choosing(verb, "Make the best threshold of each mode the default of this index.")
    options.add_flags(verb, ("--per-document", "", "Add figures per document; only with --json."))
    options.add_options(verb, LabelGridOptions)


def _add_choosing(verb: argparse.ArgumentParser, set_default: str) -> None:
    folds = f"Number of folds to choose by; 0 makes no choices (default {FOLDS})."
    options.add_flags(verb, ("--folds", "N", folds), default=FOLDS)
    options.add_flags(
        verb,
        ("--groups", "SOURCE", "Take one group per row; intervals and folds keep groups whole."),
        ("--set-default", "", set_default),
        ("--csv", "", "Print CSV instead of a table."),
    )
