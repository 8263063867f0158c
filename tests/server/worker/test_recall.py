"""The recall of sampled queries, compared with a search by brute force."""

import math
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from divgrpc import Index
from divgrpc.engine import Engine
from divgrpc.parameters import QueryParameters
from divgrpc.types import FloatArray
from divgrpc.writes.opening import open_engine
from divgrpc_client import Client
from divgrpc_protos.arrays import encode_dense
from divgrpc_protos.v1 import query_pb2
from divgrpc_server.config import Config
from divgrpc_server.ipc import control
from divgrpc_server.ipc.packets import Op, Request
from divgrpc_server.logging import logs
from divgrpc_server.monitoring import page as pages
from divgrpc_server.monitoring.page import Page
from divgrpc_server.worker import recall
from divgrpc_server.worker.process import Worker
from divgrpc_server.worker.recall import RecallSampler, Sample
from support.data.served_index import random_points
from support.processes import scrapes
from support.processes.fake_front import Front
from support.processes.running_server import RunningServer, eventually
from support.processes.scrapes import Scrape, metrics_address

ROWS, DIMS, K = 5_000, 24, 10


def points(seed: int, rows: int = ROWS) -> FloatArray:
    return np.random.default_rng(seed).standard_normal((rows, DIMS), dtype=np.float32)


@pytest.fixture(scope="module", params=["cosine", "euclidean", "inner_product"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param) / "sampled"
    Index.build(points(1), metric=request.param, path=path)
    return path


@pytest.fixture
def page() -> Iterator[Page]:
    descriptor = pages.create()
    page = Page(descriptor)
    os.close(descriptor)
    yield page
    page.close()


def measured(sample: Sample) -> float:
    while (outcome := sample.step()) is None:
        pass
    return outcome


def nearest_by_brute_force(metric: str, query: FloatArray) -> set[int]:
    """Return the ids of the K nearest points, computed in double precision."""
    stored, query = points(1).astype(np.float64), query.astype(np.float64)
    if metric == "euclidean":
        scores = -((stored - query) ** 2).sum(axis=1)
    else:
        scores = stored @ query[0]
        if metric == "cosine":
            scores /= np.linalg.norm(stored, axis=1)
    return set(np.argsort(-scores, kind="stable")[:K].tolist())


@pytest.mark.parametrize("selector", ["nearest", "greedy", "mmr"])
def test_recall_equals_that_of_brute_force(
    folder: Path,
    selector: Any,  # noqa: ANN401
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The candidates of a diverse query count, not the points that its selector picked."""
    monkeypatch.setattr(recall, "_FIRST_BLOCK_VALUES", 400 * DIMS)
    index = open_engine(folder)
    outcomes = []
    for number, query in enumerate(points(2, 12)):
        row = query[np.newaxis]
        # So few candidates that some of the nearest points are missed.
        limits: dict[str, Any] = {"k": K, "hash_limit": 12 + 4 * number, "search": "scan"}
        parameters = QueryParameters(selector=selector, **limits)
        candidates = index.answer(row, QueryParameters(selector="nearest", **limits))
        nearest = nearest_by_brute_force(folder.parent.name.rstrip("0123456789"), row)
        expected = len(nearest & set(candidates.ids[0].tolist())) / K
        outcomes.append(measured(Sample(index, row, parameters)))
        assert outcomes[-1] == pytest.approx(expected)
    assert min(outcomes) < 1.0
    assert len(set(outcomes)) > 1


def test_an_exact_search_finds_all(folder: Path) -> None:
    index = open_engine(folder)
    for query in points(3, 5):
        sample = Sample(index, query[np.newaxis], QueryParameters(k=K, search="exact"))
        assert measured(sample) == 1.0


def test_blocks_of_any_size_agree(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index, row = open_engine(folder), points(4, 1)
    parameters = QueryParameters(k=K, hash_limit=60, search="scan")
    expected = measured(Sample(index, row, parameters))
    for rows in (1, 37, ROWS):
        monkeypatch.setattr(recall, "_FIRST_BLOCK_VALUES", rows * DIMS)
        assert measured(Sample(index, row, parameters)) == expected


def test_a_point_that_was_deleted_is_not_missed(tmp_path: Path) -> None:
    from divgrpc import Collection

    with Collection.build(points(1), path=tmp_path / "written") as collection:
        row = points(5, 1)
        nearest = collection.query(row, k=3, selector="nearest", search="exact").ids[0]
        collection.delete(nearest.tolist())
        collection.upsert([70_000], row)
        index = open_engine(tmp_path / "written")
        assert measured(Sample(index, row, QueryParameters(k=K, search="exact"))) == 1.0


def test_no_point_within_the_distance_is_no_sample(folder: Path) -> None:
    index = open_engine(folder)
    if index.metric == "inner_product":
        return
    parameters = QueryParameters(k=K, max_distance=0.0)
    assert math.isnan(measured(Sample(index, points(6, 1), parameters)))


def sampler_of(page: Page, share: float = 1.0) -> RecallSampler:
    return RecallSampler(page, share, logs.configure(Config(log_level="error"), "test"))


def offer(sampler: RecallSampler, index: Engine) -> None:
    sampler.offer("sampled", index, points(7, 3), QueryParameters(k=K))


def test_one_sample_at_a_time_is_kept_and_then_the_worker_rests(folder: Path, page: Page) -> None:
    sampler, index = sampler_of(page), open_engine(folder)
    offer(sampler, index)
    first = sampler._sample
    offer(sampler, index)
    assert sampler._sample is first
    start = time.monotonic()
    while sampler.has_work:
        sampler.step()
    spent = time.monotonic() - start
    assert page.read()["divgrpc_sampled_recall", "sampled"][1] == 1.0
    # The worker rests nineteen times as long as it works. The sampler times most of the work.
    assert sampler._next_time - time.monotonic() > 10 * sampler._spent_seconds
    assert sampler._spent_seconds <= spent
    offer(sampler, index)
    assert not sampler.has_work
    sampler._next_time = 0.0
    offer(sampler, index)
    assert sampler.has_work


def test_a_share_of_the_queries_is_taken(folder: Path, page: Page) -> None:
    sampler, index = sampler_of(page, 0.25), open_engine(folder)
    samples = 0
    for _ in range(400):
        offer(sampler, index)
        samples += sampler.has_work
        sampler._sample = None
    assert 50 < samples < 150


def test_an_error_ends_the_sample_alone(
    folder: Path, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler, index = sampler_of(page), open_engine(folder)
    offer(sampler, index)
    monkeypatch.setattr(Sample, "step", lambda _: 1 / 0)
    sampler.step()
    assert not sampler.has_work
    assert page.read() == {}


def test_a_server_shows_the_recall_of_its_queries(tmp_path: Path) -> None:
    options = ("--workers", "1", "--recall-sample", "1", *scrapes.METRICS)
    with RunningServer(tmp_path, *options) as server, Client(server.target) as client:
        address = metrics_address(server)
        client.build("sampled", random_points(800))

        def is_shown() -> bool:
            client.query("sampled", random_points(1, seed=5), k=5)
            return Scrape(address).value("divgrpc_sampled_recall_count", index="sampled") > 1

        eventually(is_shown)
        scrape = Scrape(address)
        share = scrape.value("divgrpc_sampled_recall_sum", index="sampled")
        share /= scrape.value("divgrpc_sampled_recall_count", index="sampled")
        assert 0.5 < share <= 1.0


def test_queries_are_answered_between_the_blocks_of_a_sample(
    tmp_path: Path, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sample of this test never ends; without it, the worker would wait for the next query."""
    Index.build(random_points(300), path=tmp_path / "small")
    blocks: list[float] = []

    def step(_: Sample) -> None:
        blocks.append(time.monotonic())
        time.sleep(0.002)

    monkeypatch.setattr(Sample, "step", step)
    supervisor_end, worker_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    config = Config(log_level="error", metrics="127.0.0.1:0", recall_sample=1.0)
    process = control.Process(control.Channel(worker_end), config, tmp_path, 1, page)
    worker = Worker(process, logs.configure(config, "worker"))
    thread = threading.Thread(target=worker.run)
    thread.start()
    front = Front(control.Channel(supervisor_end))
    message = query_pb2.QueryRequest(index="small", queries=encode_dense(random_points(1)))
    payload = message.SerializeToString()
    for number in range(1, 6):
        front.send(Request(number, math.inf, Op.QUERY, "tag", payload))
        assert front.answer().id == number
        count = len(blocks)
        eventually(lambda count=count: len(blocks) > count)  # type: ignore[misc]  # its default
    front.link.close()
    supervisor_end.close()
    thread.join(20)
    assert not thread.is_alive()
    worker_end.close()
    assert page.read()["divgrpc_queries_total", "small"] == [5.0]
