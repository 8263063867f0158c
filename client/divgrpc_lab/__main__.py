"""The command line of the lab: `python -m divgrpc_lab demo|table1|table2|paper|figures`.

The exit code is 0 after success, 1 after a failure, 2 after a wrong command line and 130 after
Ctrl-C.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any, Final

from divgrpc.errors import DivgrpcError, InvalidArgumentError
from divgrpc_lab import figures, paper
from divgrpc_lab.demo import command as demo
from divgrpc_lab.table1 import command as table1
from divgrpc_lab.table2 import command as table2

# The docstring of each module is the help text of its command.
_COMMANDS: Final[dict[str, Any]] = {
    "demo": demo,
    "table1": table1,
    "table2": table2,
    "paper": paper,
    "figures": figures,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one experiment and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m divgrpc_lab", description=__doc__)
    verbs = parser.add_subparsers(title="experiments", metavar="EXPERIMENT", required=True)
    for name, command in _COMMANDS.items():
        # `python -OO` keeps no docstrings.
        text = command.__doc__ or ""
        verb = verbs.add_parser(
            name,
            help=text.partition("\n")[0],
            description=text,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_options(verb)
        verb.set_defaults(run=command.run)
    arguments = parser.parse_args(argv)
    try:
        arguments.words = sys.argv[1:] if argv is None else argv
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


if __name__ == "__main__":
    sys.exit(main())
