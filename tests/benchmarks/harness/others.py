"""Selectors of other libraries, at their best: they are told that rows have unit length."""

import importlib.util

from divgrpc.types import FloatArray, IntArray


def missing(*names: str) -> list[str]:
    """Return which of the modules are not installed."""
    return [name for name in names if importlib.util.find_spec(name) is None]


def msd_dial(diversity: float, k: int) -> float:
    """Return pyversity's dial at which its maximal sum of distances has the gains of J."""
    return 2 * diversity / (2 * diversity + (1 - diversity) * (k - 1))


def pyversity(
    strategy: str, vectors: FloatArray, scores: FloatArray, k: int, dial: float
) -> IntArray:
    """Return the places that pyversity picks of candidates (m, d) with scores (m,)."""
    import pyversity as library

    options = {} if strategy == "dpp" else {"normalize": False}
    places: IntArray = library.diversify(
        embeddings=vectors,
        scores=scores,
        k=k,
        strategy=library.Strategy(strategy),
        diversity=dial,
        **options,
    ).indices
    return places


def langchain_mmr(query: FloatArray, vectors: FloatArray, k: int, diversity: float) -> list[int]:
    """Return the places that LangChain's MMR picks; it computes the relevance itself."""
    from langchain_core.vectorstores.utils import maximal_marginal_relevance

    return list(maximal_marginal_relevance(query, list(vectors), 1 - diversity, k))
