"""The labels of a build: invalid ones are refused, and large ones are split into messages."""

from typing import Any

import numpy as np
import pytest
from scipy import sparse

from divgrpc.errors import InvalidArgumentError
from divgrpc_client.messages import labels as labelling
from divgrpc_client.messages import upload as uploads
from divgrpc_protos import arrays
from divgrpc_protos.v1 import index_pb2, labels_pb2
from support.checks.refusals import refused

ROWS, LABELS = 50, 30
Y = np.eye(LABELS)[np.arange(ROWS) % LABELS]
NAMES = [f"é{number}" for number in range(LABELS)]
EDGES = np.column_stack([np.full(LABELS, LABELS), np.arange(LABELS)])
FACTORS, MAP = np.arange(LABELS * 2.0).reshape(LABELS, 2), np.ones((4, 2))


def prepared(**arguments: Any) -> uploads.Upload:  # noqa: ANN401  # wrong ones too
    vectors, no_columns = np.ones((ROWS, 4)), uploads.RowData()
    return uploads.upload("a", vectors, {}, no_columns, replace=False, **arguments)


def steps(limit: int, **arguments: Any) -> list[index_pb2.BuildRequest]:  # noqa: ANN401  # as above
    """Return the messages of an upload after the header; label chunks come first."""
    messages = list(prepared(**arguments).chunks(limit))
    kinds = [str(step.WhichOneof("step")) for step in messages]
    assert kinds == sorted(kinds, key=["label_chunk", "chunk", "commit"].index)
    return messages


def pieces(limit: int, **arguments: Any) -> list[labels_pb2.LabelChunk]:  # noqa: ANN401  # as above
    return [step.label_chunk for step in steps(limit, **arguments) if step.HasField("label_chunk")]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e39])
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array, sparse.coo_array])
def test_labels_that_are_not_finite_are_refused(form: Any, bad: float) -> None:  # noqa: ANN401  # a matrix' type
    """The client must check the values, because it does not send them."""
    labels = Y.copy()
    labels[3] = bad
    with refused("labels", r"^labels must be finite$"):
        prepared(labels=form(labels))
    with pytest.raises(InvalidArgumentError, match=r"^labels must be finite$"):
        labelling.label_sets(form(labels), ROWS, "document")


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"labels": Y[1:]}, "labels"),
        ({"labels": Y[0]}, "labels"),
        ({"labels": [["a"]] * ROWS}, "labels"),
        ({"label_model": "LEML"}, "label_model"),
        ({"label_model": "factors"}, "label_model"),
        ({"label_model": (FACTORS,)}, "label_model"),
        ({"label_model": FACTORS}, "label_model"),
        ({"label_model": (FACTORS[0], MAP)}, "label_factors"),
        ({"label_model": (FACTORS, sparse.csr_array(MAP))}, "feature_map"),
        ({"label_names": ["a", 1]}, "label_names"),
        ({"label_names": ["a", "\ud800"]}, "label_names"),
        ({"hierarchy": EDGES[0]}, "hierarchy"),
        ({"hierarchy": EDGES - 1}, "hierarchy"),
        ({"hierarchy": EDGES + 0.5}, "hierarchy"),
        ({"hierarchy": EDGES + 2**32}, "hierarchy"),
        ({"hierarchy": EDGES, "roots": []}, "roots"),
        ({"hierarchy": EDGES, "roots": ["a"]}, "roots"),
        ({"roots": [0]}, "roots"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_invalid_label_arguments_are_named(arguments: dict[str, Any], field: str) -> None:
    """Wrong shapes, types and enum values are refused before anything is sent."""
    with refused(field):
        prepared(**arguments)


@pytest.mark.parametrize("limit", [1, 64, 2**20])
def test_label_chunks_join_to_the_arguments(limit: int) -> None:
    arguments = {"label_model": (FACTORS, MAP), "label_names": NAMES, "hierarchy": EDGES}
    chunks = pieces(limit, **arguments, roots=[30, 7, 9])
    # The limit of 1 gives one row, name or edge per chunk. The limit of 2**20 gives one chunk for
    # each kind of argument.
    assert len(chunks) == {1: 3 * LABELS + len(MAP), 64: 15, 2**20: 4}[limit]
    factors = [piece.label_factors for piece in chunks if piece.HasField("label_factors")]
    maps = [piece.feature_map for piece in chunks if piece.HasField("feature_map")]
    assert np.array_equal(np.concatenate(list(map(arrays.decode_dense, factors))), FACTORS)
    assert np.array_equal(np.concatenate(list(map(arrays.decode_dense, maps))), MAP)
    assert [name for piece in chunks for name in piece.label_names.values] == NAMES
    parents = [node for piece in chunks for node in piece.hierarchy.parents]
    children = [node for piece in chunks for node in piece.hierarchy.children]
    assert np.array_equal(np.column_stack([parents, children]), EDGES)
    assert [node for piece in chunks for node in piece.hierarchy.roots] == [30, 7, 9]


@pytest.mark.parametrize(
    "labels",
    [
        Y,
        sparse.csr_array(Y),
        sparse.coo_array(Y * 0.5),
        sparse.csr_array((np.array([0, *[1] * ROWS]), (np.r_[3, :ROWS], np.r_[9, :ROWS] % LABELS))),
    ],
    ids=["dense", "csr", "coo", "stored-zero"],
)
@pytest.mark.parametrize("limit", [1, 100, 2**20])
def test_chunks_carry_the_labels_of_their_rows(labels: Any, limit: int) -> None:  # noqa: ANN401  # any matrix
    """Nonzero values mark labels, and the size of a chunk counts both vectors and labels."""
    label_lists = []
    for step in steps(limit, labels=labels):
        if step.HasField("chunk"):
            label_sets = arrays.decode_label_sets(step.chunk.labels)
            assert arrays.row_count(label_sets) == step.chunk.vectors.dense.rows
            assert label_sets.cols == LABELS
            label_lists += [
                label_sets.indices[a:b].tolist()
                for a, b in zip(label_sets.indptr, label_sets.indptr[1:], strict=False)
            ]
    assert label_lists == [[row % LABELS] for row in range(ROWS)]


def test_a_build_without_labels_sends_no_label_fields() -> None:
    upload = prepared()
    assert not upload.header.header.HasField("labels") or not upload.header.header.labels.ByteSize()
    assert not pieces(2**20)
    assert not steps(2**20)[0].chunk.HasField("labels")


def test_empty_label_arguments_are_sent() -> None:
    """Empty arguments are sent, so that the server refuses them; missing arguments are valid."""
    chunks = pieces(64, label_names=[], hierarchy=np.empty((0, 2)))
    assert [piece.HasField("label_names") for piece in chunks] == [True, False]
    assert [piece.HasField("hierarchy") for piece in chunks] == [False, True]


def test_a_label_model_of_the_core_is_sent_whole() -> None:
    from divgrpc.labels import LabelModel

    model = LabelModel(
        FACTORS.astype(np.float32), MAP.astype(np.float32), np.array([1, 2], np.float32), True
    )
    plan = labelling.label_upload(
        1, labels=None, label_model=model, label_names=None, hierarchy=None, roots=None
    ).plan
    assert (list(plan.offset), plan.unit_rows) == ([1, 2], True)
    assert plan.model == labels_pb2.LABEL_MODEL_FACTORS
