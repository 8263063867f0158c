"""The command explore."""

import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import IO, cast

import numpy as np
import pytest

from divgrpc_client import Client
from support.processes.command_line import Run, start
from support.processes.running_server import RunningServer

NAME = "explored-by-command"


@pytest.fixture(scope="module", autouse=True)
def index(client: Client) -> None:
    """Build an index with a title in an attribute, in payloads and in files."""
    vectors = np.random.default_rng(3).standard_normal((30, 6), dtype=np.float32)
    titles = [f"attribute {row}" for row in range(30)]
    payloads = [f"payload {row}" for row in range(30)]
    client.build(NAME, vectors, replace=True, attributes={"title": titles}, payloads=payloads)
    client.build("bare", vectors, replace=True)


def _read(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=30) as response:  # noqa: S310  # always http
        content: bytes = response.read()
    return content


@pytest.mark.parametrize(
    ("titles", "shown"),
    [("title", "attribute 7"), ("payload", "payload 7"), ("titles.txt", "line 7"), (None, "")],
)
def test_the_page_is_served_until_ctrl_c(
    server: RunningServer, tmp_path: Path, titles: str | None, shown: str
) -> None:
    (tmp_path / "titles.txt").write_text("".join(f"line {row}\n" for row in range(30)))
    np.save(tmp_path / "queries.npy", np.ones((2, 6), np.float32))
    options = ["--queries", "queries.npy", "--no-browser", "--json"]
    options += [] if titles is None else ["--titles", titles]
    command = start(
        *(server.target, "explore", NAME, *options),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    line = json.loads(cast(IO[bytes], command.stdout).readline())
    assert line["name"] == NAME
    assert line["address"].startswith("http://127.0.0.1:")
    assert b"<title>divgrpc explore</title>" in _read(line["address"])
    assert json.loads(_read(f"{line['address']}api/answer?like=7&k=3"))["query"]["title"] == shown
    assert json.loads(_read(f"{line['address']}api/index"))["rows"] == 2
    command.send_signal(signal.SIGINT)
    out, errors = command.communicate(timeout=30)
    assert (command.returncode, out, errors) == (0, b"", b"")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder, in which the command runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("options", "field", "message"),
    [
        (["--port", "65536"], "port", "from 0 to 65535"),
        (["--titles", "brand"], "titles", "is no file, and no attribute of"),
        (["--titles", "none.txt"], "titles", "it has title, payload"),
        (["--thumbnails", "nowhere"], "thumbnails", "must be a folder of"),
        (["--thumbnails", "{brand}.png"], "thumbnails", "has no attribute 'brand'"),
        (["--queries", "none.npy"], "file", "none.npy"),
        (["--queries", "empty.npy"], "queries", "has no rows"),
    ],
)
def test_wrong_options_are_refused(
    run: Run, options: list[str], field: str, message: str, folder: Path
) -> None:
    np.save(folder / "empty.npy", np.empty((0, 6), np.float32))
    ran = run("explore", NAME, "--no-browser", "--json", *options)
    assert (ran.code, ran.fields) == (2, [field])
    assert message in ran.error["message"]


def test_payloads_must_be_there_to_be_titles(run: Run) -> None:
    ran = run("explore", "bare", "--no-browser", "--titles", "payload")
    assert (ran.code, "index 'bare' has no payloads" in ran.err) == (2, True)


def test_an_unknown_index_is_an_error(run: Run) -> None:
    ran = run("explore", "nobody-built-this", "--no-browser", "--json")
    assert (ran.code, ran.error["reason"]) == (1, "INDEX_NOT_FOUND")


def test_a_port_in_use_is_named(run: Run, server: RunningServer) -> None:
    port = server.target.rpartition(":")[2]
    ran = run("explore", NAME, "--no-browser", "--port", port)
    message = f"divgrpc: port {port} cannot be used: Address already in use\n"
    assert (ran.code, ran.err) == (2, message)


@pytest.mark.parametrize(("variables", "opens"), [({}, False), ({"DISPLAY": ":9"}, True)])
def test_a_browser_opens_where_there_is_a_screen(
    server: RunningServer, tmp_path: Path, variables: dict[str, str], opens: bool
) -> None:
    """The script takes the place of the browser and writes the address that it is to open."""
    script = """
import os, sys, webbrowser
for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
    os.environ.pop(name, None)
os.environ.update(eval(sys.argv[3]))
from werkzeug.serving import BaseWSGIServer
from divgrpc_client.cli import explore, main
addresses = []
webbrowser.open = addresses.append
BaseWSGIServer.serve_forever = lambda server: server.server_close()
main.main(["explore", sys.argv[1], "--target", sys.argv[2]])
for thread in explore.threading.enumerate():
    if thread.daemon:
        thread.join(0.2)
print(addresses)
"""
    arguments = [NAME, server.target, repr(variables)]
    process = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    line, addresses = process.stdout.splitlines()
    assert line.startswith(f"exploring {NAME} at http://127.0.0.1:")
    address = line.split()[3].removesuffix(";")
    assert addresses == str([address] if opens else [])
