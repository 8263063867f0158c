"""Conversion of dataclasses to messages and back, by the names of their fields."""

from dataclasses import fields

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from divgrpc.types import (
    ArrayInfo,
    Choice,
    EffectiveParameters,
    IndexInfo,
    LabelInfo,
    PoolCost,
    Progress,
    QueryDefault,
    QueryStats,
    ReplicaInfo,
    SearchCost,
    ShardInfo,
    WarningInfo,
)
from divgrpc_protos.records import UnknownWordError, from_message, set_values, to_message
from divgrpc_protos.v1 import index_pb2, query_pb2
from support.checks.refusals import refused

NUMBERS = st.integers(0, 2**32 - 1)
SHARES = st.none() | st.floats(0, 1)
PARAMETERS = st.builds(
    EffectiveParameters,
    k=NUMBERS,
    diversity=st.floats(0, 1),
    selector=st.sampled_from(["greedy", "nearest", "qp_relax"]),
    variant=st.sampled_from(["marginal", "printed"]),
    search=st.sampled_from(["exact", "scan_hamming"]),
    hash_limit=NUMBERS,
    candidates_limit=NUMBERS,
    max_distance=SHARES,
    sampling=st.just("uniform"),
    seed=st.integers(0, 2**64 - 1),
    rounding=st.just("top_k"),
    n_probes=NUMBERS,
    duplicate_threshold=SHARES,
    list_collapsed=st.booleans(),
    explain=st.booleans(),
    with_report=st.booleans(),
    lose_at_most=SHARES,
)


@given(PARAMETERS)
def test_parameters_survive_conversion(parameters: EffectiveParameters) -> None:
    payload = to_message(parameters, query_pb2.EffectiveParameters).SerializeToString()
    message = query_pb2.EffectiveParameters.FromString(payload)
    assert from_message(message, EffectiveParameters) == parameters


def test_index_info_survives_conversion() -> None:
    pools = (PoolCost(200, 800, 3, 0.95, 1.5, 2.5, 3.5, 4.5),)
    default = QueryDefault(0.3, "greedy", "marginal", "scan", hash_limit=0)
    labels = LabelInfo(
        label_count=7,
        rank=2,
        has_label_sets=True,
        has_names=False,
        has_hierarchy=False,
        parameters={"rank": 2, "tolerance": 0.5},
        losses=(2.0, 1.0),
        auto_search="exact",
        thresholds={"embedding": 0.25},
    )
    parameters = dict.fromkeys(field.name for field in index_pb2.BuildParameters.DESCRIPTOR.fields)
    info = IndexInfo(
        name="x",
        generation=3,
        rows=4,
        dims=2,
        parameters=parameters | {"metric": "cosine", "centred": False, "n_bits": 9},
        code_bits=256,
        n_probes=1,
        auto_search="scan",
        search_costs=(SearchCost("scan", 0.9, 12.5, pools), SearchCost("exact", 1.0, 50.0)),
        has_categories=True,
        has_subtopics=False,
        arrays=(ArrayInfo("codes", "uint64", (4, 9), 288),),
        choices=(Choice("n_bits", "9", "buckets of two points"),),
        warnings=(WarningInfo("CODE", "A sentence."),),
        query_default=default,
        labels=labels,
        shards=(ShardInfo(3, 24, (ReplicaInfo("host:1", "unreachable", "no"),)), ShardInfo(1, 8)),
        degraded=True,
        missing_shards=(0,),
    )
    assert from_message(to_message(info, index_pb2.IndexInfo), IndexInfo) == info


def test_counts_are_arrays_of_their_dtype() -> None:
    names = [field.name for field in fields(QueryStats)]
    columns = {name: np.array([number, 2**32 - 1], np.uint32) for number, name in enumerate(names)}
    message = to_message(QueryStats(**columns), query_pb2.QueryStats)
    stats = from_message(message, QueryStats)
    for name, column in columns.items():
        assert getattr(stats, name).dtype == np.uint32
        assert getattr(stats, name).tolist() == column.tolist()


def test_fields_of_one_side_are_left_out() -> None:
    message = index_pb2.BuildProgress(stage="training", rows_done=2, loss=0.5)
    progress = from_message(message, Progress)
    assert progress == Progress("training", 2, 0)
    assert not to_message(progress, index_pb2.BuildProgress).HasField("loss")


def test_an_unknown_enum_value_of_a_newer_peer() -> None:
    """An enum value unknown to this version shows its number in an answer; a request is refused."""
    answer = query_pb2.SearchCost(recall=1.0)
    answer.ParseFromString(answer.SerializeToString() + b"\x08\x63")  # search = 99
    assert str(from_message(answer, SearchCost).search) == "99"
    with refused("search", "search has no value 99", error=UnknownWordError):
        set_values(answer)


def test_set_values_are_those_that_a_caller_set() -> None:
    """A field with presence counts as set even if it is zero or false; UNSPECIFIED never does."""
    message = index_pb2.BuildParameters(centred=False, n_bits=0)
    assert set_values(message) == {"centred": False, "n_bits": 0}
    message.metric = index_pb2.METRIC_EUCLIDEAN
    assert set_values(message) == {"metric": "euclidean", "centred": False, "n_bits": 0}
