"""The demonstration, from its start to its contact sheet, and its failures."""

import shlex
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from divgrpc.errors import UnavailableError
from divgrpc_client import Client
from divgrpc_client.formats import tables
from divgrpc_lab.__main__ import main
from divgrpc_lab.demo import command as demo
from divgrpc_lab.demo import copies as demo_copies
from divgrpc_lab.demo import digits as demo_digits
from divgrpc_lab.demo.command import programs
from divgrpc_lab.server_process import running_server


def test_the_demonstration_succeeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The program exits with code 0, prints figures and next steps, and writes an image."""
    assert main(["demo", "--folder", str(tmp_path / "demo")]) == 0
    output = capsys.readouterr().out
    for word in ("nearest", "default", "ideal", "best dial", " P ", " SR ", " D ", " h "):
        assert word in output
    for word in ("ms, round trip", "µs, worker", "divgrpc-server", "100 writes of 10 points"):
        assert word in output
    assert "did not return: 0." in output
    path = tmp_path / "demo" / "contact-sheet.png"
    assert str(path) in output
    with Image.open(path) as sheet:
        assert sheet.width > 900


def test_too_small_a_gain_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    out = tables.console()
    assert demo.gained_too_little(out, 0.14)
    assert "FAILED: h rose by 0.140" in capsys.readouterr().out
    assert not demo.gained_too_little(out, 0.16)
    assert capsys.readouterr().out == ""


def test_copies_are_near_their_image_and_different_images_are_not() -> None:
    digits = demo_digits.load()
    copies = demo_copies.copy_images(digits.images[:200], digits.digits[:200])
    unit = copies.vectors / np.linalg.norm(copies.vectors, axis=1, keepdims=True)
    same = np.arange(len(unit)) // demo_copies.COPIES
    cosines = unit @ unit.T
    is_copy = same[:, None] == same
    assert np.mean(cosines[is_copy] >= 0.95) > 0.999
    assert np.mean(cosines[~is_copy] >= 0.95) < 0.001


def test_the_ideal_is_the_nearest_copy_of_each_image() -> None:
    digits = demo_digits.load()
    copies = demo_copies.copy_images(digits.images[:40], digits.digits[:40])
    rows = np.array([0, 70, 133])
    ids, cosines = demo_copies.ideal(copies, rows)
    unit = copies.vectors / np.linalg.norm(copies.vectors, axis=1, keepdims=True)
    for row, hits, scores in zip(rows, ids, cosines, strict=True):
        nearest: dict[int, int] = {}
        for point in np.argsort(-(unit @ unit[row])).tolist():
            nearest.setdefault(point // demo_copies.COPIES, point)
        assert hits.tolist() == list(nearest.values())[: len(hits)]
        assert scores == pytest.approx(unit[hits] @ unit[row], abs=1e-5)


def test_commands_printed_by_keep_work_until_ctrl_c(tmp_path: Path) -> None:
    """Ctrl-C ends the server that `--keep` leaves running, and the contact sheet stays."""
    program = [sys.executable, "-m", "divgrpc_lab", "demo", "--keep", "--folder", "demo"]
    with subprocess.Popen(program, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as demo_process:
        try:
            assert demo_process.stdout is not None
            lines = []
            for line in demo_process.stdout:
                lines.append(line.strip())
                if line.startswith("Ctrl-C"):
                    break
            commands = [line for line in lines if "--target" in line]
            assert len(commands) == 5
            for command in commands:
                result = subprocess.run(
                    shlex.split(command), cwd=tmp_path, capture_output=True, text=True, check=False
                )
                assert result.returncode == 0, f"{command}: {result.stderr}"
                assert result.stdout
            demo_process.send_signal(signal.SIGINT)
            assert demo_process.wait(120) == 0
        finally:
            demo_process.kill()
    target = commands[0].split()[-1]
    with pytest.raises(UnavailableError), Client(target, timeout=2.0) as client:
        client.list_indexes()
    assert [path.name for path in (tmp_path / "demo").iterdir()] == ["contact-sheet.png"]


def test_sigterm_removes_files_and_restores_the_handler(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    rows = np.eye(2, dtype=np.float32)

    def keep() -> None:
        with demo.ended_by_signals(), demo.stored(tmp_path, {"a": rows, "b": rows}):
            assert len(list(tmp_path.iterdir())) == 2
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        keep()
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) is before


def test_next_steps_have_the_folder_of_programs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """If the programs are not on PATH, the commands name their folder, relative if possible."""
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
    with (
        pytest.raises(UnavailableError, match="no-such-option"),
        running_server("--no-such-option"),
    ):
        pass
