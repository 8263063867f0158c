"""Recorded answers, and stored indexes of formats 1 and 5, which must stay readable.

Run as a script, this file records everything again except the index of format 1, which this version
cannot write. Review the changes before you commit them:

    PYTHONPATH=tests .venv/bin/python tests/core/storage/test_golden.py
"""

import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_digits

from divgrpc.index import Index
from divgrpc.types import FloatArray
from support.data.mixed_indexes import SEARCHES, SELECTIONS
from support.data.recorded_answers import in_hexadecimal, opened, recorded, write_answers

GOLDEN = Path(__file__).parent.parent.parent / "golden"
FIRST_FORMAT = GOLDEN / "stored"
SPARSE = GOLDEN / "sparse"
ANSWERS = GOLDEN / "answers.json"
COLUMNS = ("ids", "scores", "selection_scores")
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


def sparse_rows(rows: int, seed: int) -> sparse.csr_array:
    """Draw rows of 40 columns with lengths that differ by a factor of 100."""
    rng = np.random.default_rng(seed)
    matrix = sparse.random_array((rows, 40), density=0.2, rng=rng, format="csr")
    matrix.data *= np.repeat(10 ** rng.uniform(0, 2, rows), np.diff(matrix.indptr))
    return matrix.astype(np.float32)


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
    queries = np.random.default_rng(8).standard_normal((3, 9)).astype(np.float32)
    limits: dict[str, Any] = {"k": 5, "hash_limit": 20, "candidates_limit": 12}
    return in_hexadecimal(opened(FIRST_FORMAT).query(queries, **limits, **parameters), COLUMNS)


def ask_sparse(parameters: dict[str, Any]) -> list[str]:
    limits: dict[str, Any] = {"k": 4, "hash_limit": 25, "candidates_limit": 12}
    return in_hexadecimal(opened(SPARSE).query(sparse_rows(2, 8), **limits, **parameters), COLUMNS)


ASK: dict[str, Callable[[dict[str, Any]], list[Any]]] = {
    "digits": ask_digits,
    "stored": ask_stored,
    "sparse": ask_sparse,
}


@pytest.mark.parametrize(("name", "parameters"), CASES, ids=[name for name, _ in CASES])
@pytest.mark.parametrize("index", ASK)
def test_an_index_answers_as_recorded(index: str, name: str, parameters: dict[str, Any]) -> None:
    """The stored index has format 1, and the sparse one has format 5, cells and terms."""
    assert ASK[index](parameters) == recorded(ANSWERS)[f"{index} {name}"]


def test_stored_indexes_have_the_recorded_arrays_and_info() -> None:
    info, second = opened(FIRST_FORMAT).info, opened(SPARSE).info
    assert arrays_of(opened(FIRST_FORMAT)) == recorded(ANSWERS)["arrays"]
    assert arrays_of(opened(SPARSE)) == recorded(ANSWERS)["arrays of sparse"]
    assert (info.name, info.generation, info.rows, info.dims) == ("stored", 1, 60, 9)
    assert (info.points, info.nonzeros, info.choices) == ("dense", 540, ())
    assert (second.points, second.rows, second.dims) == ("sparse", 80, 40)
    assert second.nonzeros == sparse_rows(80, 7).nnz
    assert second.parameters["hash_family"] == "cells"
    assert "search" in {choice.parameter for choice in second.choices}


def test_every_recorded_answer_is_compared() -> None:
    names = {f"{index} {name}" for index in ASK for name, _ in CASES}
    assert set(recorded(ANSWERS)) == names | {"arrays", "arrays of sparse"}


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
        "arrays": arrays_of(opened(FIRST_FORMAT)),
        "arrays of sparse": arrays_of(opened(SPARSE)),
    }
    for name, parameters in CASES:
        answers |= {f"{index} {name}": ask(parameters) for index, ask in ASK.items()}
    write_answers(ANSWERS, answers)


if __name__ == "__main__":
    record()
