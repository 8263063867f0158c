"""The verb `divgrpc warm`: its options and what it does. The engine loads when it runs."""

import argparse
import json
import sys
from typing import Any, Final

from divgrpc_client.formats.extras import extra

_WARM: Final = """\
Compile the search kernels now, so that no later start waits for them.

Kernels are compiled once for each release, processor and version of Python, numba and numpy, which
takes about 30 s on two cores. Otherwise the first Index.build or the first start of a server does
it. Only the computer that searches needs kernels; a client has none.

  divgrpc warm                                      into the user's cache folder
  DIVGRPC_KERNEL_CACHE=/srv/kernels divgrpc warm    into a folder that an image keeps

The folder may be copied: kernels are found wherever divgrpc is installed. They are for the
processor of this computer. To make them for others, name the oldest of these processors, both here
and where the kernels are used:

  NUMBA_CPU_NAME=x86-64-v3 NUMBA_CPU_FEATURES= divgrpc warm

Kernels of other releases that no process has started with for 30 days are removed. It ends with 1
where the folder cannot be written.
"""


def add_warm(verbs: Any) -> None:  # noqa: ANN401  # argparse names no type for it
    """Add `warm`."""
    verb = verbs.add_parser(
        "warm",
        help=_WARM.splitlines()[0],
        description=_WARM,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verb.set_defaults(run=_run)
    verb.add_argument("--quiet", action="store_true", help="Show no progress, only the outcome.")
    verb.add_argument("--json", action="store_true", help="Print the outcome as JSON.")


def _run(arguments: argparse.Namespace) -> int:
    """Compile and load all kernels and say where they are; returns the exit code."""
    with extra("warm", "compiling kernels", "server"):
        from divgrpc.warmup import warm_ahead
    warmed = warm_ahead(quiet=arguments.quiet or arguments.json)
    if arguments.json:
        sys.stdout.write(json.dumps(warmed.as_dict()) + "\n")
    else:
        compiled = "were compiled before"
        if warmed.compile_seconds is not None:
            compiled = f"compiled in {warmed.compile_seconds:.1f} s"
        size = f"{warmed.size_bytes / 1e6:.1f} MB"
        sys.stdout.write(
            f"{warmed.kernels} kernels for {warmed.processor}, {size}, in {warmed.folder}\n"
            f"{compiled}, loaded in {warmed.load_seconds:.1f} s\n"
        )
    if not warmed.kept:
        sys.stderr.write(
            "divgrpc: the kernels could not be kept: make the folder writable, or name another one "
            "in DIVGRPC_KERNEL_CACHE\n"
        )
    return 0 if warmed.kept else 1
