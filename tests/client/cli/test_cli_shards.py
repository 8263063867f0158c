"""The command `divgrpc reshard`, which needs no server."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from divgrpc import Collection, Index
from divgrpc.parameters import QueryParameters
from divgrpc.sharding.core import ShardCore
from divgrpc.sharding.files import open_router_part, open_shard_part
from divgrpc.sharding.router import Request, Router
from divgrpc_client.cli.main import main
from support.data.divided_indexes import differences
from support.data.served_index import random_points

POINTS = random_points(120, dims=6, seed=1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of an index."""
    Index.build(POINTS, path=tmp_path / "points")
    return tmp_path / "points"


def run(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def test_a_divided_index_answers_as_before(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index = Index.open(folder)
    before = index.query(POINTS[:3] + 0.1, k=5)
    assert run("reshard", folder, "--shards", 3) == 0
    output = capsys.readouterr().out
    assert output.startswith("points: generation 2, 3 shards of ")
    part = open_router_part(folder / "2")
    cores = [ShardCore(open_shard_part(folder / "2", shard)) for shard in range(3)]
    router = Router(part.manifest, part.arrays, [core.rows for core in cores])
    request = Request(POINTS[:3] + 0.1, QueryParameters(k=5))
    answer = router.answer(request, lambda name, shard, text: cores[shard].ask(name, text))
    assert set(differences(answer, before)) <= {"generation"}


def test_json_has_each_shard(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("reshard", folder, "--shards", 2, "--json") == 0
    outcome = json.loads(capsys.readouterr().out)
    assert (outcome["name"], outcome["generation"], len(outcome["shards"])) == ("points", 2, 2)
    assert sum(shard["rows"] for shard in outcome["shards"]) == len(POINTS)


def test_what_cannot_be_divided_is_left_as_it_is(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for shards in (0, 257):
        assert run("reshard", folder, "--shards", shards) == 2
        assert "shards must be between 1 and 256" in capsys.readouterr().err
    with Collection.open(folder) as collection:
        collection.upsert([1], POINTS[:1])
    assert run("reshard", folder, "--shards", 2) == 1
    assert "was written to" in capsys.readouterr().err
    assert len(Index.open(folder)) == len(POINTS)


def test_a_folder_without_an_index_is_refused_with_a_hint(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The hint has the folders of indexes, if a data directory was given."""
    root = folder.parent
    assert run("reshard", root / "nothing", "--shards", 2) == 2
    assert capsys.readouterr().err == (
        f"divgrpc: folder must be the folder of an index, got {root / 'nothing'}; an index NAME of"
        " a data directory is in the folder DIRECTORY/NAME\n"
    )
    assert run("reshard", root, "--shards", 2) == 2
    assert capsys.readouterr().err == (
        f"divgrpc: folder must be the folder of an index, got the data directory {root}; name one"
        f" of its indexes, such as {folder}\n"
    )


@pytest.mark.parametrize("shards", [1, 2])
def test_a_damaged_index_is_not_divided_and_the_message_says_who_knows_more(
    folder: Path, capsys: pytest.CaptureFixture[str], shards: int
) -> None:
    """Neither a whole index, nor one that is divided already."""
    if shards > 1:
        assert run("reshard", folder, "--shards", shards) == 0
    current = folder / (folder / "CURRENT").read_text().strip()
    (vectors, *_) = current.rglob("vectors.npy")
    vectors.write_bytes(vectors.read_bytes()[:-1] + b"?")
    assert run("reshard", folder, "--shards", 3) != 0
    error = capsys.readouterr().err
    assert error.startswith(f"divgrpc: {folder}: array vectors does not match its checksum; ")
    assert f"divgrpc doctor {folder.parent} names the damaged files" in error


def test_an_index_on_shards_gets_another_number_of_them(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also one, which makes it whole. The same number is refused."""
    before = Index.open(folder).query(POINTS[:3] + 0.1, k=5)
    assert run("reshard", folder, "--shards", 1) == 1
    assert "is whole already" in capsys.readouterr().err
    assert run("reshard", folder, "--shards", 2) == 0
    assert run("reshard", folder, "--shards", 2) == 1
    assert "is divided among 2 shards already" in capsys.readouterr().err
    assert run("reshard", folder, "--shards", 3) == 0
    assert capsys.readouterr().out.startswith("points: generation 3, 3 shards of ")
    assert len(open_router_part(folder / "3").manifest.shards) == 3
    assert run("reshard", folder, "--shards", 1) == 0
    assert capsys.readouterr().out == "points: generation 4, 120 points\n"
    after = Index.open(folder).query(POINTS[:3] + 0.1, k=5)
    assert set(differences(after, before)) <= {"generation"}


def test_damage_is_not_hidden_by_new_checksums(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "1" / "vectors.npy"
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert run("reshard", folder, "--shards", 2) == 1
    assert "vectors does not match its checksum" in capsys.readouterr().err
    assert (folder / "CURRENT").read_text() == "1\n"


@pytest.mark.parametrize("limit", ["-Sn", "-n"])
def test_an_index_of_many_files_needs_only_the_hard_limit(folder: Path, limit: str) -> None:
    """The soft limit is often 1,024. What an index of 60 shards needs takes long to make."""
    assert run("reshard", folder, "--shards", 8) == 0
    program = f"ulimit {limit} 60; exec {sys.executable} -m divgrpc_client"
    command = f"{program} snapshot {folder} {folder.parent}/points.tar"
    process = subprocess.run(
        ["/bin/sh", "-c", command], capture_output=True, text=True, check=False
    )
    if limit == "-Sn":
        assert (process.returncode, process.stderr) == (0, "")
    else:
        assert process.returncode == 1
        advice = "Too many open files: this command needs more than 60; allow more by `ulimit -n`\n"
        assert process.stderr.endswith(advice)
