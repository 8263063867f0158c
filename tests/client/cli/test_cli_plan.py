"""The command `divgrpc plan`, which needs no server."""

import json

import pytest

from divgrpc.sharding import sizing
from divgrpc_client.cli.main import main

_LARGE = ("--rows", "1e9", "--dims", "128", "--nodes", "256GB")


def test_a_plan_says_what_it_assumes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *_LARGE]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    plan = sizing.plan(10**9, 128, 256 * 10**9)
    assert lines["shards"] == f"{plan.shards} of {plan.points_per_shard:,} points"
    assert lines["machines"].startswith(f"{plan.machines}: ")
    assert {"points", "memory", "network", "time", "options", "assumed"} <= lines.keys()


def test_json_has_every_number(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *_LARGE, "--replicas", "3", "--payload", "2kB", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    plan = sizing.plan(10**9, 128, 256 * 10**9, replicas=3, payload_bytes=2000)
    assert document.pop("assumptions")
    assert document == vars(plan)


def test_one_machine_is_enough(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--rows", "1000", "--dims", "8", "--nodes", "1 GiB"]) == 0
    assert "none: one machine holds the index" in capsys.readouterr().out


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
