"""What `divgrpc demo --keep` leaves: a server, its indexes and two files, until Ctrl-C."""

import shlex
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

import numpy as np
from rich.console import Console

from divgrpc.types import FloatArray

_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)
_LOOK_SECONDS: Final = 1.0


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and a closed terminal do what Ctrl-C does, so that the server is stopped too."""

    def interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def written(folder: Path, vectors: FloatArray, queries: FloatArray) -> Iterator[tuple[Path, Path]]:
    """Write `vectors` and `queries` into the folder, yield both paths, remove both at the end."""
    paths = folder / "vectors.npy", folder / "queries.npy"
    try:
        for path, rows in zip(paths, (vectors, queries), strict=True):
            np.save(path, rows)
        yield paths
    finally:
        for path in paths:
            path.unlink(missing_ok=True)


def commands(programs: str, target: str, index: str, paths: tuple[Path, Path]) -> dict[str, str]:
    """Return commands that work as they stand, and what each is for."""
    vectors, queries = (shlex.quote(str(path)) for path in paths)

    def command(words: str) -> str:
        return f"{programs}divgrpc {words} --target {target}"

    return {
        command(f"query {index} {queries} --rows 0:1"): "ten results that differ",
        command(f"query {index} {queries} --rows 0:1 --diversity 0"): "the nearest alone",
        command(f"info {index}"): "what Build chose, and why",
        command(f"build mine {vectors}"): "an index of your own",
        command("ls"): "all indexes",
    }


def wait(out: Console, target: str, lines: dict[str, str]) -> None:
    """Say what there is to try, and return when Ctrl-C or a signal says that it is enough."""
    out.print(f"The server stays at {target}. In another terminal, in this folder:\n")
    for command, purpose in lines.items():
        out.print(f"  # {purpose}\n  {command}", soft_wrap=True, markup=False)
    out.print("\nCtrl-C here stops the server and removes its indexes and both .npy files.")
    out.file.flush()  # a pipe would keep it
    try:
        while True:
            time.sleep(_LOOK_SECONDS)
    except KeyboardInterrupt:
        out.print("\nStopping.")
