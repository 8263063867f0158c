"""The command line: what it takes, and how it ends.

0    done
1    the server said no or could not be reached, or what came of it could not be written
2    the command itself is wrong: an unknown option, an unreadable file
3    load missed what was required of it
4    load says nothing of the server: it was void
130  interrupted; a build under way was cancelled
"""

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence
from typing import Any, Final

import divgrpc
from divgrpc.errors import DivgrpcError, InvalidArgumentError
from divgrpc.evaluation import FOLDS
from divgrpc.parameters.suggestions import instead
from divgrpc_client.cli import commands
from divgrpc_client.cli.load_verb import add_load
from divgrpc_client.cli.options import (
    add,
    add_labelled,
    add_labels,
    add_named,
    add_options,
    add_reading,
    add_split,
    add_with_file,
)
from divgrpc_client.cli.warm_verb import add_warm
from divgrpc_client.formats.files import FORMATS
from divgrpc_client.messages.options import (
    BUILD_DEFAULTS,
    GRID_DEFAULTS,
    LABEL_GRID_DEFAULTS,
    PREDICT_DEFAULTS,
    QUERY_DEFAULTS,
    BuildOptions,
    GridOptions,
    LabelGridOptions,
    PredictOptions,
    QueryOptions,
)
from divgrpc_client.rpc.errors import RpcError

_TOP: Final = """\
Search for results that are near the query and different from one another.

Start a server with divgrpc-server, then:

  divgrpc build images vectors.npy         index the rows of a file
  divgrpc query images queries.npy -k 10   ten diverse results for each row
  divgrpc predict papers documents.txt     five labels for each document
  divgrpc info images                      what Build chose, and what it measured

Every command explains its options: divgrpc query --help
"""
_BUILD: Final = """\
Index the rows of FILE under NAME, and serve them.

  divgrpc build images vectors.npy
  divgrpc build images data.npz --key train --categories y --subtopics leaf
  divgrpc build images base.fvecs --replace --hash-family lsh_div --n-tables 20
  divgrpc build news tfidf.npz --hash-family auto     scipy's sparse rows stay sparse
  divgrpc build news train.svm --categories labels --metric inner_product

With labels, which divgrpc predict gives to documents:

  divgrpc build papers --features train.txt --label-model leml --label-names names.txt
  divgrpc build papers --features X.npz --labels Y.npz --label-model leml --hierarchy edges.txt
"""
_QUERY: Final = """\
Ask NAME about each row of FILE.

  divgrpc query images queries.npy --diversity 0       plain nearest neighbours
  divgrpc query images queries.npy --rows 0:3 -k 20
  divgrpc query images queries.npy --list-collapsed    with the ids of near-copies
  divgrpc query images queries.npy --lose-at-most 0.05
  divgrpc query images queries.npy --search exact --hash-limit 0 --candidates-limit 0 --json
"""
_PREDICT: Final = """\
Predict labels for the documents of FILE, among the labels that NAME was built with.

  divgrpc predict papers test.txt                     five labels each, with their names
  divgrpc predict papers test.npz --rows 0:3 --top-k 10 --diversity 0.5
  divgrpc predict papers test.txt --diversity 0 --threshold 0.2 --json
  divgrpc predict papers test.txt --mode neighbour_vote --neighbours 20

The score of a label is its product with the document; in neighbour_vote it is its share of the
votes.
"""
_EVALUATE: Final = """\
Try settings on the rows of FILE, and show what each reaches: accuracy, diversity, time.

  divgrpc evaluate images queries.npz --key q --categories y
  divgrpc evaluate images queries.npy --relevant ids.txt --csv
  divgrpc evaluate images queries.npy --categories y.npy --selectors greedy mmr --ks 10 20 \\
      --searches tables exact --limits 800:200 0:0 --diversities 0.1 0.3 0.5
  divgrpc evaluate images queries.npy --categories y.npy --set-default
  divgrpc evaluate images queries.npy --categories y.npy --report report.html --titles names.txt
"""
_EVALUATE_LABELS: Final = """\
Try settings of divgrpc predict on documents whose labels are known, and show what each reaches.

  divgrpc evaluate-labels papers --features test.txt
  divgrpc evaluate-labels papers --features X.npz --labels Y.npz --rows :1000 --csv
  divgrpc evaluate-labels papers --features test.txt --selectors nearest greedy mmr --top-ks 5 \\
      --modes embedding neighbour_vote --diversities 0.1 0.3 --thresholds none 0.2 0.3
  divgrpc evaluate-labels papers --features test.txt --thresholds 0.1 0.2 0.3 --set-default
"""

# What the parsed arguments hold beside options.
_NO_OPTIONS: Final = {"run", "table", "name", "file"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    parser = _parser()
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{_instead(unknown, arguments)}")
    as_json: bool = getattr(arguments, "json", False)
    try:
        code = int(arguments.run(arguments) or 0)
        sys.stdout.flush()
    except DivgrpcError as error:
        _complain(error, as_json=as_json)
        refused_here = isinstance(error, InvalidArgumentError) and not isinstance(error, RpcError)
        return 2 if refused_here else 1
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130
    except BrokenPipeError:
        # The reader has seen enough.
        _give_up_output()
        return 1
    except OSError as error:
        _give_up_output()
        what = f"{error.filename}: " if error.filename else ""
        _tell(f"{what}{error.strerror or error}", {"reason": "NOT_WRITTEN"}, as_json=as_json)
        return 1
    return code


def _instead(unknown: list[str], arguments: argparse.Namespace) -> str:
    """Suggest an option in place of the first unknown one."""
    options = [word for word in unknown if word.startswith("--")]
    if not options or "table" not in arguments:
        return ""
    name = options[0].removeprefix("--").partition("=")[0].replace("-", "_")
    parameters = {*arguments.table.__annotations__, *vars(arguments)} - _NO_OPTIONS

    def as_option(word: re.Match[str]) -> str:
        return f"--{word[0].replace('_', '-')}" if word[0] in parameters else word[0]

    return re.sub(r"[a-z_]+", as_option, instead(name, sorted(parameters)))


def _give_up_output() -> None:
    """Leave standard output where it cannot be written; Python would complain again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _tell(message: str, details: dict[str, object], *, as_json: bool) -> None:
    if as_json:
        sys.stderr.write(json.dumps({"error": {"message": message, **details}}) + "\n")
    else:
        sys.stderr.write(f"divgrpc: {_in_flags(message)}\n")


def _in_flags(message: str) -> str:
    """Say in options of the command line what a message says in Python's words."""
    message = message.replace("set replace=True to replace it", "--replace replaces it")

    def as_option(setting: re.Match[str]) -> str:
        name, value = setting["name"], setting["value"]
        is_parameter = name in BUILD_DEFAULTS | QUERY_DEFAULTS | PREDICT_DEFAULTS
        return f"--{name.replace('_', '-')} {value}" if is_parameter else setting[0]

    return re.sub(r"\b(?P<name>[a-z_]+)=\"?(?P<value>[\w.]+)\"?", as_option, message)


def _complain(error: DivgrpcError, *, as_json: bool) -> None:
    details: dict[str, object] = {"reason": error.reason}
    if isinstance(error, RpcError):
        violations = [{"field": f, "description": d} for f, d in error.field_violations]
        details |= {
            "code": error.code.name,
            "detail": error.detail,
            "field_violations": violations,
            "retry_after": error.retry_after,
            "request_id": error.request_id,
        }
    elif isinstance(error, InvalidArgumentError):
        details["field_violations"] = [{"field": error.field, "description": str(error)}]
    _tell(str(error), details, as_json=as_json)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="divgrpc", description=_TOP, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=divgrpc.__version__)
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_build(verbs)
    _add_query(verbs)
    _add_predict(verbs)
    _add_evaluate(verbs)
    _add_evaluate_labels(verbs)
    add(verbs, "ls", commands.ls, "List the indexes.")
    add_named(
        add(
            verbs, "info", commands.info, "Show an index: its parameters, and why Build chose them."
        )
    )
    add_named(add(verbs, "rm", commands.rm, "Delete an index."))
    add_load(verbs)
    add_warm(verbs)
    return parser


def _add_build(verbs: Any) -> None:  # noqa: ANN401  # argparse names no type for it
    verb = add(verbs, "build", commands.build, _BUILD)
    add_with_file(verb, nargs="?")
    source = (
        "an .npy file, a text file of one number per line, an array of the .npz, or `labels` for "
        "those of the svmlight file"
    )
    verb.add_argument("--ids", metavar="SOURCE", help=f"Take one id per row from {source}.")
    verb.add_argument(
        "--categories", metavar="SOURCE", help="Take one category per row, -1 for none."
    )
    verb.add_argument(
        "--subtopics", metavar="SOURCE", help="Take one sub-topic per row, -1 for none."
    )
    verb.add_argument("--replace", action="store_true", help="Replace an index of that name.")
    add_labels(verb)
    add_options(verb, BuildOptions, BUILD_DEFAULTS)


def _add_query(verbs: Any) -> None:  # noqa: ANN401  # argparse names no type for it
    verb = add(verbs, "query", commands.query, _QUERY)
    add_with_file(verb)
    verb.add_argument("--rows", metavar="START:STOP", help="Ask these rows of the file alone.")
    add_options(verb, QueryOptions, QUERY_DEFAULTS)


def _add_predict(verbs: Any) -> None:  # noqa: ANN401  # argparse names no type for it
    verb = add(verbs, "predict", commands.predict, _PREDICT)
    add_with_file(verb, f"A file with one document per row: {FORMATS}, or text as build takes it.")
    add_split(verb)
    verb.add_argument("--rows", metavar="START:STOP", help="Ask about these rows alone.")
    add_options(verb, PredictOptions, PREDICT_DEFAULTS)


def _add_evaluate(verbs: Any) -> None:  # noqa: ANN401  # argparse names no type for it
    verb = add(verbs, "evaluate", commands.evaluate, _EVALUATE)
    add_with_file(verb)
    verb.add_argument(
        "--categories", metavar="SOURCE", help="Take the points of each row's category as relevant."
    )
    verb.add_argument(
        "--relevant",
        metavar="TEXT",
        help="Take the relevant ids of each row from a line of this file.",
    )
    _add_choosing(verb, "Let Query take what is chosen from now on.")
    verb.add_argument(
        "--per-query", action="store_true", help="Show figures per query too, with --json."
    )
    _add_report(verb)
    add_options(verb, GridOptions, GRID_DEFAULTS)


def _add_evaluate_labels(verbs: Any) -> None:  # noqa: ANN401  # argparse names no type for it
    verb = add(verbs, "evaluate-labels", commands.evaluate_labels, _EVALUATE_LABELS)
    add_named(verb)
    add_labelled(verb)
    add_reading(verb)
    verb.add_argument("--rows", metavar="START:STOP", help="Go by these rows alone.")
    _add_choosing(verb, "Keep the best threshold of each mode with the index.")
    verb.add_argument(
        "--per-document", action="store_true", help="Show figures per document too, with --json."
    )
    add_options(verb, LabelGridOptions, LABEL_GRID_DEFAULTS)


def _add_choosing(verb: argparse.ArgumentParser, set_default: str) -> None:
    verb.add_argument(
        "--folds",
        type=int,
        default=FOLDS,
        metavar="N",
        help=f"Number of folds to choose by (default {FOLDS}).",
    )
    verb.add_argument("--set-default", action="store_true", help=set_default)
    verb.add_argument("--csv", action="store_true", help="Print CSV.")


def _add_report(verb: argparse.ArgumentParser) -> None:
    group = verb.add_argument_group("a page for people; needs divgrpc[report]")
    group.add_argument("--report", metavar="HTML", help="Write curves and tables to this file.")
    by_id = "a line of text for each id, or lines of an id, a tabulator and"
    group.add_argument("--titles", metavar="FILE", help=f"Show results with {by_id} a title.")
    group.add_argument(
        "--thumbnails",
        metavar="PATH",
        help="Show results with pictures: a folder of <id>.png or .jpg, or an .npy of them by id.",
    )
    group.add_argument(
        "--point-categories",
        metavar="FILE",
        help=f"Box results of another category, from {by_id} a category.",
    )
    group.add_argument(
        "--show",
        type=int,
        metavar="N",
        help="Number of queries to show with their results (default 4).",
    )
