"""Every code block of README.md and of the site does what its page says.

The blocks of a page run in order in one folder, against a server for these tests only. Python
blocks run as scripts, and shell blocks run `divgrpc` and `divgrpc-server`. Blocks of JSON, YAML or
TOML must parse, and a block with a title is written to a file of that name.
"""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml
from sklearn.datasets import load_digits

from divgrpc_client import Client
from support.checks.documentation import (
    ADDRESSES,
    NOT_RUN,
    ROOT,
    SHELLS,
    Block,
    blocks,
    commands,
    pages,
    program,
    summary,
)
from support.processes.running_server import RunningServer

PARSERS = {"json": json.loads, "yaml": yaml.safe_load, "toml": tomllib.loads}
OTHER_LANGUAGES = {"text", "dockerfile", "proto", "mermaid"}
PROGRAMS = {
    *("cat", "divgrpc", "divgrpc-server", "echo", "export", "ls", "mkdir", "openssl", "python"),
}
# Programs in code blocks that this suite does not start, such as tools that it does not need or
# programs that change the machine.
REASONS = {
    *("apt-get", "browser", "docker", "ghz", "git", "go", "grpcurl", "kubectl", "make"),
    *("machines", "npm", "pip"),
}
NOT_RUN_MAX = 25
RUN_SECONDS = 120.0
BIN = Path(sys.executable).parent
PAGE_BLOCKS = {name: blocks(name, text) for name, text in pages().items()}
ALL = [block for page in PAGE_BLOCKS.values() for block in page]
NOT_RUN_BLOCKS = [block for block in ALL if block.mark == "not run"]


@pytest.fixture(scope="module")
def docs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Run a server for these tests only, so that all its indexes can be deleted."""
    folder = tmp_path_factory.mktemp("docs")
    with RunningServer(folder, "--data-dir", str(folder / "data"), "--workers", "1") as running:
        yield running


@pytest.fixture
def folder(docs_server: RunningServer, tmp_path: Path) -> Iterator[Path]:
    """Return a folder with the files that pages name; afterwards delete all indexes."""
    write_files(tmp_path)
    yield tmp_path
    with Client(docs_server.target, timeout=30) as client:
        for info in client.list_indexes():
            client.delete_index(info.name)


def write_files(folder: Path) -> None:
    """Write small files: `vectors.npy`, `queries.npy`, and documents with labels."""
    images = load_digits().data.astype(np.float32)
    np.save(folder / "vectors.npy", images[:1_500])
    np.save(folder / "queries.npy", images[1_500:1_510])
    # A document has two labels, and four of the words 10 a to 10 a + 9 of each label a.
    rng = np.random.default_rng(0)
    lines = []
    for row in range(120):
        labels = sorted({row % 7, 7 + row % 5})
        words = {10 * label + word for label in labels for word in rng.choice(10, 4, replace=False)}
        numbers = " ".join(f"{word}:1" for word in sorted(words))
        lines.append(f"{','.join(map(str, labels))} {numbers}")
    (folder / "train.txt").write_text("\n".join(lines[:100]))
    (folder / "test.txt").write_text("\n".join(lines[100:]))
    (folder / "names.txt").write_text("\n".join("abcdefghijkl"))


@pytest.mark.parametrize("page", [name for name, page in PAGE_BLOCKS.items() if page])
def test_blocks_of_a_page_run(page: str, docs_server: RunningServer, folder: Path) -> None:
    """The output of Python blocks must equal the text block that the page shows for it."""
    script = whole_output = output = ""
    for block in PAGE_BLOCKS[page]:
        if block.mark in ("not run", "run by"):
            continue
        if block.language == "python":
            before = (script, whole_output) if block.mark == "continues" else ("", "")
            script = before[0] + block.text
            whole_output = _run_python(block, script, docs_server, folder)
            output = whole_output.removeprefix(before[1])
        elif block.language in SHELLS:
            for command in commands(block):
                _run_command(block, command, docs_server, folder)
        elif block.language in PARSERS:
            PARSERS[block.language](block.text)
        elif block.language == "text" and re.search(r"^It prints\b[^\n]*\Z", block.before, re.M):
            assert output == block.text, block.place
        if block.title and block.language in {*PARSERS, "python"}:
            (folder / block.title).write_text(block.text)


def _run_python(block: Block, script: str, server: RunningServer, folder: Path) -> str:
    path = folder / "block.py"
    path.write_text(_at(script, server))
    return _run(block, [sys.executable, "-W", "error", str(path)], server, folder)


def _run_command(block: Block, command: str, server: RunningServer, folder: Path) -> None:
    starts = not any(words in command for words in ("--help", "divgrpc-server token"))
    if program(command) == "divgrpc-server" and starts:
        _serve(block, command, folder)
    else:
        _run(block, ["/bin/sh", "-c", _at(command, server)], server, folder)


def _run(block: Block, command: list[str], server: RunningServer, folder: Path) -> str:
    result = subprocess.run(
        command,
        cwd=folder,
        env=_environment(DIVGRPC_TARGET=server.target),
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_SECONDS,
    )
    assert result.returncode == 0, f"{block.place}: {command[-1]}\n{result.stdout}{result.stderr}"
    return result.stdout


def _serve(block: Block, command: str, folder: Path) -> None:
    """Start a server with the page's command on a free port, and stop it once it serves."""
    # A comment at the end would hide the arguments.
    command = re.sub(r"\s#.*$", "", command) + " --listen 127.0.0.1:0"
    with subprocess.Popen(
        ["/bin/sh", "-c", "exec env " + command.replace("\\\n", " ")],
        cwd=folder,
        env=_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.readline()
        process.terminate()
        _, errors = process.communicate(timeout=RUN_SECONDS)
    assert first.startswith("serving "), f"{block.place}: {command}\n{errors}"
    assert process.returncode == 0, errors


def _environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", **more}


def _at(text: str, server: RunningServer) -> str:
    for address in ADDRESSES:
        text = text.replace(address, server.target)
    return text


@pytest.mark.parametrize("block", ALL, ids=lambda block: block.place)
def test_every_block_is_run_or_has_a_reason(block: Block) -> None:
    """A block runs, or has a mark with a known reason, or its language is only for display."""
    if block.mark == "not run":
        assert block.note.split()[0] in REASONS
    elif block.mark == "run by":
        assert list((ROOT / "tests").rglob(block.note)), f"there is no {block.note}"
    elif block.language in SHELLS:
        assert {program(command) for command in commands(block)} <= PROGRAMS
    else:
        assert block.language in {"python", *PARSERS, *OTHER_LANGUAGES}
        assert block.mark == "" or block.language == "python"


@pytest.mark.parametrize("block", NOT_RUN_BLOCKS, ids=lambda block: block.place)
def test_a_block_that_is_not_run_is_skipped(block: Block) -> None:
    pytest.skip(f"{NOT_RUN}: {block.note}")


def test_few_blocks_do_not_run() -> None:
    assert len(NOT_RUN_BLOCKS) <= NOT_RUN_MAX


def test_no_code_is_indented_instead_of_fenced() -> None:
    """Outside lists, four spaces of indentation would make a code block that no test runs."""
    unseen = [
        f"{name}: {match[1]}"
        for name, text in pages().items()
        for match in re.finditer(r"(?:^|\n)[^\s\-*\d:!?=][^\n]*\n\n    (\S[^\n]*)", text)
    ]
    assert unseen == []


def test_the_summary_counts_blocks_that_are_not_run() -> None:
    """Skipped blocks are counted by the first word of the reason; other skips do not count."""
    reasons = [f"Skipped: {NOT_RUN}: docker, a daemon", "needs DIVGRPC_DATA", f"{NOT_RUN}: docker"]
    assert summary([]) == "0 documentation blocks not run"
    assert summary(reasons) == "2 documentation blocks not run: docker 2"


def test_blocks_are_found_with_their_marks() -> None:
    """The parser handles indented fences, titles, marks, prompts, comments and output."""
    text = (
        "<!-- not run: docker -->\n\n```sh\ndocker run x\n```\n"
        '    ```toml title="a.toml"\n    x = 1\n    ```\n'
        "```console\n# a comment\n$ X=1 divgrpc ls \\\n    --json\nnothing\n$ echo 'a\nb'\n```\n"
    )
    first, second, third = blocks("page", text)
    assert (first.mark, first.note, first.line) == ("not run", "docker", 3)
    assert (second.text, second.title, second.mark) == ("x = 1\n", "a.toml", "")
    assert commands(third) == ["X=1 divgrpc ls \\\n    --json", "echo 'a\nb'"]
    assert program(commands(third)[0]) == "divgrpc"
