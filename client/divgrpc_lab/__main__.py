"""The command line of the lab: `python -m divgrpc_lab demo|table1|table2|figures`.

It ends with 0 when done, 1 where something failed, 2 where the command itself is wrong and 130
after Ctrl-C.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from divgrpc.errors import DivgrpcError, InvalidArgumentError

_DEMO: Final = """\
Start a server, index scanned digits and noisy copies of them, and put plain nearest neighbours
beside diverse results: figures on the terminal, pictures in a file.

  make demo                  compiles first, about a minute, once
  make demo ARGS=--keep      leave the server and its indexes to try, until Ctrl-C
"""
_TABLE1: Final = """\
Measure the paper's Table 1 on a server of its own, judge the paper's claims, write a page.

  make table1 ARGS="--data FOLDER --json table1.json"
  make table1 ARGS="--data FOLDER --sets newsgroups20 --seeds 3"
  make table1 ARGS=--quick       on the digits of scikit-learn, where there is no data
"""
_TABLE2: Final = """\
Measure the paper's Table 2 in this process, judge the paper's claims, write a page.

  make table2 ARGS="--data FOLDER --json table2.json"
  make table2 ARGS="--data FOLDER --sets enron_hier --documents 300"
  make table2 ARGS=--quick       on the digits of scikit-learn, where there is no data
"""
_FIGURES: Final = """\
Draw two figures of the paper again: two classes in the plane, and the results of seven queries side
by side. The command starts its own server.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one experiment and return its exit code."""
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except InvalidArgumentError as error:
        sys.stderr.write(f"divgrpc_lab: {error}\n")
        return 2
    except (DivgrpcError, OSError) as error:
        sys.stderr.write(f"divgrpc_lab: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130


def _demo(arguments: argparse.Namespace) -> int:
    from divgrpc_lab.demo import command

    return command.run(arguments.folder, keep=arguments.keep)


def _table1(arguments: argparse.Namespace) -> int:
    from divgrpc_lab.table1 import command

    return command.run(
        arguments.sets,
        arguments.data,
        command.plan(arguments.per_category, arguments.seeds, quick=arguments.quick),
        arguments.out,
        arguments.json,
    )


def _table2(arguments: argparse.Namespace) -> int:
    from divgrpc_lab.table2 import command

    return command.run(
        arguments.sets,
        arguments.data,
        command.asked_documents(arguments.documents, quick=arguments.quick),
        arguments.out,
        arguments.json,
    )


def _figures(arguments: argparse.Namespace) -> int:
    from divgrpc_lab import figures

    return figures.run(arguments.out)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m divgrpc_lab", description=__doc__)
    verbs = parser.add_subparsers(title="experiments", metavar="EXPERIMENT", required=True)
    demo = _add(verbs, "demo", _DEMO, _demo)
    demo.add_argument(
        "--folder",
        type=Path,
        default=Path("demo"),
        help="Write the picture to this folder (default demo).",
    )
    demo.add_argument(
        "--keep",
        action="store_true",
        help="Leave the server, its indexes and two files of vectors to try, until Ctrl-C.",
    )
    table1 = _add_table(verbs, "table1", _TABLE1, _table1)
    table1.add_argument(
        "--per-category", type=int, metavar="N", help="Queries of a category (default 50)."
    )
    table1.add_argument(
        "--seeds", type=int, metavar="N", help="Hash seeds to repeat with (default 5)."
    )
    table2 = _add_table(verbs, "table2", _TABLE2, _table2)
    table2.add_argument(
        "--documents",
        type=int,
        default=1_000,
        metavar="N",
        help="Documents to predict labels for in each set (default 1000).",
    )
    figures = _add(verbs, "figures", _FIGURES, _figures)
    _add_out(figures, "figures", "Write the page, or a folder of pictures,")
    return parser


def _add(verbs: Any, name: str, text: str, run: Any) -> argparse.ArgumentParser:
    verb: argparse.ArgumentParser = verbs.add_parser(
        name,
        help=" ".join(text.split("\n\n", maxsplit=1)[0].split()),
        description=text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verb.set_defaults(run=run)
    return verb


def _add_table(verbs: Any, name: str, text: str, run: Any) -> argparse.ArgumentParser:
    verb = _add(verbs, name, text, run)
    _add_out(verb, name, "Write the page")
    verb.add_argument(
        "--data",
        metavar="FOLDER",
        help="The folder of the data sets ($DIVGRPC_DATA; digits without it).",
    )
    verb.add_argument("--sets", nargs="*", metavar="SET", help="Measure these sets (default all).")
    verb.add_argument("--json", type=Path, metavar="FILE", help="Write all figures as JSON.")
    verb.add_argument("--quick", action="store_true", help="Ask little, in a minute or two.")
    return verb


def _add_out(verb: argparse.ArgumentParser, name: str, text: str) -> None:
    default = Path(f"{name}.html")
    verb.add_argument("--out", type=Path, default=default, help=f"{text} here (default {default}).")


if __name__ == "__main__":
    sys.exit(main())
