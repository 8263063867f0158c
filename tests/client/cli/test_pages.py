"""Pages on the command line: both outputs show the token that continues them."""

import json

import numpy as np
import pytest

from divgrpc_client import Client
from support.processes.command_line import Run

VECTORS = np.random.default_rng(16).normal(size=(50, 4)).astype(np.float32)
NAME = "paged-by-command"


@pytest.fixture(scope="module", autouse=True)
def _index(client: Client) -> None:
    client.build(NAME, VECTORS, replace=True)


def ids_of(text: str) -> list[int]:
    ids: list[int] = json.loads(text)["results"][0]["ids"]
    return ids


def test_pages_by_json(run: Run) -> None:
    words = ("query", NAME, "--like", "3", "-k", "20", "--json", "--keep-duplicates")
    pages = [run(*words, "--paged").out]
    while token := json.loads(pages[-1])["next_page_token"]:
        pages.append(run(*words, "--page-token", token).out)
    ids = [number for page in pages for number in ids_of(page)]
    assert sorted(ids) == [n for n in range(50) if n != 3]
    assert "next_page_token" not in json.loads(run(*words).out)


def test_pages_in_tables(run: Run) -> None:
    words = ("query", NAME, "--like", "3", "-k", "40", "--keep-duplicates")
    *_, line = run(*words, "--paged").out.splitlines()
    prefix = "next page: --page-token "
    assert line.startswith(prefix)
    last = run(*words, "--page-token", line.removeprefix(prefix)).out
    assert last.splitlines()[-1] == "this is the last page"


def test_points_already_shown(run: Run) -> None:
    words = ("query", NAME, "--like", "3", "-k", "49", "--json", "--keep-duplicates")
    ids = ids_of(run(*words, "--already-shown", "4", "5").out)
    assert sorted(ids) == [n for n in range(50) if n not in {3, 4, 5}]


def test_wrong_tokens_are_reported(run: Run) -> None:
    result = run("query", NAME, "--like", "3", "--page-token", "abc")
    assert result.code == 1
    assert "--page-token must be next_page_token of the page before" in result.err
    several = run("query", NAME, "--like", "3", "4", "--paged")
    assert (several.code, "like must be one row" in several.err) == (2, True)
