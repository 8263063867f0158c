"""Bags of visual words made up in the size of the paper's image set, whose images are not public.

The paper has 42,000 images of 7 categories with 5 sub-topics each. It indexes 35,000 of the images.
An image is a vector of counts of 48,000 visual words. Here it is drawn from a mixture:

- background: words by Zipf's law with Mandelbrot's shift, p(rank) ~ 1 / (rank + 10);
- a theme: background frequencies, each times exp(2 g), g standard normal. Every category and
  every sub-topic has its own theme, and 200 scenes belong to none, such as sky or skin;
- an image: a number of words, log-normal around 700 and at least 50. They come from the background,
  two scenes, and the themes of its category and sub-topic, in shares of a Dirichlet distribution.

A count becomes its root times log((1 + n) / (1 + df)) + 1, df counted over the indexed images, and
rows are of unit length: the weights that the benchmarks give to real visual words. A linear
machine tells these categories apart with ease: the set is for times and memory, not for quality.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import sparse
from sklearn.preprocessing import normalize

from divgrpc.types import IntArray

CATEGORIES: Final = 7
SUBTOPICS: Final = 5
IMAGES: Final = 35_000
POOL: Final = 7_000
WORDS: Final = 48_000

_SCENES: Final = 200
_DRAWN: Final = 700
_DRAWN_LEAST: Final = 50
# Of background, one scene, another one, category and sub-topic.
_DIRICHLET: Final = (3.0, 1.5, 1.5, 0.5, 0.7)

# scipy's csr_array of float32, which has no types.
Csr: TypeAlias = Any
Numbers: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Images:
    """Rows (n, words) csr_array of float32, unit length; their categories and sub-topics (n,).

    Sub-topics are numbered through: 5 times the category and 0 to 4.
    """

    rows: Csr
    subtopics: IntArray

    @property
    def categories(self) -> IntArray:
        """The category (n,) of each image, int64."""
        return self.subtopics // SUBTOPICS


@dataclass(frozen=True, slots=True, eq=False)
class VisualWords:
    """Images to index, and others that are held out.

    Held-out images are sparse queries as they are; hyperplanes learned from them (see
    `hyperplanes.hyperplane_queries`) are dense ones.
    """

    indexed: Images
    pool: Images


def visual_words(
    images: int = IMAGES, pool: int = POOL, words: int = WORDS, *, seed: int = 0
) -> VisualWords:
    """Make up a set; the same arguments give the same bytes.

    All sub-topics have equally many images, or one more; which of them are held out is drawn.
    `images` and `pool` count the indexed and the held-out ones, both at least 1; `words` is at
    least 2. The full size takes some ten seconds and 1 GB.
    """
    random = np.random.default_rng(seed)
    themes = _themes(random, words)
    subtopics = np.arange(images + pool) % (CATEGORIES * SUBTOPICS)
    counts = sparse.vstack([*_drawn(random, themes, subtopics)], format="csr")
    random.shuffle(order := np.arange(images + pool))
    rows = weighted(counts[order], images)
    subtopics = subtopics[order]
    return VisualWords(
        Images(rows[:images], subtopics[:images]), Images(rows[images:], subtopics[images:])
    )


def _themes(random: np.random.Generator, words: int) -> Numbers:
    """Return cumulative shares (themes, words): background, categories, sub-topics, scenes."""
    background = 1 / (np.arange(words) + 10.0)
    random.shuffle(background)
    theme_count = CATEGORIES * (1 + SUBTOPICS) + _SCENES
    shares = np.exp(2 * random.standard_normal((1 + theme_count, words)))
    shares[0] = 1
    shares *= background
    sums: Numbers = np.cumsum(shares, axis=1)
    return sums / sums[:, -1:]


def _drawn(random: np.random.Generator, themes: Numbers, subtopics: IntArray) -> Iterator[Csr]:
    """Yield counts of words, image by image in the order of `subtopics`, some at a time."""
    words = themes.shape[1]
    for start in range(0, len(subtopics), 1_000):
        block = subtopics[start : start + 1_000]
        of_each = _mixture(random, block)
        sizes = np.exp(np.log(_DRAWN) + 0.4 * random.standard_normal(len(block)))
        numbers = random.multinomial(np.maximum(sizes.astype(np.int64), _DRAWN_LEAST), of_each[1])
        image = np.repeat(np.arange(len(block), dtype=np.int32)[:, None], numbers.shape[1], axis=1)
        images, drawn = [], []
        for theme in np.unique(of_each[0]):
            of_theme = of_each[0] == theme
            images.append(np.repeat(image[of_theme], numbers[of_theme]))
            drawn.append(np.searchsorted(themes[theme], random.random(len(images[-1])), "right"))
        # LIBLINEAR takes no wider indices.
        at = (np.concatenate(images), np.concatenate(drawn).astype(np.int32))
        ones = np.ones(len(at[0]), np.float32)
        # Words that were drawn twice are added up.
        yield sparse.csr_array((ones, at), shape=(len(block), words))


def _mixture(random: np.random.Generator, subtopics: IntArray) -> tuple[IntArray, Numbers]:
    """Return the themes (n, 5) of images and their shares (n, 5)."""
    scenes = 1 + CATEGORIES * (1 + SUBTOPICS) + random.integers(_SCENES, size=(len(subtopics), 2))
    themes = np.column_stack(
        (
            np.zeros_like(subtopics),
            scenes,
            1 + subtopics // SUBTOPICS,
            1 + CATEGORIES + subtopics,
        )
    )
    return themes, random.dirichlet(_DIRICHLET, len(subtopics))


def weighted(counts: Csr, indexed: int) -> Csr:
    """Weigh words by how few of the first rows have them, and make rows of unit length."""
    counts = sparse.csr_array(counts)
    counts.sort_indices()
    holders = np.bincount(counts[:indexed].indices, minlength=counts.shape[1])
    rarity = np.log((1 + indexed) / (1 + holders)) + 1
    counts.data = np.sqrt(counts.data) * rarity.astype(np.float32)[counts.indices]
    return normalize(counts, copy=False)
