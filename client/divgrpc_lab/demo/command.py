"""Compare plain nearest neighbours with diverse results, in tables and in an image file.

  make demo                  the first run compiles for about a minute
  make demo ARGS=--keep      keep the server and its indexes until Ctrl-C

The demonstration starts a server and indexes scanned digits. The first index has near-copies and
answers "more like this" queries, and the second answers the paper's queries. Points of the third
are deleted and added while it is searched. All options have their defaults unless the report names
them.
"""

import argparse
import contextlib
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

import numpy as np
from rich.console import Console

from divgrpc.types import FloatArray
from divgrpc_client.client import Client
from divgrpc_client.formats import tables
from divgrpc_lab.contact_sheet import write_contact_sheet
from divgrpc_lab.demo import copies as demo_copies
from divgrpc_lab.demo import digits as demo_digits
from divgrpc_lab.demo import writes as demo_writes
from divgrpc_lab.demo.queries import K
from divgrpc_lab.server_process import starting_server

GAIN_MIN: Final = 0.15
_SUBTITLE: Final = (
    f"{K} results for each query, in the order in which they were picked. "
    "Boxed: copies of an image shown before, and wrong digits."
)
# Commands, and what they are for.
_NEXT: Final = {
    "divgrpc-server --data-dir indexes": "start a server that keeps its indexes",
    "divgrpc build NAME vectors.npy": "fill it",
    "divgrpc query NAME queries.npy": "ten results that differ, for each row",
    "divgrpc info NAME": "see what was chosen, and why",
}
_ENDING_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)


def add_options(verb: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    verb.add_argument(
        "--folder",
        type=Path,
        default=Path("demo"),
        help="Write the picture to this folder (default demo).",
    )
    verb.add_argument(
        "--keep",
        action="store_true",
        help="Keep the server, its indexes and two files of vectors to try, until Ctrl-C.",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the demonstration and return the exit code.

    It is 1 if the mean h-score rose too little, or if queries did not see what was written.
    """
    out, folder = tables.console(), arguments.folder
    folder.mkdir(parents=True, exist_ok=True)  # before the work: it may not be writable
    out.print("Starting a server (the first start compiles the kernels) ...")
    with contextlib.ExitStack() as stack:
        if arguments.keep:
            stack.enter_context(ended_by_signals())
        wait_for_address = stack.enter_context(starting_server())
        data = demo_digits.load()
        copies = demo_copies.copy_images(data.images[data.index_rows], data.digits[data.index_rows])
        target = wait_for_address()
        with Client(target, timeout=10.0) as client:
            # Run both builds at the same time, because a build spends most of its time starting a
            # process.
            with ThreadPoolExecutor() as threads:
                builds = (
                    threads.submit(demo_copies.build, client, copies),
                    threads.submit(demo_digits.build, client, data),
                )
            for build in builds:
                build.result()
            blocks = demo_copies.show(out, client, copies)
            more, gain = demo_digits.show(out, client, data)
            errors = demo_writes.show(out, client, target, copies)
        path = folder / "contact-sheet.png"
        write_contact_sheet(path, "Nearest, and nearest but different", _SUBTITLE, blocks + more)
        out.print(f"\nPictures: {path}\n", soft_wrap=True)
        is_failure = gained_too_little(out, gain) or errors > 0
        if arguments.keep:
            arrays = {"vectors": copies.vectors, "queries": copies.vectors[copies.rows]}
            paths = stack.enter_context(stored(folder, arrays))
            _wait(out, target, *paths)
        elif not is_failure:
            _print_next_steps(out)
    return int(is_failure)


def gained_too_little(out: Console, gain: float) -> bool:
    """Tell whether h rose by less than `GAIN_MIN`; if so, print a message."""
    if gain < GAIN_MIN:
        out.print(f"FAILED: h rose by {gain:.3f}; it should rise by at least {GAIN_MIN}")
    return gain < GAIN_MIN


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the run like Ctrl-C, so that the server is stopped."""

    def interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in _ENDING_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def stored(folder: Path, arrays: Mapping[str, FloatArray]) -> Iterator[Sequence[Path]]:
    """Write arrays as NAME.npy into the folder, yield the paths and finally remove the files."""
    paths = [folder / f"{name}.npy" for name in arrays]
    try:
        for path, rows in zip(paths, arrays.values(), strict=True):
            np.save(path, rows)
        yield paths
    finally:
        for path in paths:
            path.unlink(missing_ok=True)


def _wait(out: Console, target: str, vectors: Path, queries: Path) -> None:
    """Print commands to try, and return after Ctrl-C or a signal."""
    index, folder = demo_copies.INDEX, programs()
    query = f"query {index} {shlex.quote(str(queries))} --rows 0:1"
    words = {
        query: "ten results that differ",
        f"{query} --diversity 0": "the nearest alone",
        f"info {index}": "what Build chose, and why",
        f"build mine {shlex.quote(str(vectors))}": "an index of your own",
        "ls": "all indexes",
    }
    out.print(f"The server stays at {target}. In another terminal, in this folder:\n")
    for command, purpose in words.items():
        line = f"  # {purpose}\n  {folder}divgrpc {command} --target {target}"
        out.print(line, soft_wrap=True, markup=False)
    out.print("\nCtrl-C here stops the server and removes its indexes and both .npy files.")
    out.file.flush()  # a pipe would keep it
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            time.sleep(1)
    out.print("\nStopping.")


def _print_next_steps(out: Console) -> None:
    folder = programs()
    keep = {"make demo ARGS=--keep": "the same, and the server stays for you to try"}
    steps = keep | {f"{folder}{command}": purpose for command, purpose in _NEXT.items()}
    out.print("Next, with vectors of your own:\n")
    for command, purpose in steps.items():
        out.print(f"  {command:<{len(folder) + 36}} {purpose}", soft_wrap=True)
    out.print(
        "\nREADME.md has the same in Python, and docs/pages/guide/glossary.md explains the words."
    )


def programs() -> str:
    """Return the shell prefix of our programs: empty if they are on the PATH, else a folder."""
    if shutil.which("divgrpc"):
        return ""
    # The link is not resolved: in a virtual environment the interpreter is a link, and our programs
    # are in the folder of the link.
    folder = Path(sys.executable).parent
    return f"{folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder}/"
