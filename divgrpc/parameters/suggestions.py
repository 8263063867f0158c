"""Suggestions in errors about unknown names of parameters and unknown values.

An error suggests the name or value that is most similar, or the divgrpc equivalent of a name or
value in another library.
"""

import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Final, NoReturn, ParamSpec, TypeVar

import numpy as np

from divgrpc.errors import InvalidArgumentError, invalid

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

# Names of parameters in other libraries, and their equivalents in divgrpc. An error suggests the
# first equivalent that the call accepts.
_PARAMETERS: Final[Mapping[str, tuple[str, ...]]] = {
    "top_k": ("k",),
    "topk": ("k", "top_k"),
    "top_n": ("k", "top_k"),
    "n": ("k", "top_k"),
    "k": ("top_k",),
    "limit": ("k", "top_k"),
    "n_results": ("k", "top_k"),
    "num_results": ("k", "top_k"),
    "n_neighbors": ("k", "neighbours"),
    "num_neighbors": ("k", "neighbours"),
    "neighbors": ("neighbours", "k"),
    "size": ("k", "top_k"),
    "fetch_k": ("candidates_limit",),
    "num_candidates": ("candidates_limit",),
    "rerank_k": ("candidates_limit",),
    "strategy": ("selector",),
    "search_type": ("selector",),
    "nprobe": ("n_probes",),
    "nprobes": ("n_probes",),
    "n_probe": ("n_probes",),
    "ef": ("hash_limit",),
    "ef_search": ("hash_limit",),
    "efSearch": ("hash_limit",),
    "hnsw_ef": ("hash_limit",),
    "ef_construction": ("target_recall",),
    "efConstruction": ("target_recall",),
    "max_dist": ("max_distance",),
    "radius": ("max_distance",),
    "score_threshold": ("threshold", "max_distance"),
    "space": ("metric",),
    "distance": ("metric",),
    "distance_metric": ("metric",),
    "similarity": ("metric",),
    "index_type": ("hash_family",),
    "n_trees": ("n_tables",),
    "nbits": ("n_bits",),
    "num_bits": ("n_bits",),
    "centered": ("centred",),
    "random_state": ("seed",),
    "random_seed": ("seed",),
    "overwrite": ("replace",),
    "regularization": ("regularisation",),
    "callback": ("progress",),
}
# Parameters of a build that callers sometimes pass to a query.
BUILD_ONLY: Final = (
    "metric",
    "hash_family",
    "hyperplanes",
    "centred",
    "n_tables",
    "n_bits",
    "n_components",
    "target_recall",
    "zero_vectors",
)
_WITHOUT_FILTERS: Final = (
    "there are no filters: ask for a larger k and leave results out by their ids"
)
# Parameters of other libraries whose replacement takes a sentence to explain. The first item of
# each value is the parameter that a call must accept for the sentence to be shown.
_SENTENCES: Final[Mapping[str, tuple[str, str]]] = {
    "lambda_mult": ("diversity", "use diversity = 1 - lambda_mult"),
    "lambda_param": ("diversity", "use diversity = 1 - lambda_param"),
    "lambda_": ("diversity", "use diversity = 1 - lambda_"),
    "mmr_lambda": ("diversity", "use diversity = 1 - mmr_lambda"),
    "filter": ("k", _WITHOUT_FILTERS),
    "filters": ("k", _WITHOUT_FILTERS),
    "where": ("k", _WITHOUT_FILTERS),
    "expr": ("k", _WITHOUT_FILTERS),
}
# Names of metrics in other libraries that divgrpc accepts as aliases.
METRIC_ALIASES: Final[Mapping[str, str]] = {
    "l2": "euclidean",
    "ip": "inner_product",
    "dot": "inner_product",
}
# Values of parameters in other libraries, and their equivalents in divgrpc.
_VALUES: Final[Mapping[str, Mapping[str, str]]] = {
    "metric": {
        "angular": "cosine",
        "cos": "cosine",
        "cosinesimil": "cosine",
        "cosine_similarity": "cosine",
        "euclid": "euclidean",
        "l2_squared": "euclidean",
        "l2sq": "euclidean",
        "sqeuclidean": "euclidean",
        "dot_product": "inner_product",
        "dotproduct": "inner_product",
        "innerproduct": "inner_product",
        "mips": "inner_product",
    },
    "selector": {
        "similarity": "nearest",
        "knn": "nearest",
        "top_k": "nearest",
        "msd": "max_sum",
        "maxsum": "max_sum",
    },
    "variant": {
        "algorithm_1": "printed",
        "original": "printed",
        "paper": "printed",
        "fixed": "corrected",
        "gain": "marginal",
        "objective": "marginal",
    },
    "search": {
        "brute": "exact",
        "brute_force": "exact",
        "bruteforce": "exact",
        "flat": "exact",
        "knn": "exact",
        "linear": "exact",
        "ann": "auto",
        "annoy": "auto",
        "hnsw": "auto",
        "scann": "auto",
        "cells": "tables",
        "ivf": "tables",
        "ivf_flat": "tables",
        "ivfflat": "tables",
        "lsh": "tables",
        "hamming": "scan_hamming",
    },
    "hash_family": {
        "lsh": "lsh_div",
        "ivf": "cells",
        "kmeans": "cells",
        "hnsw": "auto",
        "pca": "pca_hash",
    },
}


class UnknownParameterError(InvalidArgumentError, TypeError):
    """A call has an unknown keyword argument; also a `TypeError`, which Python would raise."""


def nearest(word: str, words: Collection[str]) -> str | None:
    """Return the name in `words` that is most similar to `word`, or None if none is similar."""
    plain = {name.lower(): name for name in words}
    matches = difflib.get_close_matches(word.lower().replace("-", "_"), plain, n=1)
    return plain[matches[0]] if matches else None


def refuse_unknown(
    call: str, names: Collection[str], words: Collection[str], more_words: Collection[str] = ()
) -> None:
    """Raise `UnknownParameterError` if a keyword argument in `names` is not one of `words`.

    call: the name of the function for the message.
    words: the names of the parameters that the function accepts.
    more_words: further names that the message may suggest.
    """
    for name in names:
        if name not in words:
            hint = instead(name, (*words, *more_words))
            message = f"{call}() got an unexpected keyword argument {name!r}{hint}"
            raise UnknownParameterError(name, message)


def instead(name: str, words: Collection[str]) -> str:
    """Return the end of an error message, which suggests a replacement for an unknown name.

    `words` are the names that are accepted.
    """
    parameter, sentence = _SENTENCES.get(name, ("", ""))
    if parameter in words:
        return f": {sentence}"
    if name in BUILD_ONLY:
        return f": {name} is set when an index is built, for all its queries"
    word_of_ours = next((word for word in _PARAMETERS.get(name, ()) if word in words), None)
    if word_of_ours is not None:
        return f": use {word_of_ours}"
    near = nearest(name, words)
    return f": did you mean {near}?" if near else f"; there are {', '.join(words)}"


def refuse_word(field: str, word: object, words: Collection[str]) -> NoReturn:
    """Raise `InvalidArgumentError` for `word`, which is not one of the valid values of `field`.

    `words` are the valid values.
    """
    rule = f"must be one of {', '.join(words)}, got {word!r}"
    raise invalid(field, rule + _other_word(field, word, words))


def _other_word(field: str, word: object, words: Collection[str]) -> str:
    if not isinstance(word, str):
        return ""
    plain = word.lower().replace("-", "_").replace(" ", "_")
    word_of_ours = _VALUES.get(field, {}).get(plain)
    if word_of_ours in words:
        return f": use {word_of_ours}"
    near = nearest(word, words)
    return f": did you mean {near}?" if near else ""


def taken_by(call: Callable[..., object]) -> list[str]:
    """Return the names of the parameters of a function or method, without self and cls."""
    return [name for name in inspect.signature(call).parameters if name not in ("self", "cls")]


def suggesting(call: Callable[P, R], name: str = "") -> Callable[P, R]:
    """Return `call` wrapped so that errors about unknown keyword arguments suggest a known name.

    `name` is the name of the function in the message; the default is its `__name__`.
    """

    @functools.wraps(call)
    def call_or_refuse(*args: P.args, **options: P.kwargs) -> R:
        try:
            return call(*args, **options)
        except TypeError:
            refuse_unknown(name or call.__name__, options, taken_by(call))
            raise

    return call_or_refuse


def with_suggestions(table: type[T]) -> type[T]:
    """Make errors about unknown fields of a dataclass suggest a known field; a class decorator."""
    call_or_refuse = suggesting(table.__init__, table.__name__)
    setattr(table, "__init__", call_or_refuse)  # noqa: B010  # mypy knows no other way
    return table


def stacking_hint(value: object) -> str:
    """Return the end of an error message about a value that is not a matrix, or an empty string.

    The text is a hint if the value has rows of different lengths, or if it is a one-dimensional
    array of arrays, such as a column of a pandas table.
    """
    try:
        rows = np.asarray(value)
    except ValueError:
        return "; its rows differ in length"
    if rows.dtype != object or rows.ndim != 1 or not len(rows) or not np.ndim(rows[0]):
        return ""
    return ", got a column of arrays: np.stack(column) makes them rows of a matrix"
