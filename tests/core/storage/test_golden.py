"""Recorded answers, and stored indexes of formats 1 and 5, which must stay readable.

Run as a script, this file records everything again except the index of format 1, which this version
cannot write. Review the changes before you commit them:

    .venv/bin/python tests/core/storage/test_golden.py
"""

import json
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_digits

from divgrpc.index import Index
from divgrpc.types import FloatArray, QueryResult

GOLDEN = Path(__file__).parent.parent.parent / "golden"
STORED = GOLDEN / "stored"
SPARSE = GOLDEN / "sparse"
ANSWERS = GOLDEN / "answers.json"
SEARCHES = ("tables", "scan", "scan_hamming", "exact")
SELECTIONS = (
    ("nearest", "corrected"),
    ("greedy", "corrected"),
    ("greedy", "printed"),
    ("greedy", "marginal"),
    ("mmr", "corrected"),
    ("rerank", "corrected"),
    ("max_sum", "corrected"),
    ("dpp", "corrected"),
    ("qp_relax", "corrected"),
    ("qp_relax", "printed"),
)
Case = tuple[str, dict[str, Any]]


def digits() -> FloatArray:
    """Return 1,797 scanned digits of 64 grey values each."""
    images: FloatArray = load_digits().data.astype(np.float32)
    return images


@cache
def digits_index() -> Index:
    """Return an index of all digits but the first twenty, which serve as queries."""
    return Index.build(
        digits()[20:], ids=range(20, 1797), hash_family="lsh_div", hyperplanes="gaussian", seed=1
    )


@cache
def stored_index() -> Index:
    return Index.open(STORED)


@cache
def sparse_index() -> Index:
    return Index.open(SPARSE)


def sparse_rows(rows: int, seed: int) -> sparse.csr_array:
    """Draw rows of 40 columns with lengths that differ by a factor of 100."""
    rng = np.random.default_rng(seed)
    drawn = sparse.random_array((rows, 40), density=0.2, rng=rng, format="csr")
    drawn.data *= np.repeat(10 ** rng.uniform(0, 2, rows), np.diff(drawn.indptr))
    return drawn.astype(np.float32)


def queries_of_stored() -> FloatArray:
    return np.random.default_rng(8).standard_normal((3, 9)).astype(np.float32)


def cases() -> Iterator[Case]:
    """Yield every combination of search, selection and sampling by name, with its parameters."""
    for search in SEARCHES:
        for selector, variant in SELECTIONS:
            for sampling in ("uniform", "nearest") if search != "exact" else ("uniform",):
                name = " ".join((search, selector, variant, sampling))
                words = {"search": search, "selector": selector, "variant": variant}
                yield name, words | {"sampling": sampling, "diversity": 0.4, "seed": 5}


CASES = list(cases())


def ask_digits(parameters: dict[str, Any]) -> list[list[int]]:
    result = digits_index().query(
        digits()[:4], k=8, hash_limit=120, keep_duplicates=True, **parameters
    )
    ids: list[list[int]] = result.ids.tolist()
    return ids


def ask_stored(parameters: dict[str, Any]) -> list[str]:
    return in_hexadecimal(
        stored_index().query(
            queries_of_stored(), k=5, hash_limit=20, candidates_limit=12, **parameters
        )
    )


def ask_sparse(parameters: dict[str, Any]) -> list[str]:
    return in_hexadecimal(
        sparse_index().query(
            sparse_rows(2, 8), k=4, hash_limit=25, candidates_limit=12, **parameters
        )
    )


def in_hexadecimal(result: QueryResult) -> list[str]:
    """Return the bytes of ids, scores and selection scores as hexadecimal strings."""
    columns = (result.ids, result.scores, result.selection_scores)
    return [column.astype(column.dtype.newbyteorder("<")).tobytes().hex() for column in columns]


@cache
def recorded() -> dict[str, Any]:
    answers: dict[str, Any] = json.loads(ANSWERS.read_text())
    return answers


@pytest.mark.parametrize(("name", "parameters"), CASES, ids=[name for name, _ in CASES])
def test_digits_are_answered_as_recorded(name: str, parameters: dict[str, Any]) -> None:
    assert ask_digits(parameters) == recorded()[f"digits {name}"]


@pytest.mark.parametrize(("name", "parameters"), CASES, ids=[name for name, _ in CASES])
def test_a_stored_index_answers_as_recorded(name: str, parameters: dict[str, Any]) -> None:
    """An index of format 1 gives bitwise the same answers as when it was written."""
    assert ask_stored(parameters) == recorded()[f"stored {name}"]


@pytest.mark.parametrize(("name", "parameters"), CASES, ids=[name for name, _ in CASES])
def test_a_stored_sparse_index_with_cells_answers_as_recorded(
    name: str, parameters: dict[str, Any]
) -> None:
    """A Euclidean index of format 5 gives bitwise the same answers as when it was written."""
    assert ask_sparse(parameters) == recorded()[f"sparse {name}"]


def test_stored_indexes_have_the_recorded_arrays_and_info() -> None:
    info, second = stored_index().info, sparse_index().info
    assert arrays_of(stored_index()) == recorded()["arrays"]
    assert arrays_of(sparse_index()) == recorded()["arrays of sparse"]
    assert (info.name, info.generation, info.rows, info.dims) == ("stored", 1, 60, 9)
    assert (info.points, info.nonzeros, info.choices) == ("dense", 540, ())
    assert (second.points, second.rows, second.dims) == ("sparse", 80, 40)
    assert second.nonzeros == sparse_rows(80, 7).nnz
    assert second.parameters["hash_family"] == "cells"
    assert "search" in {choice.parameter for choice in second.choices}


def test_every_recorded_answer_is_compared() -> None:
    names = {f"{index} {name}" for index in ("digits", "stored", "sparse") for name, _ in CASES}
    assert set(recorded()) == names | {"arrays", "arrays of sparse"}


def arrays_of(index: Index) -> dict[str, list[Any]]:
    return {array.name: [array.dtype, *array.shape] for array in index.info.arrays}


def record() -> None:
    """Write the index of format 5 and all answers again."""
    shutil.rmtree(SPARSE, ignore_errors=True)
    Index.build(
        sparse_rows(80, 7),
        ids=np.arange(80)[::-1] * 7,
        metric="euclidean",
        hash_family="cells",
        n_components=6,
        target_recall=0.5,
        path=SPARSE,
    )
    answers: dict[str, Any] = {
        "arrays": arrays_of(stored_index()),
        "arrays of sparse": arrays_of(sparse_index()),
    }
    for name, parameters in CASES:
        answers[f"digits {name}"] = ask_digits(parameters)
        answers[f"stored {name}"] = ask_stored(parameters)
        answers[f"sparse {name}"] = ask_sparse(parameters)
    lines = [f" {json.dumps(name)}: {json.dumps(answers[name])}" for name in sorted(answers)]
    ANSWERS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    record()
