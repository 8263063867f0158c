"""The command `doctor` says what is wrong, repairs it, and ends with an exit code."""

import json
from pathlib import Path

import pytest

from divgrpc import Index
from divgrpc.storage.generations import lock_root
from divgrpc_client.cli.main import main
from support.data.damaged_indexes import LAST, MODELS, flip, write
from support.data.written_points import a_collection


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a data folder with an index that was written to, and another one."""
    root = tmp_path / "data"
    with a_collection(root / "boots", MODELS[0]) as collection:
        for number in range(1, LAST + 1):
            write(collection, number)
    a_collection(root / "shoes", MODELS[0]).close()
    return root


def run(*arguments: object) -> int:
    return main(["doctor", *map(str, arguments)])


def test_a_folder_that_is_ok(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(root) == 0
    assert capsys.readouterr().out == (
        f"boots: ok, generation 1, {len(MODELS[LAST])} points, write {LAST}\n"
        f"shoes: ok, generation 1, {len(MODELS[0])} points\n"
    )
    assert run(root / "shoes", "--json") == 0
    (report,) = json.loads(capsys.readouterr().out)["indexes"]
    assert report == {
        "name": "shoes",
        "verdict": "ok",
        "generation": 1,
        "points": len(MODELS[0]),
        "sequence": None,
        "findings": [],
        "repairs": [],
    }


def test_damage_is_shown_and_repaired(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(root / "shoes" / "1" / "vectors.npy")
    (root / "boots" / "1" / "writes" / "LAYOUT").unlink()
    assert run(root) == 5
    boots, shoes = capsys.readouterr().out.split("shoes: ")
    assert boots.startswith("boots: repairable, generation 1")
    assert "\n  boots/1/writes/LAYOUT: the layout is missing\n" in boots
    assert "\n    --repair makes the files of all merges again from the build and the log" in boots
    assert shoes.startswith("damaged, generation 1\n  shoes/1/vectors.npy: array vectors does not")
    assert "--repair" not in shoes
    assert "Restore the folder from a backup" in shoes
    assert run(root, "--repair", "--json") == 5
    boots_report, shoes_report = json.loads(capsys.readouterr().out)["indexes"]
    assert (boots_report["verdict"], boots_report["sequence"]) == ("ok", LAST)
    assert len(boots_report["repairs"]) == 2
    assert shoes_report["findings"][0].keys() == {
        *("file", "problem", "meaning", "severity", "repair")
    }
    assert run(root / "boots") == 0
    assert len(Index.open(root / "boots")) == len(MODELS[LAST])


def test_a_loss_must_be_accepted(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (log,) = (root / "boots" / "1" / "writes" / "log").glob("*.wal")
    flip(log)
    assert run(root, "--repair") == 5
    assert "\n    --repair --accept-loss puts the files of the log aside" in capsys.readouterr().out
    assert run(root, "--repair", "--accept-loss") == 0
    assert "boots: ok" in capsys.readouterr().out
    assert log.with_name(f"{log.name}.damaged").exists()


def test_wrong_commands_are_refused(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(root, "--accept-loss") == 2
    assert "--accept-loss is for --repair alone" in capsys.readouterr().err
    assert run(root / "absent") == 2
    assert "must be a data folder or the folder of an index" in capsys.readouterr().err
    with lock_root(root):
        assert run(root, "--json") == 1
    error = json.loads(capsys.readouterr().err)["error"]
    assert error["reason"] == "STORAGE_IN_USE"
    assert error["message"] == ("a server or `divgrpc doctor` uses this data folder: stop it first")
