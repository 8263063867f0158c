"""Requests of writes for `server/test_golden_wire.py`, and of calls that read what was written."""

from divgrpc_protos.v1 import index_pb2, points_pb2, predict_pb2, writes_pb2
from support.requests import golden_diversifications, golden_quotas, golden_requests
from support.requests.golden_requests import Calls, a_filter, dense, label_sets, query, three


def calls() -> Calls:
    """Return all recorded calls, by name; every method has at least one."""
    return {
        **golden_requests.calls(),
        **golden_quotas.calls(),
        **golden_diversifications.calls(),
        **_writes(),
    }


def _writes() -> Calls:
    """Return writes, and calls that read what was written."""
    upsert, delete, column = (
        writes_pb2.UpsertRequest,
        writes_pb2.DeleteRequest,
        points_pb2.AttributeColumn,
    )
    brands = column(name="brand", keywords=[0, -1, 1], words=["b1", "new"])
    upserted = upsert(
        index="a_upserted",
        string_ids=["n0", "n5", "new"],
        vectors=three(),
        attributes=[brands, column(name="price", integers=[5, 6, -(2**63)])],
        payloads=[b"one", b"", b"three"],
        mode=writes_pb2.WRITE_MODE_UPSERT,
        if_sequence=0,
        write_id="first",
    )
    updated = upsert(
        index="a_updated",
        string_ids=["n7"],
        payloads=[b"x"],
        mode=writes_pb2.WRITE_MODE_UPDATE_ONLY,
    )
    removed = delete(
        index="a_removed", string_ids=["n0", "n5"], filter=a_filter(), if_sequence=0, write_id="one"
    )
    return {
        "upsert": ("Upsert", [upserted]),
        "update": ("Upsert", [updated]),
        "remove": ("Delete", [removed]),
        **_writes_of_numbers(),
        **_writes_of_annotations(),
        **_write_stream(),
        "compact": ("Compact", [writes_pb2.CompactRequest(index="a_compacted")]),
        "retrain": ("Retrain", [writes_pb2.RetrainRequest(index="a_retrained")]),
        "vacuum": ("Compact", [writes_pb2.CompactRequest(index="a_vacuumed", vacuum=True)]),
        **_reads_of_writes(),
        **_vectorless(),
    }


def _vectorless() -> Calls:
    """Return builds and an upsert of points without a vector, and a call that returns one."""
    parameters = index_pb2.BuildParameters(vectors_optional=True)
    header = index_pb2.BuildHeader(index="a_vectorless_stream", parameters=parameters)
    chunk = index_pb2.BuildChunk(vectors=three(), ids=[5, 6, 7, 8], rows_without_vector=[1])
    stream = [
        index_pb2.BuildRequest(header=header),
        index_pb2.BuildRequest(chunk=chunk),
        index_pb2.BuildRequest(commit=index_pb2.BuildCommit(rows=4)),
    ]
    once = index_pb2.BuildOnceRequest(
        index="a_vectorless_once",
        parameters=parameters,
        vectors=three(),
        rows_without_vector=[0, 4],
    )
    upsert = writes_pb2.UpsertRequest(
        index="a_vectorless",
        ids=[0, 7, 8, 2],
        vectors=three(),
        rows_without_vector=[1],
    )
    parts = points_pb2.Parts(vectors=True)
    get = points_pb2.GetRequest(index="vectorless", ids=[0, 2, 1], parts=parts)
    return {
        "build with points without a vector": ("Build", [*stream]),
        "build with points without a vector once": ("BuildOnce", [once]),
        "upsert a point without a vector": ("Upsert", [upsert]),
        "get a point without a vector": ("Get", [get]),
    }


def _writes_of_numbers() -> Calls:
    """Return writes to indexes with integer ids."""
    inserted = writes_pb2.UpsertRequest(
        index="a_inserted",
        ids=[10**6],
        vectors=dense(1),
        mode=writes_pb2.WRITE_MODE_INSERT_ONLY,
    )
    numbers_removed = writes_pb2.DeleteRequest(index="a_numbers_removed", ids=[7, 14, 15])
    return {
        "insert": ("Upsert", [inserted]),
        "remove by numbers": ("Delete", [numbers_removed]),
    }


def _writes_of_annotations() -> Calls:
    """Return writes of label sets, categories and sub-topics."""
    ids = [0, 7, 10**6]
    labelled = writes_pb2.UpsertRequest(
        index="a_labelled", ids=ids, vectors=dense(3), labels=label_sets(0, 3)
    )
    categorised = writes_pb2.UpsertRequest(
        index="a_categorised",
        ids=ids,
        vectors=dense(3),
        categories=[2, -1, 9],
        subtopics=[0, 1, -1],
    )
    return {
        "upsert labels": ("Upsert", [labelled]),
        "upsert topics": ("Upsert", [categorised]),
    }


def _write_stream() -> Calls:
    """Return a stream of writes, one of which fails."""
    ids = ["n0", "n5", "new"]
    upsert = writes_pb2.UpsertRequest(index="a_streamed", string_ids=ids, vectors=three())
    delete = writes_pb2.DeleteRequest(index="a_streamed", string_ids=["n1", "n2"])
    wrong = writes_pb2.DeleteRequest(index="a_streamed")
    message = writes_pb2.WriteStreamRequest
    stream = [
        message(correlation_id=7, upsert=upsert),
        message(correlation_id=8, delete=wrong),
        message(correlation_id=9, delete=delete),
    ]
    return {"write stream": ("WriteStream", [*stream])}


def _reads_of_writes() -> Calls:
    """Return calls that read an index that was written to."""
    written = "named_written"
    a_query = query(written, queries=three(), k=2, min_sequence=2)
    return {
        "query what was written": ("Query", [a_query]),
        "get what was written": (
            "Get",
            [points_pb2.GetRequest(index=written, string_ids=["new", "n0", "n5"])],
        ),
        "count what was written": ("Count", [points_pb2.CountRequest(index=written)]),
        "scroll what was written": ("Scroll", [points_pb2.ScrollRequest(index=written)]),
        "describe what was written": ("GetIndex", [index_pb2.GetIndexRequest(index=written)]),
        "predict with a stale model": (
            "PredictLabels",
            [predict_pb2.PredictLabelsRequest(index="labels_written", documents=dense(2), top_k=2)],
        ),
        "vote with what was written": (
            "PredictLabels",
            [
                predict_pb2.PredictLabelsRequest(
                    index="labels_written",
                    documents=dense(2),
                    top_k=2,
                    mode=predict_pb2.PREDICTION_MODE_NEIGHBOUR_VOTE,
                )
            ],
        ),
    }
