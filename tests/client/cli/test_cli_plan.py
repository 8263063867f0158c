"""The command `divgrpc plan`, which needs no server."""

import json

import pytest

from divgrpc.sharding import sizing
from divgrpc_client.cli.main import main

_LARGE = ("--rows", "1e9", "--dims", "128", "--nodes", "256GB")


def test_a_plan_says_what_it_assumes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *_LARGE]) == 0
    output = capsys.readouterr().out
    lines = dict(line.split(maxsplit=1) for line in output.splitlines())
    plan = sizing.plan(10**9, 128, 256 * 10**9)
    assert lines["shards"] == f"{plan.shards} of {plan.points_per_shard:,} points"
    assert lines["machines"].startswith(f"{plan.machines}: ")
    assert {"points", "memory", "disk", "network", "time", "options", "assumed"} <= lines.keys()
    assert (plan.shards, plan.replicas, plan.point_bytes) == (6, 2, 4 * 128 + 48)
    # The vectors and codes of two generations; the cells add less than a hundredth.
    assert 1_120 * 10**9 < plan.disk_bytes < 1_130 * 10**9
    assert lines["disk"].startswith(f"{plan.disk_bytes / 10**9:,.1f} GB")
    assert plan.router_bytes < 0.01 * plan.shard_bytes
    assert "with 12 addresses, 2 for each shard" in lines["options"]
    assert f"a cache   {plan.cache_bytes / 10**9:,.1f} GB of disk" in output
    assert "no label model, which takes memory and disk beside the points" in output
    # Two generations of the points on one of six shards.
    assert 1_120 * 10**9 / 6 < plan.cache_bytes < 1_130 * 10**9 / 6
    assert lines["files"].startswith("180 open in a worker of a shard server, and 198 in the ")


def test_json_has_every_number(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *_LARGE, "--replicas", "3", "--payload", "2kB", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    plan = sizing.plan(10**9, 128, 256 * 10**9, replicas=3, payload_bytes=2000)
    assert document.pop("assumptions")
    assert document == vars(plan)


def test_one_machine_is_enough(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["plan", "--rows", "1000", "--dims", "8", "--nodes", "1 GiB"]
    for replicas, machines in (
        ("1", "1: the server\n"),
        ("2", "2: the server that writes, and 1 read-only replica\n"),
        ("3", "3: the server that writes, and 2 read-only replicas\n"),
    ):
        assert main([*small, "--replicas", replicas]) == 0
        output = capsys.readouterr().out
        assert "none: one machine holds the index" in output
        assert f"machines  {machines}" in output
        # Nothing is assumed about what is not there.
        assert "two cores" not in output
        assert "a router" not in output
        assert "a cache" not in output
        assert "files " not in output


@pytest.mark.parametrize(
    ("option", "text", "message"),
    [
        ("--rows", "1.5", "must be a whole number such as 2 or 1e9"),
        ("--rows", "inf", "must be a whole number"),
        ("--rows", "0", "rows must be 1 or more"),
        ("--nodes", "2XB", "nodes must be a number of bytes such as 2000, 2kB or 256GB"),
        ("--nodes", "1.2.3GB", "nodes must be a number of bytes"),
        ("--nodes", "2kB", "nodes must have room"),
    ],
)
def test_a_bad_number_is_refused_with_its_name(
    capsys: pytest.CaptureFixture[str], option: str, text: str, message: str
) -> None:
    try:
        code = main(["plan", *_LARGE, option, text])
    except SystemExit as end:
        code = int(str(end.code))
    assert code == 2
    assert message in capsys.readouterr().err
