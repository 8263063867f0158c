"""Products of a training that shard servers compute, as the builder asks for them."""

from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from scipy import sparse

from divgrpc import Index
from divgrpc.builder.builder import IndexBuilder
from divgrpc.errors import InvalidArgumentError
from divgrpc.labels import products
from divgrpc.labels.build_inputs import LabelInputs
from divgrpc.labels.products import Operation
from divgrpc.parameters import BuildParameters, LabelParameters
from divgrpc.sharding.layouts import FILE, MULTIPLY_REPLY, OPERATION, STAGED_REQUEST
from divgrpc.sharding.staged_training import MULTIPLY, OPERATIONS, unpack_product
from divgrpc.storage.generations import Generation, Staging, staging
from divgrpc_protos.v1 import shard_index_pb2
from divgrpc_server.builder import shard_trainer
from divgrpc_server.builder import shard_work as shard_work_module
from divgrpc_server.builder.shard_trainer import ShardTrainer
from divgrpc_server.ipc import rounds
from support.processes.builder_front import Answer, Shards, shard_work

PLACES = 2
PARTS = 8
RNG = np.random.default_rng(5)
DENSE = RNG.standard_normal((240, 12), np.float32)
SPARSE = sparse.csr_array(sparse.random_array((240, 60), density=0.2, rng=RNG, dtype=np.float32))
LABELS = RNG.random((240, 15)) < 0.2
PARAMETERS = LabelParameters(rank=4, regularisation=1.0, iterations=3)


@pytest.fixture(autouse=True, params=[0, products.GRAM_COLUMNS_MAX], ids=["moments", "gram"])
def small_parts(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> set[Operation]:
    """Let products have several parts; return the operations of a training with or without XᵀX."""
    monkeypatch.setattr(products, "GRAM_COLUMNS_MAX", request.param)
    monkeypatch.setattr(products, "_GRAM_VALUES_MIN", 1)
    monkeypatch.setattr(products, "_PART_VALUES_MIN", 1)
    monkeypatch.setattr(products, "_VALUES_PER_ROW_MIN", 0)
    monkeypatch.setattr(products, "_PARTS_MAX", PARTS)
    return {*OPERATIONS} - {"moments" if request.param else "gram"}


def train(
    folder: Path,
    answer: Callable[[Staging], Answer],
    log: Mock | None = None,
    vectors: object = SPARSE,
) -> tuple[Generation, list[int]]:
    """Build an index with a label model; return it, and the places that were asked."""
    with (
        staging(folder / "points", replace=False) as stage,
        shard_work(answer(stage), PLACES, log or Mock()) as (work, places),
    ):
        inputs = LabelInputs(model="leml", parameters=PARAMETERS)
        trainer = ShardTrainer(work, stage)
        builder = IndexBuilder(stage, BuildParameters(), labels=inputs, train_labels=trainer)
        builder.append_all(vectors, labels=LABELS)
        generation = builder.build()
        assert [path.name for path in stage.folder.glob("matrix-*")] == []
        assert not (stage.folder / "training").exists()
    return generation, places


def assert_equals_one_machine(generation: Generation, vectors: object = SPARSE) -> None:
    whole = Index.build(
        vectors, labels=LABELS, label_model="leml", rank=4, regularisation=1.0, iterations=3
    ).engine
    for name, array in generation.arrays.items():
        assert array.tobytes() == whole.arrays[name].tobytes(), name


@pytest.mark.parametrize("vectors", [SPARSE, DENSE], ids=["sparse", "dense"])
def test_a_model_is_the_one_that_one_machine_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vectors: object
) -> None:
    """Products are those of all columns, or of a few at a time, and parts come in any order."""
    if vectors is SPARSE:
        monkeypatch.setattr(shard_trainer, "_PRODUCT_NUMBERS", 130)
    # Otherwise the rows of a part would be one block.
    monkeypatch.setattr(products, "_BLOCK_ROWS_MIN", 2)
    monkeypatch.setattr(products, "_BLOCK_NUMBERS", 20)
    monkeypatch.setattr(shard_work_module, "_ITEMS_PER_CORE", 1)
    generation, places = train(tmp_path, Shards, vectors=vectors)
    assert {*places} == {0, 1}
    assert_equals_one_machine(generation, vectors)


def test_each_product_has_one_matrix_and_one_message_a_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_parts: set[Operation]
) -> None:
    monkeypatch.setattr(shard_work_module, "_ITEMS_PER_CORE", 0)
    asks: list[tuple[int, str, tuple[int, ...]]] = []

    def answer(stage: Staging) -> Answer:
        shards = Shards(stage)

        def count(place: int, request: shard_index_pb2.AskRequest) -> bytes:
            assert request.operation == MULTIPLY
            columns = STAGED_REQUEST.unpack(request.messages)
            operation = OPERATIONS[columns["matrix"][OPERATION]]
            asks.append((int(columns["matrix"][FILE]), operation, tuple(columns["rows"].tolist())))
            return shards(place, request)

        return count

    train(tmp_path, answer)
    assert len(asks) == len({*asks})
    numbers = [*dict.fromkeys(number for number, _, _ in asks)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert {operation for _, operation, _ in asks} == small_parts
    grams = [rows for _, operation, rows in asks if operation == "gram"]
    assert len(asks) - len(grams) == PARTS * (len(numbers) - bool(grams))
    # XᵀX is computed once, over parts of its own.
    assert sorted(grams) == ([(0, 80), (80, 160), (160, 240)] if "gram" in small_parts else [])


def test_a_place_that_does_not_multiply_costs_no_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_work_module, "_PAUSE_SECONDS", 600.0)
    log = Mock()
    generation, places = train(tmp_path, lambda stage: Shards(stage, "no folder", ""), log)
    assert 1 <= places.count(0) <= 2
    assert_equals_one_machine(generation)
    (call,) = log.warning.call_args_list
    assert call.kwargs == {"index": "points", "place": 0, "reason": "no folder"}


@pytest.mark.parametrize(
    "reply",
    [b"", MULTIPLY_REPLY.pack({}), MULTIPLY_REPLY.pack({"product": np.zeros((3, 1), np.float32)})],
    ids=["nothing", "no product", "another shape"],
)
def test_replies_that_do_not_fit_are_not_used(tmp_path: Path, reply: bytes) -> None:
    response = shard_index_pb2.AskResponse(replies=reply).SerializeToString()
    log = Mock()
    generation, _ = train(
        tmp_path, lambda _: lambda place, _: rounds.pack_round({place: response}), log
    )
    assert log.warning.call_count == 1
    assert_equals_one_machine(generation)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_not_used(value: float) -> None:
    """They would spoil the model."""
    reply = MULTIPLY_REPLY.pack({"product": np.full((2, 3), value, np.float32)})
    with pytest.raises(InvalidArgumentError, match="not finite"):
        unpack_product("moments", reply)
    with pytest.raises(InvalidArgumentError, match="not finite"):
        unpack_product("gram", reply)
    assert unpack_product("squares", reply).shape == (0, 0)


def test_few_parts_wait_for_their_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a place has the first part, no more than so many parts after it are begun."""
    monkeypatch.setattr(shard_trainer, "_PARTS_AHEAD", 3)
    monkeypatch.setattr(shard_work_module, "_ITEMS_PER_CORE", 0)
    spans: dict[int, list[int]] = {}

    def answer(stage: Staging) -> Answer:
        shards = Shards(stage)

        def record(place: int, request: shard_index_pb2.AskRequest) -> bytes:
            columns = STAGED_REQUEST.unpack(request.messages)
            start, _ = columns["rows"].tolist()
            spans.setdefault(int(columns["matrix"][FILE]), []).append(start)
            return shards(place, request)

        return record

    train(tmp_path, answer)
    assert max(map(len, spans.values())) == PARTS
    for product in spans.values():
        starts = sorted({*product})
        assert len(starts) == len(product)
        order = [starts.index(start) for start in product]
        assert all(part < place + 3 for place, part in enumerate(order)), order


def test_small_data_are_trained_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_PARTS_MAX", 3)
    generation, places = train(tmp_path, Shards)
    assert places == []
    assert_equals_one_machine(generation)
