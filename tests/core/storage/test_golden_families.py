"""Stored indexes of today's format and what they answer: every family, sparse points, and labels.

They hold a change of the code to the same files and the same answers, whatever else it moves. Run
as a script, this file records all of them anew; review what it changed before committing it:

    .venv/bin/python tests/core/storage/test_golden_families.py
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from scipy import sparse

from divgrpc.index import Index
from divgrpc.types import FloatArray

_FOLDER: Final = Path(__file__).parent.parent.parent / "golden" / "families"
_ANSWERS: Final = _FOLDER / "answers.json"
_LABELS: Final = 6
_BUILDS: Final[Mapping[str, dict[str, Any]]] = {
    "lsh_div": {"hash_family": "lsh_div", "metric": "euclidean"},
    "lsh_sdiv": {"hash_family": "lsh_sdiv"},
    "pca_hash": {"hash_family": "pca_hash", "metric": "inner_product"},
    "cells": {"hash_family": "cells", "target_recall": 0.5},
    "sparse": {"hash_family": "lsh_sdiv"},
    "labels": {"label_model": "leml", "rank": 4, "seed": 3},
}
_QUERIES: Final[Mapping[str, dict[str, Any]]] = {
    "defaults": {},
    "tables": {"search": "tables", "hash_limit": 30},
    "scan, mmr": {"search": "scan", "hash_limit": 30, "selector": "mmr", "diversity": 0.4},
    "exact, dpp": {"search": "exact", "selector": "dpp", "diversity": 0.4},
    "a threshold": {"duplicate_threshold": 0.9, "list_collapsed": True},
    "a bound": {"lose_at_most": 0.2},
    "automatic": {"diversity": "auto"},
}
_PREDICTIONS: Final[Mapping[str, dict[str, Any]]] = {
    "embedding": {},
    "votes": {"mode": "neighbour_vote"},
    "embedding, greedy": {"selector": "greedy", "diversity": 0.3},
}
_CASES: Final = [(name, query) for name in _BUILDS for query in _QUERIES]


def points() -> FloatArray:
    """Return 80 points of nine dimensions, some of them near-copies of others."""
    rng = np.random.default_rng(21)
    rows = rng.standard_normal((50, 9)).repeat(rng.integers(1, 4, 50), axis=0)[:80]
    return (rows + 0.01 * rng.standard_normal(rows.shape)).astype(np.float32)


def labelling() -> dict[str, Any]:
    """Return labels of the points, their names and a hierarchy of two levels."""
    rng = np.random.default_rng(22)
    labels = (points() @ rng.standard_normal((9, _LABELS)) > 1.5).astype(np.float32)
    edges = [(6, 0), (6, 1), (6, 2), (7, 3), (7, 4), (7, 5)]
    names = [f"label {number}" for number in range(_LABELS)]
    return {"labels": labels, "label_names": names, "hierarchy": np.array(edges)}


def queries(name: str) -> FloatArray | sparse.csr_array:
    """Return three queries: a point, one near a point, and one of its own."""
    rng = np.random.default_rng(23)
    near = points()[[5, 40]] + np.array([[0.0], [0.3]], np.float32)
    rows = np.concatenate((near, rng.standard_normal((1, 9)).astype(np.float32)))
    return sparse.csr_array(rows) if name == "sparse" else rows


@cache
def opened(name: str) -> Index:
    return Index.open(_FOLDER / name)


@cache
def recorded() -> dict[str, Any]:
    answers: dict[str, Any] = json.loads(_ANSWERS.read_text())
    return answers


def in_hexadecimal(result: Any, columns: tuple[str, ...]) -> list[str]:  # noqa: ANN401  # a result
    """Return columns of a result, to the last bit."""
    arrays = [np.asarray(getattr(result, column)) for column in columns]
    return [array.astype(array.dtype.newbyteorder("<")).tobytes().hex() for array in arrays]


def answer(name: str, query: str) -> list[str]:
    result = opened(name).query(queries(name), k=5, **_QUERIES[query])
    columns = ("ids", "scores", "selection_scores", "collapsed_ids", "diversities")
    rest = {"parameters": asdict(result.parameters), "stats": asdict(result.stats)}
    return [*in_hexadecimal(result, columns), json.dumps(rest, default=np.ndarray.tolist)]


def predict(case: str) -> list[str]:
    result = opened("labels").predict_labels(queries("labels"), top_k=3, **_PREDICTIONS[case])
    return in_hexadecimal(result, ("labels", "scores", "selection_scores"))


@pytest.mark.parametrize(("name", "query"), _CASES)
def test_a_stored_index_answers_as_recorded(name: str, query: str) -> None:
    """Ids, scores, near-copies and dials to the last bit, with parameters and statistics."""
    assert answer(name, query) == recorded()[f"{name}: {query}"]


@pytest.mark.parametrize("case", _PREDICTIONS)
def test_stored_labels_are_predicted_as_recorded(case: str) -> None:
    """Labels and scores to the last bit, in every mode."""
    assert predict(case) == recorded()[f"predict: {case}"]


@pytest.mark.parametrize("name", _BUILDS)
def test_a_stored_index_has_the_files_recorded(name: str) -> None:
    """Names, types and shapes of the arrays are the format that others read."""
    info = opened(name).info
    assert [[array.name, array.dtype, *array.shape] for array in info.arrays] == recorded()[name]
    family = _BUILDS[name].get("hash_family", info.parameters["hash_family"])
    assert info.parameters["hash_family"] == family


def test_everything_recorded_is_compared() -> None:
    """No recorded answer is left over from a case that is gone."""
    names = {f"{name}: {query}" for name, query in _CASES} | set(_BUILDS)
    assert set(recorded()) == names | {f"predict: {case}" for case in _PREDICTIONS}


def record() -> None:
    """Write all indexes and their answers anew."""
    shutil.rmtree(_FOLDER, ignore_errors=True)
    _FOLDER.mkdir()
    answers: dict[str, Any] = {}
    for name, parameters in _BUILDS.items():
        rows = sparse.csr_array(points()) if name == "sparse" else points()
        more = labelling() if name == "labels" else {}
        Index.build(rows, ids=np.arange(80)[::-1] * 7, path=_FOLDER / name, **parameters, **more)
        arrays = opened(name).info.arrays
        answers[name] = [[array.name, array.dtype, *array.shape] for array in arrays]
    for name, query in _CASES:
        answers[f"{name}: {query}"] = answer(name, query)
    for case in _PREDICTIONS:
        answers[f"predict: {case}"] = predict(case)
    lines = [f" {json.dumps(name)}: {json.dumps(answers[name])}" for name in sorted(answers)]
    _ANSWERS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    record()
