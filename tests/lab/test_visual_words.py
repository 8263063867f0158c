"""The made-up visual words: their sizes, their weights, and that a seed fixes them."""

import numpy as np
import pytest

from divgrpc_lab.data.hyperplanes import hyperplane_queries
from divgrpc_lab.data.visual_words import VisualWords, visual_words


@pytest.fixture(scope="module")
def made() -> VisualWords:
    """Return 700 images and 350 held out, of the full vocabulary."""
    return visual_words(700, 350, seed=3)


def test_images_are_sparse_unit_rows_of_the_papers_kind(made: VisualWords) -> None:
    """48,000 words, at least 400 per image on average, 7 categories of 5 sub-topics each."""
    assert made.indexed.rows.shape == (700, 48_000)
    assert made.pool.rows.shape == (350, 48_000)
    for images in (made.indexed, made.pool):
        rows = images.rows
        assert rows.dtype == np.float32
        assert rows.nnz / rows.shape[0] >= 400
        assert rows.has_canonical_format
        assert rows.data.min() > 0
        assert np.sqrt(rows.multiply(rows).sum(axis=1)) == pytest.approx(
            np.ones(len(images.subtopics))
        )
    both = np.concatenate((made.indexed.subtopics, made.pool.subtopics))
    assert np.bincount(both).tolist() == [30] * 35
    assert np.array_equal(made.indexed.categories, made.indexed.subtopics // 5)


def test_a_seed_fixes_every_byte(made: VisualWords) -> None:
    """The same seed gives the same set, another one another."""
    again, other = visual_words(700, 350, seed=3), visual_words(700, 350, seed=4)
    for name in ("data", "indices", "indptr"):
        parts = [getattr(each.indexed.rows, name).tobytes() for each in (made, again, other)]
        assert parts[0] == parts[1] != parts[2]
    assert made.pool.subtopics.tolist() == again.pool.subtopics.tolist()


def test_categories_are_nearer_than_chance(made: VisualWords) -> None:
    """Held-out images find their own category more often than one in seven, hyperplanes more so."""
    index = made.indexed
    learned = hyperplane_queries(made.pool.rows, made.pool.categories, 2, seed=0)
    assert np.count_nonzero(learned.queries, axis=1).min() > 20_000
    shares = []
    for queries, asked in ((made.pool.rows, made.pool.categories), learned):
        scores = index.rows @ (
            queries.T if isinstance(queries, np.ndarray) else queries.T.toarray()
        )
        top = np.argsort(-scores, axis=0)[:10]
        shares.append((index.categories[top] == asked).mean())
    assert 0.2 < shares[0] < shares[1]


def test_one_image_of_two_words_is_enough() -> None:
    """The least there can be: one image each, two words."""
    made = visual_words(1, 1, 2, seed=0)
    assert made.indexed.rows.shape == made.pool.rows.shape == (1, 2)
