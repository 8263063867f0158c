"""The core on 50,000 real images; skipped unless DIVGRPC_DATA names a folder."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from divgrpc.index import Index
from divgrpc.types import FloatArray, HashFamily, QueryResult, Search
from divgrpc_lab.data import topics
from reference import definitions, objectives

QUERIES = 200


@pytest.fixture(scope="module")
def images(data_folder: Path) -> FloatArray:
    """Return the features (60000, 256) of 60,000 images; the last 10,000 serve as queries."""
    with np.load(data_folder / "cifar100_dense256.npz", allow_pickle=False) as file:
        features: FloatArray = file["x"].astype(np.float32)
    return features


@pytest.fixture(scope="module")
def index(images: FloatArray) -> Index:
    return Index.build(images[:50_000])


@pytest.fixture(scope="module")
def queries(images: FloatArray) -> FloatArray:
    return images[50_000 : 50_000 + QUERIES]


def recall(result: QueryResult, truth: np.ndarray[tuple[int, ...], np.dtype[np.int32]]) -> float:
    pairs = zip(result.ids, truth, strict=True)
    return float(np.mean([np.isin(ids, rows).mean() for ids, rows in pairs]))


def test_exact_search_finds_the_recorded_neighbours(
    index: Index, queries: FloatArray, data_folder: Path
) -> None:
    """The ten nearest of 50,000 images and their cosines agree with another program's."""
    path = data_folder / "cifar100_dense256_neighbours.npz"
    with np.load(path, allow_pickle=False) as file:
        rows, cosines = file["neighbour_row"][:QUERIES, :10], file["cosine"][:QUERIES, :10]
    result = index.query(queries, search="exact", selector="nearest")
    assert np.abs(result.scores - cosines).max() < 1e-5
    # Images at nearly equal distance may swap places at the end of the ten.
    assert recall(result, rows) > 0.999


@pytest.mark.parametrize("search", ["auto", "scan", "scan_hamming"])
def test_measured_recall_holds_for_new_queries(
    index: Index, queries: FloatArray, search: Search
) -> None:
    """Recall that a build measured on its own points holds within 0.05 for other queries."""
    info = index.info
    search_name = info.auto_search if search == "auto" else search
    build_recall = next(cost.recall for cost in info.search_costs if cost.search == search_name)
    truth = index.query(queries, search="exact", selector="nearest")
    result = index.query(queries, search=search, selector="nearest")
    assert recall(result, truth.ids.astype(np.int32)) > build_recall - 0.05
    if search == "auto":
        assert build_recall >= 0.9


@pytest.mark.parametrize("name", ["cifar100_7x5_bovw", "newsgroups20"])
def test_recall_of_hyperplane_queries_is_as_a_build_measured(data_folder: Path, name: str) -> None:
    """The hyperplanes come from support vector machines that are trained on held-out rows."""
    [data] = topics.load([name], str(data_folder))
    hyperplanes = data.queries(3).queries
    families: list[HashFamily] = ["lsh_div", "lsh_sdiv", "pca_hash"]
    recalls: dict[HashFamily, float] = {}
    for family in families:
        index = Index.build(data.points, hash_family=family, categories=data.labels.categories)
        truth = index.query(hyperplanes, search="exact", selector="nearest").ids.astype(np.int32)
        recalls[family] = recall(index.query(hyperplanes, search="scan", selector="nearest"), truth)
        pools = {cost.search: cost.pools for cost in index.info.search_costs_dense}
        ten = pools["scan"][0]
        result = index.query(
            hyperplanes,
            search="scan",
            selector="nearest",
            candidates_limit=ten.candidates,
            hash_limit=ten.hash_limit,
        )
        assert abs(ten.recall - recall(result, truth)) < 0.2
        assert recall(index.query(hyperplanes, selector="nearest"), truth) > 0.85
    assert recalls["lsh_sdiv"] > 0.85 > max(recalls["lsh_div"], recalls["pca_hash"])


@pytest.mark.parametrize("name", ["cifar100_7x5_bovw", "newsgroups20"])
def test_hyperplane_queries_reach_the_target_without_categories(
    data_folder: Path, name: str
) -> None:
    """The recall of the nearest 200 is at least 0.9, although the build got no categories."""
    [data] = topics.load([name], str(data_folder))
    hyperplanes = data.queries(4).queries
    index = Index.build(data.points)
    assert index.info.auto_search_dense == "scan"
    options: dict[str, Any] = {"k": 200, "selector": "nearest", "candidates_limit": 200}
    truth = index.query(hyperplanes, search="exact", **options).ids.astype(np.int32)
    # The hash limit that a query has if it does not set the number of candidates.
    limit = index.query(hyperplanes, k=10).parameters.hash_limit
    assert recall(index.query(hyperplanes, hash_limit=limit, **options), truth) >= 0.9


def test_hashing_closes_most_of_the_gap_to_greedy_over_all_points(
    index: Index, images: FloatArray, queries: FloatArray
) -> None:
    """The gap in J lies between nearest neighbours and `marginal` greedy over all points."""
    unit = definitions.unit(images[:50_000])
    few_queries, directions = queries[:15], definitions.unit(queries[:15])

    def mean_objective(result: QueryResult) -> float:
        pairs = zip(directions, result.ids, strict=True)
        return float(np.mean([objectives.objective(q, unit[ids], 0.3) for q, ids in pairs]))

    every: dict[str, Any] = {"search": "exact", "hash_limit": 0, "candidates_limit": 0}
    nearest = mean_objective(index.query(few_queries, selector="nearest", search="exact"))
    over_all = mean_objective(index.query(few_queries, variant="marginal", **every))
    algorithm_1 = mean_objective(index.query(few_queries, variant="corrected", **every))
    default = mean_objective(index.query(few_queries, variant="marginal"))
    assert over_all < algorithm_1 < nearest
    assert objectives.gap_closed(default, nearest, over_all) > 0.9
