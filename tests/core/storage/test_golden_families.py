"""Indexes stored in the current format and in formats 6 and 7, and their answers.

The indexes cover every hash family, metric and kind of points, near-copies, categories, stored
defaults, trained labels and imported label factors. A change of the code must read the same files,
write the same files and give the same answers. The answers of all formats are the same, except that
a query reads more or fewer cells if an index has the array `cell_reaches`. Run as a script, this
file records those of the current format again; review its changes before you commit them:

    PYTHONPATH=tests .venv/bin/python tests/core/storage/test_golden_families.py
"""

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from scipy import sparse

from divgrpc.index import Index
from divgrpc.storage.manifest import checksum
from divgrpc.types import FloatArray, QueryDefault
from support.data.recorded_answers import in_hexadecimal, opened, recorded, write_answers

_GOLDEN: Final = Path(__file__).parent.parent.parent / "golden"
_FOLDER: Final = _GOLDEN / "families"
_FORMER: Final = (_GOLDEN / "format-7", _GOLDEN / "format-6")
_FOLDERS: Final = (_FOLDER, *_FORMER)
_ANSWERS: Final = "answers.json"
_LABELS: Final = 6
_BUILDS: Final[Mapping[str, dict[str, Any]]] = {
    "lsh_div": {"hash_family": "lsh_div", "metric": "euclidean"},
    "lsh_sdiv": {"hash_family": "lsh_sdiv"},
    "pca_hash": {"hash_family": "pca_hash", "metric": "inner_product"},
    "cells": {"hash_family": "cells", "target_recall": 0.5},
    "sparse": {"hash_family": "lsh_sdiv"},
    "labels": {"label_model": "leml", "rank": 4, "seed": 3},
    "topics": {
        "hash_family": "lsh_sdiv",
        "hyperplanes": "gaussian",
        "centred": True,
        "n_tables": 3,
        "zero_vectors": "skip",
    },
    "sparse_topics": {"hash_family": "cells", "metric": "inner_product", "target_recall": 0.5},
    "factors": {"hash_family": "auto", "metric": "euclidean"},
}
_SPARSE: Final = {"sparse", "sparse_topics"}
_TOPICS: Final = {"topics", "sparse_topics"}
# The indexes for which a build writes the same bytes on every processor.
_SAME_BYTES: Final = {"lsh_div", "lsh_sdiv", "sparse", "sparse_topics", "factors"}
_DEFAULT: Final = QueryDefault(0.6, "mmr", "corrected", "scan", 40, 25)
_THRESHOLD: Final = 0.25
_QUERIES: Final[Mapping[str, dict[str, Any]]] = {
    "defaults": {},
    "tables": {"search": "tables", "hash_limit": 30},
    "scan, mmr": {"search": "scan", "hash_limit": 30, "selector": "mmr", "diversity": 0.4},
    "exact, dpp": {"search": "exact", "selector": "dpp", "diversity": 0.4},
    "a threshold": {"duplicate_threshold": 0.9, "list_collapsed": True},
    "a bound": {"lose_at_most": 0.2},
    "automatic": {"diversity": "auto"},
}
# The label predictions to record: for each name, the index and the parameters of the call.
_PREDICTIONS: Final[Mapping[str, tuple[str, dict[str, Any]]]] = {
    "embedding": ("labels", {}),
    "votes": ("labels", {"mode": "neighbour_vote"}),
    "embedding, greedy": ("labels", {"selector": "greedy", "diversity": 0.3}),
    "factors, stored threshold": ("factors", {}),
    "factors, no threshold": ("factors", {"threshold": -np.inf}),
}
_CASES: Final = [(name, query) for name in _BUILDS for query in _QUERIES]


formats = pytest.mark.parametrize("folder", _FOLDERS, ids=lambda folder: folder.name)


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


def vectors(name: str) -> FloatArray | sparse.csr_array:
    """Return the points of an index; one of `topics` has length zero."""
    rows = points()
    if name == "topics":
        rows[17] = 0
    return sparse.csr_array(rows) if name in _SPARSE else rows


def columns(name: str) -> dict[str, Any]:
    """Return the categories, sub-topics or labels of an index."""
    if name in _TOPICS:
        rows = np.arange(len(points()))
        return {"categories": rows % 5 - 1, "subtopics": rows // 5 % 4}
    if name == "factors":
        rng = np.random.default_rng(24)
        factors = rng.standard_normal((_LABELS, 3)), rng.standard_normal((9, 3))
        return {"label_model": factors, "label_names": labelling()["label_names"]}
    return labelling() if name == "labels" else {}


def build(name: str, folder: Path) -> None:
    """Build an index in a folder and store its query defaults."""
    index = Index.build(
        vectors(name), ids=np.arange(80)[::-1] * 7, path=folder, **_BUILDS[name], **columns(name)
    )
    if name == "topics":
        index.set_default(_DEFAULT)
    if name == "factors":
        index.set_threshold(_THRESHOLD)


def queries(name: str) -> FloatArray | sparse.csr_array:
    """Return three queries: a point, a vector near a point, and a random vector."""
    rng = np.random.default_rng(23)
    near = points()[[5, 40]] + np.array([[0.0], [0.3]], np.float32)
    rows = np.concatenate((near, rng.standard_normal((1, 9)).astype(np.float32)))
    return sparse.csr_array(rows) if name in _SPARSE else rows


def answer(folder: Path, name: str, query: str) -> list[str]:
    result = opened(folder / name).query(queries(name), k=5, **_QUERIES[query])
    columns = ("ids", "scores", "selection_scores", "collapsed_ids", "diversities")
    rest = {"parameters": asdict(result.parameters), "stats": asdict(result.stats)}
    return [*in_hexadecimal(result, columns), json.dumps(rest, default=np.ndarray.tolist)]


def predict(folder: Path, case: str) -> list[str]:
    name, parameters = _PREDICTIONS[case]
    result = opened(folder / name).predict_labels(queries(name), top_k=3, **parameters)
    return in_hexadecimal(result, ("labels", "scores", "selection_scores"))


@formats
@pytest.mark.parametrize(("name", "query"), _CASES)
def test_a_stored_index_answers_as_recorded(folder: Path, name: str, query: str) -> None:
    assert answer(folder, name, query) == recorded(folder / _ANSWERS)[f"{name}: {query}"]


@formats
@pytest.mark.parametrize("case", _PREDICTIONS)
def test_stored_labels_are_predicted_as_recorded(folder: Path, case: str) -> None:
    assert predict(folder, case) == recorded(folder / _ANSWERS)[f"predict: {case}"]


@formats
@pytest.mark.parametrize("name", _BUILDS)
def test_a_stored_index_has_the_files_recorded(folder: Path, name: str) -> None:
    info = opened(folder / name).info
    arrays = [[array.name, array.dtype, *array.shape] for array in info.arrays]
    assert arrays == recorded(folder / _ANSWERS)[name]
    family = _BUILDS[name].get("hash_family", "auto")
    assert family in {"auto", info.parameters["hash_family"]}


@formats
def test_stored_defaults_are_read(folder: Path) -> None:
    assert opened(folder / "topics").default == _DEFAULT
    labels = opened(folder / "factors").info.labels
    assert labels is not None
    assert labels.thresholds == {"embedding": _THRESHOLD}


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files of an index by their paths in its folder."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def layout(name: str, content: bytes) -> str:
    """Return an array file's type and dimensionality, or another file's text without numbers."""
    if name.endswith(".npy"):
        array = np.load(BytesIO(content))
        return f"{array.dtype.str} {array.ndim}"
    return re.sub(r"\d+(\.\d+)?|\s+", "", content.decode())


@pytest.mark.parametrize("name", _BUILDS)
def test_a_build_writes_the_files_recorded(name: str, tmp_path: Path) -> None:
    """Bytes may differ if components are learned, as their last bits depend on the processor."""
    build(name, tmp_path)
    recorded_files, files = contents(_FOLDER / name), contents(tmp_path)
    assert files.keys() == recorded_files.keys()
    for file, content in files.items():
        if name in _SAME_BYTES:
            assert content == recorded_files[file], file
        assert layout(file, content) == layout(file, recorded_files[file]), file


def test_every_recorded_answer_is_compared() -> None:
    names = {f"{name}: {query}" for name, query in _CASES} | set(_BUILDS)
    names |= {f"predict: {case}" for case in _PREDICTIONS}
    assert set(recorded(_FOLDER / _ANSWERS)) == names


def test_a_new_format_changes_no_answer(tmp_path: Path) -> None:
    """Only cells answer otherwise, and only because of `cell_reaches`: without it, nothing does."""
    answers, latest, before = (recorded(folder / _ANSWERS) for folder in _FOLDERS)
    # Format 8 only adds the order of ids. Trained labels depend on the processor that trained them.
    added = {*_BUILDS, "predict: embedding", "predict: embedding, greedy"}
    assert {name for name in answers if answers[name] != latest[name]} == added
    changed = {name for name in latest if latest[name] != before[name]} - {*_BUILDS}
    assert {name.partition(":")[0] for name in changed} == {"cells"}
    remove_reaches(shutil.copytree(_FOLDER / "cells", tmp_path / "cells"))
    for name, query in _CASES:
        if name == "cells":
            assert answer(tmp_path, name, query) == before[f"{name}: {query}"]


def remove_reaches(folder: Path) -> None:
    """Remove the array `cell_reaches` from a stored index, as if an older version had built it."""
    (manifest,) = folder.glob("*/manifest.json")
    document = json.loads(manifest.read_text(encoding="utf-8"))
    del document["arrays"]["cell_reaches"], document["crc32"]
    document["crc32"] = checksum(document)
    manifest.write_text(json.dumps(document), encoding="utf-8")
    (manifest.parent / "cell_reaches.npy").unlink()


def record() -> None:
    """Write all indexes and their answers again."""
    shutil.rmtree(_FOLDER, ignore_errors=True)
    _FOLDER.mkdir()
    answers: dict[str, Any] = {}
    for name in _BUILDS:
        build(name, _FOLDER / name)
        arrays = opened(_FOLDER / name).info.arrays
        answers[name] = [[array.name, array.dtype, *array.shape] for array in arrays]
    for name, query in _CASES:
        answers[f"{name}: {query}"] = answer(_FOLDER, name, query)
    for case in _PREDICTIONS:
        answers[f"predict: {case}"] = predict(_FOLDER, case)
    write_answers(_FOLDER / _ANSWERS, answers)


if __name__ == "__main__":
    record()
