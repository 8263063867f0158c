"""Precision, sub-topic recall, diversity and h, by hand and as properties; the sheet's pixels."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from divgrpc_client.reports import contact_sheet
from divgrpc_client.reports.contact_sheet import Block, Strip, write_contact_sheet
from divgrpc_client.reports.demo import load, split
from divgrpc_client.reports.hyperplanes import hyperplane_queries
from divgrpc_client.reports.measures import Labels, Quality, entropy, harmonic_mean

# Ten points of category 0 with five sub-topics, ten of category 1 with two.
LABELS = Labels(
    categories=np.repeat([0, 1], 10),
    subtopics=np.concatenate([np.arange(10) % 5, 10 + np.arange(10) % 2]),
)
ALL = np.arange(20)


def quality(ids: list[int], category: int) -> tuple[float, float, float, float]:
    """Return the four measures of one query."""
    found = Quality.of(np.array([ids]), np.array([category]), LABELS, ALL)
    return (
        float(found.precision[0]),
        float(found.subtopic_recall[0]),
        float(found.diversity[0]),
        float(found.h[0]),
    )


def test_measures_by_hand() -> None:
    """Four results, one wrong, two sub-topics twice and once: every measure as on paper."""
    d = -(2 / 3 * math.log(2 / 3) + 1 / 3 * math.log(1 / 3)) / math.log(5)
    expected = (0.75, 0.4, d, 2 * 0.75 * d / (0.75 + d))
    assert quality([0, 5, 1, 12], 0) == pytest.approx(expected)


def test_ends_of_the_measures() -> None:
    """All sub-topics evenly give 1; one sub-topic, or nothing relevant, gives no diversity."""
    assert quality([0, 1, 2, 3, 4], 0) == pytest.approx((1, 1, 1, 1))
    assert quality([0, 5], 0) == pytest.approx((1, 0.2, 0, 0))
    assert quality([10, 11], 0) == (0, 0, 0, 0)
    assert quality([10, 11], 1) == pytest.approx((1, 1, 1, 1))


def test_missing_results_count_as_wrong() -> None:
    """Precision is over k, so a short list has less of it."""
    assert quality([0, 1, -1, -1], 0)[0] == 0.5


def test_wrong_results_have_no_diversity_to_give() -> None:
    """Sub-topics of results that are not relevant count for nothing."""
    assert quality([0, 10, 11], 0)[1:3] == pytest.approx((0.2, 0))


def test_only_indexed_subtopics_can_be_recalled() -> None:
    """A sub-topic that no indexed point has is not asked for."""
    indexed = np.array([0, 1, 5, 6])
    found = Quality.of(np.array([[0, 1]]), np.array([0]), LABELS, indexed)
    assert found.diversity[0] == pytest.approx(1)


def test_h_is_the_mean_of_the_queries_own() -> None:
    """The mean h of two queries is not the h of their mean precision and diversity."""
    ids, asked = np.array([[0, 5], [10, 11]]), np.array([0, 1])
    means = Quality.of(ids, asked, LABELS, ALL).means()
    assert means["h"] == pytest.approx(0.5)
    assert harmonic_mean(means["precision"], means["diversity"]) == pytest.approx(2 / 3)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=9))
def test_entropy_is_greatest_when_even(counts: list[int]) -> None:
    """Entropy lies between 0 and that of as many equal counts."""
    assert 0 <= entropy(np.array(counts)) <= math.log(len(counts)) + 1e-9


def test_hyperplane_queries_separate_their_category() -> None:
    """Queries are unit rows, each higher on its own category, and the same for the same seed."""
    random = np.random.default_rng(0)
    categories = np.arange(200) % 2
    pool = random.normal(size=(200, 8)).astype(np.float32)
    pool[:, 0] += np.where(categories == 1, 3, -3)
    made = hyperplane_queries(pool, categories, per_category=3, seed=5)
    again = hyperplane_queries(pool, categories, per_category=3, seed=5)
    assert np.array_equal(made.queries, again.queries)
    assert made.asked.tolist() == [0, 0, 0, 1, 1, 1]
    assert np.linalg.norm(made.queries, axis=1) == pytest.approx(np.ones(6))
    for query, category in zip(made.queries, made.asked, strict=True):
        scores = pool @ query
        assert scores[categories == category].mean() > scores[categories != category].mean()
    assert not np.array_equal(made.queries[0], made.queries[1])


def test_the_parts_of_the_demonstration_share_nothing() -> None:
    """No indexed image teaches a query, and the dial is chosen on images of its own."""
    data = load()
    parts = split(len(data.images))
    everything = np.concatenate(parts)
    assert len(everything) == len(np.unique(everything)) == 1797
    assert set(data.categories[parts.dial]) == {0, 1}


def test_wrong_results_are_boxed_in_red(tmp_path: Path) -> None:
    """The sheet boxes the wrong thumbnails, those alone, and is as large as its blocks."""
    images = np.zeros((3, 8, 8))
    images[1] = 1
    strip = Strip("nearest", "a caption", images, np.array([False, True, False]))
    path = tmp_path / "new" / "sheet.png"
    write_contact_sheet(path, "A title", "A subtitle", [Block("A query", [strip, strip])])
    pixels = np.asarray(Image.open(path).convert("RGB"))
    red = (pixels == contact_sheet.RED).all(axis=2)
    columns = np.flatnonzero(red.any(axis=0))
    left = contact_sheet.MARGIN + contact_sheet.LABEL_WIDTH + contact_sheet.THUMB
    assert left < columns.min()
    assert columns.max() < left + contact_sheet.THUMB + 2 * contact_sheet.GAP
    assert len(np.flatnonzero(np.diff(red.any(axis=1).astype(int)) == 1)) == 2
