"""A repair that is interrupted between two changes of files can be made again."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from divgrpc import Index
from divgrpc.doctor import check_folder
from support.data.damaged_indexes import LAST, MODELS, flip
from support.data.written_points import check_points

_CHANGES = ("rename", "replace", "link", "unlink", "mkdir", "posix_fallocate")
_CHANGES_MAX = 60


class CrashError(BaseException):
    """Stands for the death of the process."""


def repair(index: Path, monkeypatch: pytest.MonkeyPatch, changes: int) -> bool:
    """Repair an index, and crash after a number of changes; return whether it ended before."""
    count = 0

    def counted(change: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401  # of any of these
            nonlocal count
            # The death of a process frees its locks.
            count += not str(arguments[0]).endswith(".lock")
            if count > changes and not str(arguments[0]).endswith(".lock"):
                raise CrashError
            return change(*arguments, **options)

        return run

    with monkeypatch.context() as patch:
        for name in _CHANGES:
            patch.setattr(os, name, counted(getattr(os, name)))
        try:
            check_folder(index, repair=True, accept_loss=True)
        except CrashError:
            return False
    return True


def damage_layout(index: Path) -> None:
    flip(index / "1" / "writes" / "LAYOUT")


def damage_log(index: Path) -> None:
    flip(sorted((index / "1" / "writes" / "log").glob("*.wal"))[-1])


def damage_generation(index: Path) -> None:
    shutil.copytree(index / "1", index / "2")
    (index / "CURRENT").write_text("2\n")
    flip(index / "2" / "vectors.npy")


@pytest.mark.parametrize(
    ("fixture", "damage", "last", "stride"),
    [
        ("index", damage_layout, LAST, 3),
        ("index_with_short_log", damage_layout, 0, 1),
        ("index", damage_log, 4, 1),
        ("index", damage_generation, LAST, 1),
    ],
)
def test_a_repair_after_a_repair_that_crashed(
    fixture: str,
    damage: Callable[[Path], None],
    last: int,
    stride: int,
    *,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original: Path = request.getfixturevalue(fixture)
    damage(original)
    assert check_folder(original)[0].verdict in ("repairable", "damaged")
    for changes in range(0, _CHANGES_MAX, stride):
        index = original.parent / f"points-{changes}"
        shutil.copytree(original, index)
        has_ended = repair(index, monkeypatch, changes)
        (report,) = check_folder(index, repair=True, accept_loss=True)
        assert (report.verdict, report.sequence or 0) == ("ok", last), changes
        if changes % 5 == 0 or has_ended:
            check_points(Index.open(index), MODELS[last])
        shutil.rmtree(index)
        if has_ended:
            break
    assert has_ended
    assert changes >= 3
