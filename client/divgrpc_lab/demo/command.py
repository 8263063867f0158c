"""The demonstration: plain nearest neighbours beside diverse results, on scanned digits, over gRPC.

First among near-copies, asked for "more like this"; then for the paper's queries. Options are the
defaults wherever the report does not say otherwise.
"""

import contextlib
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from rich.console import Console

from divgrpc.metrics import mean
from divgrpc.types import IntArray
from divgrpc_client.client import Client
from divgrpc_client.formats import tables
from divgrpc_lab.demo import copies as demo_copies
from divgrpc_lab.demo import digits as demo_digits
from divgrpc_lab.demo import keep as demo_kept
from divgrpc_lab.contact_sheet import Block, write_contact_sheet
from divgrpc_lab.demo.queries import K
from divgrpc_lab.server_process import starting_server

GAIN_LEAST: Final = 0.15
_SUBTITLE: Final = (
    f"{K} results for each query, in the order in which they were picked. "
    "Boxed: copies of an image shown before, and wrong digits."
)
# A command, and what it is for.
_NEXT: Final = (
    ("make demo ARGS=--keep", "the same, and the server stays for you to try"),
    ("divgrpc-server --data-dir indexes", "start a server that keeps its indexes"),
    ("divgrpc build NAME vectors.npy", "fill it"),
    ("divgrpc query NAME queries.npy", "ten results that differ, for each row"),
    ("divgrpc info NAME", "see what was chosen, and why"),
)


def run(folder: Path, *, keep: bool = False) -> int:
    """Run the demonstration, with the picture going to `folder`; returns the exit code.

    With `keep` the server, its indexes and two files of vectors stay until Ctrl-C.
    """
    out = tables.console()
    folder.mkdir(parents=True, exist_ok=True)  # before the work: it may not be ours to write
    out.print("Starting a server (the first start compiles the kernels) ...")
    with contextlib.ExitStack() as ends:
        if keep:
            ends.enter_context(demo_kept.ended_by_signals())
        wait_for_address = ends.enter_context(starting_server())
        # Meanwhile: scikit-learn, which has the images, takes seconds to load.
        data = demo_digits.load()
        parts = demo_digits.split(len(data.images))
        copies = demo_copies.copy_images(data.images[parts.indexed], data.digits[parts.indexed])
        rows = demo_copies.choose_queries(copies)
        target = wait_for_address()
        with Client(target, timeout=10.0) as client:
            _build_both(client, copies, data, parts)
            blocks = _show_copies(out, client, copies, rows)
            more, gain = _show_digits(out, client, data, parts)
        path = folder / "contact-sheet.png"
        write_contact_sheet(path, "Nearest, and nearest but different", _SUBTITLE, blocks + more)
        out.print(f"\nPictures: {path}\n", soft_wrap=True)
        failed = gained_too_little(out, gain)
        if keep:
            paths = ends.enter_context(
                demo_kept.written(folder, copies.vectors, copies.vectors[rows])
            )
            lines = demo_kept.commands(programs(), target, demo_copies.INDEX, paths)
            demo_kept.wait(out, target, lines)
    if not keep and not failed:
        _show_next(out)
    return int(failed)


def _build_both(
    client: Client, copies: demo_copies.Copies, data: demo_digits.Digits, parts: demo_digits.Parts
) -> None:
    """Build both indexes at once: most of either build is the start of a process."""
    with ThreadPoolExecutor() as threads:
        builds = (
            threads.submit(demo_copies.build, client, copies),
            threads.submit(demo_digits.build, client, data, parts.indexed),
        )
        for build in builds:
            build.result()


def _show_copies(
    out: Console, client: Client, copies: demo_copies.Copies, rows: IntArray
) -> list[Block]:
    """Print the part about near-copies; returns its pictures."""
    both = demo_copies.ask_both(client, copies, rows)
    demo_copies.report(out, copies, rows, both)
    return demo_copies.blocks(copies, rows, both)


def _show_digits(
    out: Console, client: Client, data: demo_digits.Digits, parts: demo_digits.Parts
) -> tuple[list[Block], float]:
    """Print the part about even and odd digits; returns its pictures and the best dial's gain."""
    dial = demo_digits.choose_dial(client, data, parts)
    asked = demo_digits.learn(data, parts.reported, demo_digits.QUERIES_PER_CATEGORY, seed=1)
    answers = demo_digits.ask_all(client, asked, dial)
    qualities = [
        demo_digits.measured(data, parts.indexed, asked, setting.ids) for setting in answers
    ]
    demo_digits.report(out, parts, answers, qualities)
    nearest, _, best = (mean(quality["h_score"]) for quality in qualities)
    return demo_digits.blocks(data, asked, answers, qualities), best - nearest


def gained_too_little(out: Console, gain: float) -> bool:
    """Tell whether h rose by less than `GAIN_LEAST`, and print that it did."""
    if gain < GAIN_LEAST:
        out.print(f"FAILED: h rose by {gain:.3f}; it should rise by at least {GAIN_LEAST}")
    return gain < GAIN_LEAST


def _show_next(out: Console) -> None:
    out.print("Next, with vectors of your own:\n")
    folder = programs()
    for command, purpose in _NEXT:
        program = command if command.startswith("make ") else f"{folder}{command}"
        out.print(f"  {program:<{len(folder) + 36}} {purpose}", soft_wrap=True)
    out.print("\nREADME.md has the same in Python, and docs/pages/guide/glossary.md explains the words.")


def programs() -> str:
    """Return what a shell needs before the name of our programs: nothing, or their folder."""
    if shutil.which("divgrpc"):
        return ""
    # Not resolved: in an environment the interpreter is a link, and our programs lie beside it.
    folder = Path(sys.executable).parent
    return f"{folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder}/"
