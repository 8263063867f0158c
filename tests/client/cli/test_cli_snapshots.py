"""The commands `snapshot` and `restore` print what they made, and say what is wrong."""

import json
from pathlib import Path

import pytest

from divgrpc import Index
from divgrpc_client.cli.main import main
from support.data.damaged_indexes import MODELS, write
from support.data.written_points import a_collection


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a data folder with an index that was written to, and another one."""
    root = tmp_path / "data"
    with a_collection(root / "boots", MODELS[0]) as collection:
        write(collection, 1)
    a_collection(root / "shoes", MODELS[0]).close()
    return root


def run(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def test_a_snapshot_and_its_restoration(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("snapshot", root, tmp_path / "all.tar") == 0
    output = capsys.readouterr().out
    assert output.startswith("boots: generation 1, write 1, ")
    assert "\nshoes: generation 1, 0.0 MB\n" in output
    assert run("restore", tmp_path / "all.tar", tmp_path / "other") == 0
    assert capsys.readouterr().out == output
    assert run("restore", tmp_path / "all.tar", tmp_path / "other", "--json") == 1
    error = json.loads(capsys.readouterr().err)["error"]
    assert error["reason"] == "INDEX_EXISTS"
    assert run("restore", tmp_path / "all.tar", tmp_path / "other") == 1
    assert capsys.readouterr().err == "divgrpc: index 'boots' exists; --replace replaces it\n"
    assert run("restore", tmp_path / "all.tar", tmp_path / "other", "--replace", "--json") == 0
    boots, shoes = json.loads(capsys.readouterr().out)["indexes"]
    assert boots.keys() == {"name", "generation", "sequence", "bytes"}
    assert (boots["generation"], boots["sequence"], shoes["sequence"]) == (2, 1, 0)
    assert len(Index.open(tmp_path / "other" / "boots")) == len(MODELS[1])


def test_what_is_wrong_is_said_in_one_line(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("snapshot", tmp_path / "none", tmp_path / "all.tar") == 2
    message = capsys.readouterr().err
    assert message == (
        "divgrpc: folder must be a data directory or the folder of an index, got"
        f" {tmp_path / 'none'}\n"
    )
    assert run("snapshot", root / "boots", tmp_path / "boots.tar", "--json") == 0
    assert json.loads(capsys.readouterr().out)["indexes"][0]["name"] == "boots"
    assert run("snapshot", root / "boots", tmp_path / "boots.tar") == 2
    assert "file exists already" in capsys.readouterr().err
    data = (tmp_path / "boots.tar").read_bytes()
    (tmp_path / "boots.tar").write_bytes(data[:-2_000])
    assert run("restore", tmp_path / "boots.tar", tmp_path / "other") == 1
    assert capsys.readouterr().err == (
        "divgrpc: the snapshot ends early: copy the whole file again\n"
    )
    assert not list((tmp_path / "other").iterdir())
    assert run("snapshot", root / "boots", tmp_path / "none" / "boots.tar") == 2
    assert "file must be in a folder that exists" in capsys.readouterr().err
