"""Folders of compiled kernels that no process uses any more."""

import os
import time
from pathlib import Path

import pytest

from divgrpc import compilation, warmup
from divgrpc.kernels import cache_files

DAY_SECONDS = 86_400


def age_days(folder: Path) -> float:
    """Return how long ago a folder was last used, by its own time."""
    return (time.time() - folder.stat().st_mtime) / DAY_SECONDS


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Return folders of several ages; this process takes one for its own."""
    days = {"current": 40, "31 days": 31, "29 days": 29, "other": 40}
    made = {name: tmp_path / f"kernels-{number:016x}" for number, name in enumerate(days)}
    made["other"] = tmp_path / "kernels-of-mine"
    for name, folder in made.items():
        folder.mkdir()
        (folder / "a.kernel").write_bytes(b"")
        seconds = time.time() - DAY_SECONDS * days[name]
        os.utime(folder, (seconds, seconds))
    (tmp_path / f"kernels-{99:016x}").symlink_to(made["other"])
    monkeypatch.setattr(cache_files, "cache_folder", lambda: made["current"])
    return made


def left(folders: dict[str, Path]) -> set[str]:
    """Return the names of the folders that still have their file."""
    return {name for name, folder in folders.items() if (folder / "a.kernel").exists()}


def test_warm_removes_what_nobody_used_for_30_days(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never the current folder, nor what is no folder of kernels."""
    monkeypatch.setattr(cache_files, "is_warm", lambda: True)
    monkeypatch.setattr(compilation, "ensure", lambda: None)
    monkeypatch.setattr(warmup, "warm_kernels", lambda: None)
    warmup.warm_ahead()
    assert left(folders) == {"current", "29 days", "other"}


@pytest.mark.parametrize(("failure", "removed"), [("", {"31 days"}), ("no room", set())])
def test_a_compilation_removes_it_too(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, failure: str, removed: set[str]
) -> None:
    """A release compiles once. Where that fails, everything stays."""
    monkeypatch.setattr(cache_files, "is_warm", lambda: False)
    monkeypatch.setattr(compilation, "_compile_under_lock", lambda _: failure)
    assert compilation.compile_ahead(lambda _: None) == (not failure)
    assert left(folders) == set(folders) - removed


def test_a_start_is_a_use(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that finds all kernels sets the time of their folder and removes nothing."""
    monkeypatch.setattr(cache_files, "is_warm", lambda: True)
    assert age_days(folders["current"]) > 39
    assert compilation.compile_ahead(lambda _: None)
    assert age_days(folders["current"]) < 0.1
    assert left(folders) == set(folders)


def test_what_cannot_be_removed_stays(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as folders of another user: nothing is said, and nothing fails."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(cache_files, "is_warm", lambda: True)
    monkeypatch.setattr(os, "utime", refuse)
    monkeypatch.setattr("shutil.rmtree", refuse)
    assert compilation.compile_ahead(lambda _: None)
    compilation.remove_unused()
    assert left(folders) == set(folders)
