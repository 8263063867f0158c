"""The command diagnose: a page for people, and JSON."""

import json
from typing import Any

import numpy as np
import pytest

from divgrpc_client import Client
from divgrpc_client.formats import json_output
from support.processes.command_line import Run


@pytest.fixture(scope="module")
def index(client: Client) -> str:
    """Build an index in which half of the points have four near-copies."""
    rng = np.random.default_rng(0)
    copied = np.repeat(rng.normal(size=(60, 12)), 5, axis=0)
    copied += 0.02 * rng.normal(size=copied.shape)
    rows = np.concatenate([copied, rng.normal(size=(300, 12))]).astype(np.float32)
    brands = ["copied"] * 300 + ["alone"] * 290 + [None] * 10
    client.build("crowd", rows, attributes={"brand": brands}, replace=True)
    return "crowd"


def test_the_page_begins_with_the_answer(run: Run, index: str) -> None:
    page = run("diagnose", index, "--attribute", "brand")
    assert (page.code, page.err) == (0, "")
    assert page.out.startswith("crowd crowds: of the 10 nearest points, ")
    assert "collapsing (duplicate_threshold " in page.out
    assert "(default)" in page.out
    lines = {line.split()[0]: line for line in page.out.splitlines() if line.strip()}
    assert lines["copied"].split()[1] == "300"
    assert lines["copied"].endswith("100.0 %")
    assert lines["alone"].endswith("0.0 %")
    assert "(none)" in lines
    assert "600 of 600 points were sampled" in page.out


def test_the_page_of_points_that_do_not_crowd(run: Run, index: str) -> None:
    page = run("diagnose", index, "--where", "brand=alone", "--sample", "100")
    assert page.out.startswith("crowd does not crowd: ")
    assert "off, with keep_duplicates=True" in page.out
    assert "100 of 290 points were sampled" in page.out


def test_json_is_the_diagnosis(run: Run, client: Client, index: str) -> None:
    words = ("--attribute", "brand", "--sample", "50", "--seed", "3", "--json")
    diagnosis = client.diagnose(index, attributes=["brand"], sample=50, seed=3)
    content: dict[str, Any] = run("diagnose", index, *words).json
    assert content == json.loads(json.dumps(json_output.plain(diagnosis)))
    assert content["sampled"] == 50


def test_bad_arguments(run: Run, index: str) -> None:
    wrong = run("diagnose", index, "--attribute", "colour")
    assert (wrong.code, "colour" in wrong.err, "brand" in wrong.err) == (1, True, True)
    assert run("diagnose", index, "--sample", "0").code == 2
    assert run("diagnose", index, "--attribute", "brand", "--attribute", "brand").code == 2
