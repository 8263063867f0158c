"""The command `divgrpc warm`. The engine loads when it runs."""

import argparse
import sys

from divgrpc_client.formats import json_output
from divgrpc_client.formats.extras import extra


def warm(arguments: argparse.Namespace) -> int:
    """Compile the search kernels now, so that no later start waits for them.

    Kernels are compiled once for each release, processor and version of Python, numba and numpy,
    which takes about 30 s on two cores. Otherwise the first Index.build or the first start of a
    server does it. Only the computer that searches needs kernels; a client has none.

      divgrpc warm                                      into the user's cache folder
      DIVGRPC_KERNEL_CACHE=/srv/kernels divgrpc warm    into a folder that an image keeps

    The folder may be copied: kernels are found wherever divgrpc is installed. They are for the
    processor of this computer. To make them for others, name the oldest of these processors, both
    here and where the kernels are used:

      NUMBA_CPU_NAME=x86-64-v3 NUMBA_CPU_FEATURES= divgrpc warm

    Kernels of other releases that no process has started with for 30 days are removed. It ends with
    1 where the folder cannot be written.
    """
    with extra("warm", "compiling kernels", "server"):
        from divgrpc.warmup import warm_ahead
    outcome = warm_ahead(quiet=arguments.quiet or arguments.json)
    if arguments.json:
        json_output.show(outcome.as_dict())
    else:
        source = "were compiled before"
        if outcome.compile_seconds is not None:
            source = f"compiled in {outcome.compile_seconds:.1f} s"
        size = f"{outcome.size_bytes / 1e6:.1f} MB"
        sys.stdout.write(
            f"{outcome.kernels} kernels for {outcome.processor}, {size}, in {outcome.folder}\n"
            f"{source}, loaded in {outcome.load_seconds:.1f} s\n"
        )
    if not outcome.kept:
        sys.stderr.write(
            "divgrpc: the kernels could not be kept: make the folder writable, or name another one "
            "in DIVGRPC_KERNEL_CACHE\n"
        )
    return 0 if outcome.kept else 1


def add_warm(verb: argparse.ArgumentParser) -> None:
    """Add the options of `warm`."""
    verb.add_argument("--quiet", action="store_true", help="Show no progress, only the outcome.")
    verb.add_argument("--json", action="store_true", help="Print the outcome as JSON.")
