"""Indexes of every hash family, metric and kind of points, and their reference models."""

import itertools
from dataclasses import replace
from functools import cache
from typing import Any, get_args

import numpy as np
import pytest
from scipy import sparse

from divgrpc.engine import Engine
from divgrpc.index import Index
from divgrpc.storage.generations import Generation
from divgrpc.types import (
    FloatArray,
    HashFamily,
    Metric,
    Points,
    QueryResult,
    Sampling,
    Search,
    Selector,
    Variant,
)
from reference import definitions
from reference.index import check_row, points_of

ROWS, DIMS = 240, 20
FAMILIES: list[HashFamily] = ["lsh_div", "lsh_sdiv", "pca_hash", "cells"]
METRICS: tuple[Metric, ...] = get_args(Metric)
KINDS: tuple[Points, ...] = get_args(Points)
SEARCHES: list[Search] = ["tables", "scan", "scan_hamming", "exact"]
SAMPLINGS: tuple[Sampling, ...] = get_args(Sampling)
SELECTIONS: list[tuple[Selector, Variant]] = [
    ("nearest", "corrected"),
    ("greedy", "corrected"),
    ("greedy", "printed"),
    ("greedy", "marginal"),
    ("mmr", "corrected"),
    ("rerank", "corrected"),
    ("max_sum", "corrected"),
    ("dpp", "corrected"),
    ("qp_relax", "corrected"),
    ("qp_relax", "printed"),
]


every_metric = pytest.mark.parametrize("metric", METRICS)
every_kind = pytest.mark.parametrize("kind", KINDS)
every_search = pytest.mark.parametrize("search", SEARCHES)
every_index = pytest.mark.parametrize(
    ("family", "metric", "kind"), [*itertools.product(FAMILIES, METRICS, KINDS)]
)


def drawn(rows: int, dims: int, seed: int, metric: Metric) -> FloatArray:
    """Draw points around six centres; about a tenth are duplicates, a third of the values zero.

    Under metrics other than cosine, norms differ by a factor of 100 and two points are zero.
    """
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((6, dims))
    points = centres[rng.integers(0, 6, rows)] + 0.7 * rng.standard_normal((rows, dims))
    points[rng.random(points.shape) < 0.35] = 0
    points[:, 0] += 0.1
    if metric != "cosine":
        points *= 10 ** rng.uniform(0, 2, (rows, 1)) / dims**0.5
        points[rng.integers(0, rows, 2)] = 0
    again = rng.random(rows) < 0.1
    points[again] = points[rng.integers(0, rows, again.sum())]
    return points.astype(np.float32)


def stored_as(points: FloatArray, kind: Points) -> FloatArray | sparse.csr_array:
    return sparse.csr_array(points) if kind == "sparse" else points


@cache
def an_index(
    family: HashFamily, metric: Metric, kind: Points, *, is_shifted: bool = False
) -> Index:
    """Build an index; all indexes of one metric have the same points.

    If `is_shifted`, hyperplanes are Gaussian. They are centred on the mean of the points, except
    under the inner product.
    """
    # With pca_hash each component gives one bit, so two tables of four bits use all 8 components.
    # Cells have no tables.
    n_tables, n_bits = {"pca_hash": (2, 4), "cells": (None, None)}.get(family, (5, 6))
    return Index.build(
        stored_as(drawn(ROWS, DIMS, 1, metric), kind),
        ids=np.random.default_rng(5).permutation(10**6)[:ROWS],
        metric=metric,
        hash_family=family,
        hyperplanes="gaussian" if is_shifted else "orthogonal",
        centred=is_shifted and metric != "inner_product",
        n_tables=n_tables,
        n_bits=n_bits,
        n_components=8,
        target_recall=0.4,
        seed=3,
    )


@cache
def twin_of(index: Index) -> definitions.Points:
    """Return the points of the index in the form that the reference implementation takes."""
    return points_of(index)


def queries(count: int, metric: Metric) -> FloatArray:
    """Return queries near the points, far from them, and equal to points."""
    rng = np.random.default_rng(9)
    points = drawn(ROWS, DIMS, 1, metric)
    points = points[points.any(axis=1)]
    vectors = points[:count] * (1 + 0.3 * rng.standard_normal((count, DIMS)))
    vectors[1::3] = 3 * rng.standard_normal(vectors[1::3].shape)
    vectors[2::3] = points[count : count + len(vectors[2::3])]
    return vectors.astype(np.float32)


def check(index: Index, vectors: FloatArray, result: QueryResult, *, at_least: int = 0) -> None:
    """Compare every row of a result with the reference implementation."""
    for row, query in enumerate(vectors):
        check_row(twin_of(index), query, result, row, at_least=at_least)


def stating(index: Index, **entries: Any) -> Index:  # noqa: ANN401  # of a manifest
    """Return an index of the same arrays, in whose manifest `entries` are replaced."""
    manifest = replace(index.engine.manifest, **entries)
    return Index(Engine(Generation(manifest, index.engine._arrays), index.info.name))


def without_pools(index: Index, **entries: Any) -> Index:  # noqa: ANN401  # of a manifest
    """Return an index whose `auto` search does not depend on measured search costs."""
    return stating(index, search_costs=(), search_costs_dense=(), **entries)


def taking(index: Index, search: Search) -> Index:
    """Return an index for which `auto` takes `search`, for dense and for sparse queries."""
    return without_pools(index, auto_search=search, auto_search_dense=None)
