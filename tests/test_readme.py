"""The README is true: its tables are the code's, its code runs, its commands do what they say."""

import dataclasses
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from google.rpc import code_pb2

from divgrpc.labels.build_inputs import Labelling
from divgrpc.parameters import BuildParameters, QueryParameters
from divgrpc.parameters.predict import PredictParameters
from divgrpc_server.codec.statuses import TABLE
from divgrpc_server.config import Config
from support import labelled_documents
from support.running_server import RunningServer

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
ADDRESS = "127.0.0.1:50051"


def _section(heading: str) -> str:
    found = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", README, re.MULTILINE | re.DOTALL)
    assert found is not None, f"no section {heading}"
    return found[1]


def _first_cells(text: str) -> Iterator[tuple[str, str]]:
    """Yield every name in the first cells of tables, with the second cell of its row."""
    for line in text.splitlines():
        if line.startswith("| `"):
            cells = [cell.strip() for cell in line.strip("|").split(" | ")]
            for name in re.findall(r"`([^`]+)`", cells[0]):
                yield name, cells[1].strip("`")


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", README, re.DOTALL))
def test_python_blocks_run(block: str, server: RunningServer, tmp_path: Path) -> None:
    """Every Python block runs as it stands, against a server at the address it names."""
    script = tmp_path / "block.py"
    script.write_text(block.replace(ADDRESS, server.target))
    ran = subprocess.run(
        [sys.executable, "-W", "error", script], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout


def test_commands_run(server: RunningServer, tmp_path: Path) -> None:
    """The command line's tour runs from top to bottom."""
    rng = np.random.default_rng(0)
    np.save(tmp_path / "vectors.npy", rng.standard_normal((300, 16), dtype=np.float32))
    np.save(tmp_path / "queries.npy", rng.standard_normal((3, 16), dtype=np.float32))
    tour = re.findall(r"^    divgrpc (.*)$", _section("A tour"), re.MULTILINE)
    assert [command.split()[0] for command in tour] == ["build", "query", "ls", "info", "rm"]
    program = str(Path(sys.executable).parent / "divgrpc")
    for command in tour:
        words = [*command.replace("products", "tour").split(), "--target", server.target]
        ran = subprocess.run(
            [program, *words], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, f"{command}: {ran.stderr}"
        assert ran.stdout, command


def test_label_commands_run(server: RunningServer, tmp_path: Path) -> None:
    """So do those of the section on labels."""
    documents = labelled_documents.documents(80)
    lines = [
        f"{row % 7},{7 + row % 5} "
        + " ".join(f"{word}:1" for word in documents[[row]].indices.tolist())
        for row in range(80)
    ]
    for name, some in (
        ("train.txt", lines),
        ("test.txt", lines[:9]),
        ("names.txt", "abcdefghijkl"),
    ):
        (tmp_path / name).write_text("\n".join(some))
    told = re.findall(r"^    divgrpc (.*)$", _section("Labels"), re.MULTILINE)
    # Those of files that are written here; the others are of a folder of data, or another format.
    commands = [command for command in told if not re.search(r"FOLDER|\.npz", command)]
    verbs = ["build", "predict", "predict", "info", "evaluate-labels"]
    assert [command.split()[0] for command in commands] == verbs
    program = str(Path(sys.executable).parent / "divgrpc")
    for command in commands:
        words = [*command.replace("papers", "readme-labels").split(), "--target", server.target]
        ran = subprocess.run(
            [program, *words], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, f"{command}: {ran.stderr}"
        assert ran.stdout, command


def test_the_first_example_prints_what_the_readme_says(tmp_path: Path) -> None:
    """Under the example in process stands what it prints, to the letter."""
    example = re.search(r"```python\n(.*?)```\n\nIt prints\n\n```text\n(.*?)```", README, re.DOTALL)
    assert example is not None
    script = tmp_path / "example.py"
    script.write_text(example[1])
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert ran.stdout == example[2]


def test_parameters_are_all_there() -> None:
    """The two tables have every parameter of Build and Query, and its default where it is fixed."""
    build, query = _section("Parameters, defaults, limits").split("`client.query` take")
    for text, kind in ((build, BuildParameters), (query, QueryParameters)):
        told = dict(_first_cells(text))
        fields = {field.name: field.default for field in dataclasses.fields(kind)}
        assert set(told) - {"ids", "categories", "subtopics"} == set(fields)
        fixed = {name: str(value) for name, value in fields.items() if value is not None}
        assert {name: told[name].lower() for name in fixed} == {
            name: value.lower() for name, value in fixed.items()
        }


def test_label_parameters_are_all_there() -> None:
    """So have those of labels."""
    build, predict = _section("Labels").split("`predict_labels` takes")
    own = {name for name, _ in _first_cells(build)}
    assert own == {"labels", *Labelling.__annotations__}
    told = dict(_first_cells(predict))
    defaults = {field.name: field.default for field in dataclasses.fields(PredictParameters)}
    assert set(told) == set(defaults)
    for name in ("top_k", "mode"):
        assert told[name] == str(defaults[name])


def test_server_options_are_all_there() -> None:
    """The server's table has every option of its configuration."""
    told = [name for name, _ in _first_cells(_section("Running a server")) if name[:2] == "--"]
    options = [f"--{f.name.replace('_', '-')}" for f in dataclasses.fields(Config)]
    assert sorted(told) == sorted(options)


def test_statuses_are_all_there() -> None:
    """The table of errors has every status that the server gives, and no other."""
    told = {name for name, _ in _first_cells(_section("Errors"))}
    assert told == {code_pb2.Code.Name(meaning.code) for meaning in TABLE.values()}


def test_links_lead_somewhere() -> None:
    """Relative links name files that are there, anchors headings that are there."""
    headings = re.findall(r"^#+ (.*)$", README, re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", h).lower().replace(" ", "-") for h in headings}
    for link in re.findall(r"\]\(([^)]+)\)", README):
        if link.startswith("#"):
            assert link[1:] in anchors, link
        elif "://" not in link:
            assert (ROOT / link).exists(), link
