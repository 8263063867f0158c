"""Made texts: sparse points whose columns are words."""

from typing import Final

import numpy as np
from scipy import sparse

WORDS: Final = 50_000
_MEAN_LENGTH: Final = 100
# Standard deviation of the logarithm of a text's length.
_LENGTH_SPREAD: Final = 0.5
_LENGTH_MIN: Final = 5


def texts(count: int, seed: int) -> sparse.csr_array:
    """Draw texts (count, WORDS) of words by Zipf's law, weighted by tf-idf, of length 1."""
    rng = np.random.default_rng(seed)
    shares = 1 / np.arange(1, WORDS + 1)
    shares /= shares.sum()
    lengths = rng.lognormal(np.log(_MEAN_LENGTH), _LENGTH_SPREAD, count).astype(np.int64)
    lengths = np.maximum(_LENGTH_MIN, lengths)
    words = rng.choice(WORDS, lengths.sum(), p=shares)
    places = np.repeat(np.arange(count), lengths), words
    rows = sparse.csr_array((np.ones(len(words), np.float32), places), shape=(count, WORDS))
    rows.sum_duplicates()
    # The share of texts that have a word is about its share of the words times their length.
    rarity = np.log1p(1 / np.minimum(1, shares * _MEAN_LENGTH))
    rows.data = (1 + np.log(rows.data)) * rarity[rows.indices].astype(np.float32)
    rows.data /= np.repeat(sparse.linalg.norm(rows, axis=1), np.diff(rows.indptr))
    return rows
