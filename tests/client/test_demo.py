"""The demonstration from its start to its picture, and how it fails."""

import io
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from divgrpc.errors import UnavailableError
from divgrpc_client import cli
from divgrpc_client.reports.demo import Answers, programs, verdict
from divgrpc_client.reports.server_process import running_server


def test_the_demonstration_pays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It ends well, prints its figures and its next steps, and draws its picture."""
    assert cli.main(["demo", "--folder", str(tmp_path / "demo")]) == 0
    told = capsys.readouterr().out
    for word in ("nearest", "diverse", " P ", " SR ", " D ", " h ", "ms a query", "divgrpc-server"):
        assert word in told
    path = tmp_path / "demo" / "contact-sheet.png"
    assert str(path) in told
    with Image.open(path) as sheet:
        assert sheet.width > 900


def test_too_small_a_gain_is_a_failure() -> None:
    """When h rises by less than it should, the demonstration says so and ends with 1."""
    values = np.full(3, 0.5)
    quality = {"h_score": values}
    plain = Answers("nearest", 0.0, np.zeros((3, 1), int), quality, 0.001)
    better = replace(plain, quality={"h_score": values + 0.14})
    told = io.StringIO()
    assert verdict(Console(file=told, width=200), plain, better) == 1
    assert "FAILED: h rose by 0.140" in told.getvalue()
    best = replace(plain, quality={"h_score": values + 0.16})
    assert verdict(Console(file=told, width=200), plain, best) == 0


def test_next_steps_can_be_typed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where the shell would not find our programs, the demonstration says in which folder they are.

    The folder is relative where it lies below the current one, as after `make demo`.
    """
    folder = tmp_path / ".venv" / "bin"
    folder.mkdir(parents=True)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert programs() == f"{folder}/"
    monkeypatch.chdir(tmp_path)
    assert programs() == ".venv/bin/"
    (folder / "divgrpc").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(folder))
    assert programs() == ""


def test_a_server_that_cannot_start_shows_its_log() -> None:
    """A server of a report that does not come up is an error with what it said."""
    with (
        pytest.raises(UnavailableError, match="no-such-option"),
        running_server("--no-such-option"),
    ):
        pass
