"""Suggestions in errors about unknown names of parameters and unknown values.

An error suggests the most similar name or value. For a name or value of another library, it
suggests the equivalent in divgrpc.
"""

import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from numbers import Real
from typing import Final, NoReturn, TypeVar

import numpy as np

from divgrpc.errors import InvalidArgumentError, invalid
from divgrpc.types import IntArray

T = TypeVar("T")


def _by_name(table: Mapping[T, str]) -> dict[str, T]:
    """Map each word in the values of `table` to its key; words are separated by spaces."""
    return {name: parameter for parameter, names in table.items() for name in names.split()}


# Parameter names of other libraries, with their equivalents in divgrpc. An error suggests the first
# equivalent that the call accepts.
_PARAMETERS: Final[Mapping[str, tuple[str, ...]]] = _by_name(
    {
        ("k", "top_k"): "topk top_n n limit n_results num_results size",
        ("k",): "top_k",
        ("top_k",): "k",
        ("k", "neighbours"): "n_neighbors num_neighbors",
        ("neighbours", "k"): "neighbors",
        ("candidates_limit",): "fetch_k num_candidates rerank_k",
        ("selector",): "strategy search_type",
        ("n_probes",): "nprobe nprobes n_probe",
        ("hash_limit",): "ef ef_search efSearch hnsw_ef",
        ("target_recall",): "ef_construction efConstruction",
        ("max_distance",): "max_dist radius",
        ("threshold", "max_distance"): "score_threshold",
        ("metric",): "space distance distance_metric similarity",
        ("hash_family",): "index_type",
        ("n_tables",): "n_trees",
        ("n_bits",): "nbits num_bits",
        ("centred",): "centered",
        ("seed",): "random_state random_seed",
        ("replace",): "overwrite",
        ("regularisation",): "regularization",
        ("progress",): "callback",
        ("filter",): "filters where expr query_filter",
        ("exclude_ids",): "exclude without",
        ("like",): "by_id",
    }
)
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
    "vectors_optional",
)
# Parameters of other libraries whose replacement takes a sentence to explain. The two items of a
# value are a parameter of divgrpc and the sentence, which is shown only if the call accepts that
# parameter.
_SENTENCES: Final[Mapping[str, tuple[str, str]]] = {
    **{
        name: ("diversity", f"use diversity = 1 - {name}")
        for name in ("lambda_mult", "lambda_param", "lambda_", "mmr_lambda")
    },
}
# Names of metrics in other libraries that divgrpc accepts as aliases.
METRIC_ALIASES: Final[Mapping[str, str]] = {
    "l2": "euclidean",
    "ip": "inner_product",
    "dot": "inner_product",
}
# The equivalents in divgrpc of values of parameters in other libraries.
_VALUES: Final[Mapping[str, Mapping[str, str]]] = {
    "metric": _by_name(
        {
            "cosine": "angular cos cosinesimil cosine_similarity",
            "euclidean": "euclid l2_squared l2sq sqeuclidean",
            "inner_product": "dot_product dotproduct innerproduct mips",
        }
    ),
    "selector": _by_name({"nearest": "similarity knn top_k", "max_sum": "msd maxsum"}),
    "variant": _by_name(
        {
            "printed": "algorithm_1 original paper",
            "corrected": "fixed",
            "marginal": "gain objective",
        }
    ),
    "search": _by_name(
        {
            "exact": "brute brute_force bruteforce flat knn linear",
            "auto": "ann annoy hnsw scann",
            "tables": "cells ivf ivf_flat ivfflat lsh",
            "scan_hamming": "hamming",
        }
    ),
    "hash_family": _by_name(
        {"lsh_div": "lsh", "cells": "ivf kmeans", "auto": "hnsw", "pca_hash": "pca"}
    ),
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
            hint = " here" if name in more_words else instead(name, (*words, *more_words))
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


def with_suggestions(table: type[T]) -> type[T]:
    """Make errors about unknown fields of a dataclass suggest a known field; a class decorator."""
    initialise: Callable[..., None] = table.__init__

    @functools.wraps(initialise)
    def initialise_or_refuse(*args: object, **options: object) -> None:
        try:
            initialise(*args, **options)
        except TypeError:
            refuse_unknown(table.__name__, options, taken_by(initialise))
            raise

    setattr(table, "__init__", initialise_or_refuse)  # noqa: B010  # mypy knows no other way
    return table


def stacking_hint(value: object, row_numbers: range | IntArray | None = None) -> str:
    """Return the end of an error message about a value that is not a matrix, or an empty string.

    The text names the first row that is None, that has another length, or that has an entry which
    is no number. Rows are named by `row_numbers`, by default from 0 on. The text is a hint if the
    value is a one-dimensional array of arrays, such as a column of a pandas table.
    """
    try:
        array = np.asarray(value)
    except ValueError:
        return _row_fault(value, row_numbers) or "; its rows differ in length"
    if array.dtype != object or array.ndim != 1:
        return _row_fault(value, row_numbers)
    absent = [number for number, row in enumerate(array) if row is None]
    present = [row for row in array if row is not None]
    if not present or not np.ndim(present[0]):
        return ""
    if absent:
        return f", got a column of arrays with None in row {absent[0]}"
    if len({len(row) for row in present}) > 1:
        return _row_fault(list(array), row_numbers)
    return ", got a column of arrays: np.stack(column) makes them rows of a matrix"


def _row_fault(value: object, row_numbers: range | IntArray | None) -> str:
    """Return text that names the first row that is no row of numbers as long as the first one."""
    rows = value if isinstance(value, list | tuple) else [*np.atleast_1d(np.asarray(value))]
    numbers = range(len(rows)) if row_numbers is None else row_numbers
    for number, row in zip(numbers, rows, strict=False):
        if row is None:
            return f"; row {number} is None"
        if not isinstance(row, list | tuple | np.ndarray) or np.ndim(rows[0]) != 1:
            return ""
        if len(row) != len(rows[0]):
            first = f"row {numbers[0]} has {len(rows[0])}"
            return f"; its rows differ in length: row {number} has {len(row)} numbers, and {first}"
        for entry in row:
            if not isinstance(entry, Real | np.bool_):
                return f"; row {number} has {entry!r:.40}, which is no number"
    return ""


def none_hint(values: object) -> str:
    """Return the end of an error message about numbers, which names the first None among them."""
    entries = values if isinstance(values, list | tuple) else np.atleast_1d(np.asarray(values))
    for number, entry in enumerate(entries):
        if entry is None:
            return f", got None in row {number}"
    return ""
