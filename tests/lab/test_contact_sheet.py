"""Hyperplane queries, the division of the demonstration's data, and the contact sheet."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from divgrpc_lab import contact_sheet
from divgrpc_lab.contact_sheet import Block, Strip, write_contact_sheet
from divgrpc_lab.data.topics import hyperplane_queries
from divgrpc_lab.demo.digits import load


def test_hyperplane_queries_separate_their_category() -> None:
    """Queries have unit length and score their own category higher; a seed fixes them."""
    random = np.random.default_rng(0)
    categories = np.arange(200) % 2
    pool = random.normal(size=(200, 8)).astype(np.float32)
    pool[:, 0] += np.where(categories == 1, 3, -3)
    queries = hyperplane_queries(pool, categories, per_category=3, seed=5)
    again = hyperplane_queries(pool, categories, per_category=3, seed=5)
    assert np.array_equal(queries.queries, again.queries)
    assert queries.categories.tolist() == [0, 0, 0, 1, 1, 1]
    assert np.linalg.norm(queries.queries, axis=1) == pytest.approx(np.ones(6))
    for query, category in zip(*queries, strict=True):
        scores = pool @ query
        assert scores[categories == category].mean() > scores[categories != category].mean()
    assert not np.array_equal(queries.queries[0], queries.queries[1])


def test_the_parts_of_the_demonstration_are_disjoint() -> None:
    """Images to index, to learn queries from and to choose the diversity by do not overlap."""
    data = load()
    rows = np.concatenate((data.index_rows, data.report_rows, data.dial_rows))
    assert len(rows) == len(np.unique(rows)) == len(data.images) == 1797
    assert set(data.categories[data.dial_rows]) == {0, 1}


def test_wrong_results_are_boxed_in_red(tmp_path: Path) -> None:
    images = np.zeros((3, 8, 8))
    images[1] = 1
    strip = Strip("nearest", "a caption", images, np.array([False, True, False]))
    path = tmp_path / "new" / "sheet.png"
    write_contact_sheet(path, "A title", "A subtitle", [Block("A query", [strip, strip])])
    pixels = np.asarray(Image.open(path).convert("RGB"))
    red = (pixels == contact_sheet.RED).all(axis=2)
    columns = np.flatnonzero(red.any(axis=0))
    left_edge = contact_sheet.MARGIN + contact_sheet.LABEL_WIDTH + contact_sheet.THUMB
    assert left_edge < columns.min()
    assert columns.max() < left_edge + contact_sheet.THUMB + 2 * contact_sheet.GAP
    assert len(np.flatnonzero(np.diff(red.any(axis=1).astype(int)) == 1)) == 2
