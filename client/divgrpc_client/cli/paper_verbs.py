"""The verbs of `divgrpc paper`: the paper's tables and figures made again."""

import argparse
from collections.abc import Callable
from typing import Any, Final

from divgrpc_client.cli import commands
from divgrpc_client.cli.options import first_sentence

_PAPER: Final = "Measure what the paper reports, on real data."
_TABLE1: Final = """\
Measure the paper's Table 1 on a server of its own, say which of its claims hold, write a page.

  divgrpc paper table1 --data FOLDER --out table1.html --json table1.json
  divgrpc paper table1 --data FOLDER --sets newsgroups20 --seeds 3
  divgrpc paper table1 --from table1.json   say and draw again what a run has found
  divgrpc paper table1 --quick              on the digits of scikit-learn, where there is no data
"""
_TABLE2: Final = """\
Measure the paper's Table 2 in this process, say which of its claims hold, write a page.

  divgrpc paper table2 --data FOLDER --out table2.html --json table2.json
  divgrpc paper table2 --data FOLDER --sets enron_hier --documents 300
  divgrpc paper table2 --quick              on the digits of scikit-learn, where there is no data
"""
_FIGURES: Final = """\
Draw two of the paper's figures again, on a server of its own.

Two classes in the plane, and the results of seven queries side by side.

  divgrpc paper figures                     one page, figures.html
  divgrpc paper figures --out figures       a folder: the page, SVG and PNG
"""


def add_paper(verbs: Any) -> None:  # noqa: ANN401  # argparse names no type for it
    """Add `paper` and its parts."""
    verb = verbs.add_parser("paper", help=_PAPER, description=_PAPER)
    parts = verb.add_subparsers(title="parts", metavar="PART", required=True)
    for table in (_add_table1(parts), _add_table2(parts)):
        table.add_argument(
            "--data",
            metavar="FOLDER",
            help="The folder of the data sets ($DIVGRPC_DATA; digits without it).",
        )
        table.add_argument(
            "--json", metavar="FILE", dest="json_file", help="Write all figures as JSON."
        )
        table.add_argument(
            "--quick", action="store_true", help="Ask few queries, in a minute or two."
        )
    _add_part(
        parts, "figures", _FIGURES, commands.paper_figures, page="Write the page, or a folder, here"
    )


def _add_table1(parts: Any) -> argparse.ArgumentParser:  # noqa: ANN401  # argparse names no type for it
    table1 = _add_part(parts, "table1", _TABLE1, commands.paper_table1)
    table1.add_argument(
        "--from", metavar="FILE", dest="source", help="Show an earlier run from its JSON."
    )
    table1.add_argument(
        "--per-category", type=int, metavar="N", help="Number of queries a category (default 50)."
    )
    table1.add_argument(
        "--sets", nargs="+", metavar="SET", help="Measure these sets (default all)."
    )
    table1.add_argument(
        "--seeds", type=int, metavar="N", help="Number of hashes to repeat with (default 5)."
    )
    return table1


def _add_table2(parts: Any) -> argparse.ArgumentParser:  # noqa: ANN401  # argparse names no type for it
    table2 = _add_part(parts, "table2", _TABLE2, commands.paper_table2)
    table2.add_argument(
        "--documents",
        type=int,
        default=1_000,
        metavar="N",
        help="Number of documents to ask of each set (default 1000).",
    )
    table2.add_argument(
        "--sets",
        nargs="*",
        metavar="SET",
        help="Measure these sets (default all); without a name, times alone.",
    )
    return table2


def _add_part(
    parts: Any,  # noqa: ANN401  # argparse names no type for it
    name: str,
    text: str,
    run: Callable[[argparse.Namespace], int],
    page: str = "Write the page here",
) -> argparse.ArgumentParser:
    part: argparse.ArgumentParser = parts.add_parser(
        name,
        help=first_sentence(text),
        description=text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    part.set_defaults(run=run)
    part.add_argument("--out", default=f"{name}.html", help=f"{page} (default {name}.html).")
    return part
