"""Predictions of labels over shards are those of one index, byte for byte."""

from dataclasses import fields
from functools import partial

import numpy as np
import pytest
from scipy import sparse

from divgrpc import Index
from divgrpc.columns.filters import as_filter
from divgrpc.engine import Engine
from divgrpc.errors import UnfitIndexError
from divgrpc.parameters.predict import PredictParameters
from divgrpc.types import LabelResult, Mode
from divgrpc.types.filters import Range
from support.data.divided_indexes import COUNTS, DividedIndex
from support.data.served_index import random_points

POINTS = random_points(240, dims=10, seed=3)
DOCUMENTS = random_points(6, dims=10, seed=8)
SETS = sparse.csr_array(np.random.default_rng(2).random((240, 30)) < 0.1)
AGES = np.arange(240) % 11


@pytest.fixture(scope="module", params=["integers", "texts"])
def index(request: pytest.FixtureRequest) -> Index:
    ids = [f"p{number}" for number in range(240)] if request.param == "texts" else None
    return Index.build(
        POINTS, ids=ids, labels=SETS, label_model="leml", attributes={"age": AGES}, seed=1
    )


def parameters_of(**options: object) -> PredictParameters:
    return PredictParameters(top_k=7, **options)  # type: ignore[arg-type]  # of any parameter


@pytest.mark.parametrize("shards", COUNTS)
@pytest.mark.parametrize("mode", ["embedding", "neighbour_vote"])
def test_each_mode_on_any_shards(index: Index, shards: int, mode: Mode) -> None:
    pieces = DividedIndex(index.engine, shards)
    for vote in ("plain", "weighted"):
        check(index.engine, pieces, parameters_of(mode=mode, vote=vote))


def check(engine: Engine, pieces: DividedIndex, parameters: PredictParameters) -> None:
    """Compare the labels of documents, all together and one by one."""
    for documents in (DOCUMENTS, DOCUMENTS[2:3]):
        whole = engine.predict(documents, parameters)
        answer = pieces.answer(partial(Engine.predict, documents=documents, parameters=parameters))
        assert _differences(answer, whole) == []


def _differences(answer: LabelResult, whole: LabelResult) -> list[str]:
    names = [field.name for field in fields(LabelResult) if field.name != "stats"]
    return [name for name in names if repr(getattr(answer, name)) != repr(getattr(whole, name))]


def test_points_that_pass_a_filter_vote(index: Index) -> None:
    pieces = DividedIndex(index.engine, 3)
    parameters, condition = parameters_of(mode="neighbour_vote"), as_filter(Range("age", lt=3))

    def predict(engine: Engine) -> LabelResult:
        return engine.predict(DOCUMENTS, parameters, engine.passing(condition))

    assert _differences(pieces.answer(predict), predict(index.engine)) == []


def test_an_index_without_labels_says_so() -> None:
    pieces = DividedIndex(Index.build(POINTS).engine, 2)
    with pytest.raises(UnfitIndexError, match="has no labels"):
        pieces.answer(lambda engine: engine.predict(DOCUMENTS, parameters_of()))
