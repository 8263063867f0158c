"""The step-by-step blocks of the page Security run as a reader would run them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.checks.documentation import SHELLS, blocks, commands, pages, program
from support.processes.running_server import RunningServer

PAGE = "guide/security.md"
_BIN = Path(sys.executable).parent


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("needs the program openssl")
    return tmp_path_factory.mktemp("security-page")


def test_the_steps_work_one_after_another(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each server of the page runs until the next one starts, and answers the calls between."""
    monkeypatch.chdir(folder)
    server: RunningServer | None = None
    calls = 0
    try:
        for block in blocks(PAGE, pages()[PAGE]):
            words = [block.text] if block.language == "python" else []
            if block.language in SHELLS:
                words = commands(block)
            for text in words:
                if block.language != "python" and _is_server(text):
                    server = _started(server, folder, text)
                else:
                    calls += block.note == Path(__file__).name
                    _run(text, block.language == "python", server)
    finally:
        if server is not None:
            server.stop()
    assert calls >= 4


def _is_server(text: str) -> bool:
    return program(text) == "divgrpc-server" and "divgrpc-server token" not in text


def _started(server: RunningServer | None, folder: Path, command: str) -> RunningServer:
    if server is not None:
        server.stop()
    options = command.replace("\\\n", " ").split()[1:]
    return RunningServer(folder, *options).__enter__()


def _run(text: str, is_python: bool, server: RunningServer | None) -> None:
    if server is not None:
        port = server.target.rsplit(":", 1)[1]
        text = text.replace(":50051", f":{port}")
    command = [sys.executable, "-c", text] if is_python else ["/bin/sh", "-c", text]
    path = f"{_BIN}{os.pathsep}{os.environ['PATH']}"
    outcome = subprocess.run(
        command, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )
    assert outcome.returncode == 0, f"{text}\n{outcome.stdout}{outcome.stderr}"
