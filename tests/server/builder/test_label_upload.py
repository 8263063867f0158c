"""Which labels of an upload a builder refuses, and which field the error names."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from divgrpc.errors import IndexNotFoundError, LimitExceededError
from divgrpc.parameters import LIMITS
from divgrpc.types import Progress
from divgrpc_client import Client
from divgrpc_protos.arrays import encode_dense
from divgrpc_protos.v1 import index_pb2, labels_pb2, points_pb2, vectors_pb2
from divgrpc_server.builder.labels import LabelUpload
from support.data import labelled_documents
from support.data.served_index import DIMS
from support.requests.manual_uploads import chunk, commit, header, wrong_field


def sets(offsets: list[int], ids: list[int], count: int = 4) -> points_pb2.LabelSets:
    return points_pb2.LabelSets(label_count=count, offsets=offsets, ids=ids)


def label_chunk(**fields: Any) -> index_pb2.BuildRequest:  # noqa: ANN401  # a message's types
    return index_pb2.BuildRequest(label_chunk=labels_pb2.LabelChunk(**fields))


def dense(matrix: object) -> vectors_pb2.DenseMatrix:
    return encode_dense(np.asarray(matrix, np.float32)).dense


def edges(parents: list[int], children: list[int], **fields: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return a hierarchy as the field of a label chunk."""
    return {"hierarchy": labels_pb2.Hierarchy(parents=parents, children=children, **fields)}


def parameters(**fields: Any) -> labels_pb2.LabelPlan:  # noqa: ANN401  # a message's types
    """Return a plan that trains labels with these parameters."""
    return labels_pb2.LabelPlan(
        model=labels_pb2.LABEL_MODEL_LEML, parameters=labels_pb2.LabelParameters(**fields)
    )


ONES = np.ones((3, DIMS), np.float32)
FACTORS, MAP = np.ones((4, 2), np.float32), np.ones((DIMS, 2), np.float32)
LEML = labels_pb2.LabelPlan(model=labels_pb2.LABEL_MODEL_LEML)
FACTORS_PLAN = labels_pb2.LabelPlan(model=labels_pb2.LABEL_MODEL_FACTORS)
OFFSET = labels_pb2.LabelPlan(model=labels_pb2.LABEL_MODEL_FACTORS, offset=[1.0])
GOOD = sets([0, 1, 2, 4], [0, 1, 2, 3])
PAIR = {"label_factors": dense(FACTORS), "feature_map": dense(MAP)}
NAMES = labels_pb2.LabelNames(values=["a", "b", "c", "d"])
EDGES = labels_pb2.Hierarchy(parents=[4, 4], children=[0, 1])


@pytest.mark.parametrize(
    ("labels", "field"),
    [
        *(([sets([], [])], "labels.offsets"), ([sets([0, 1], [0])], "labels.offsets")),
        *(
            ([sets(offsets, [0, 1])], "labels.offsets")
            for offsets in ([0, 1, 2, 3], [1, 1, 2, 2], [0, 2, 1, 2])
        ),
        ([sets([0, 1, 1, 2], [0, 4])], "labels.ids"),
        *(([sets([0, 1, 1, 3], ids)], "labels.ids") for ids in ([0, 2, 1], [0, 2, 2])),
        *(([sets([0] * 4, [], count)], "labels") for count in (0, LIMITS["labels_max"] + 1)),
        # Either all chunks have labels or none has. All chunks must give the same number of labels.
        ([GOOD, None], "labels"),
        ([GOOD, sets([0, 1, 2, 4], [0, 1, 2, 3], 5)], "labels"),
    ],
)
def test_wrong_labels_of_rows_name_the_field(
    tmp_path: Path, labels: Sequence[points_pb2.LabelSets | None], field: str
) -> None:
    chunks = [chunk(ONES, labels=sets) for sets in labels]
    assert wrong_field(tmp_path, header("a"), *chunks, commit(3 * len(chunks))) == field


@pytest.mark.parametrize(
    ("plan", "fields", "field"),
    [
        (labels_pb2.LabelPlan(model=99), {}, "model"),  # type: ignore[arg-type]  # no such value
        *((parameters(rank=rank), {}, "rank") for rank in (0, LIMITS["rank_max"] + 1, 5)),
        *((parameters(**{name: 0}), {}, name) for name in ("iterations", "inner_iterations")),
        *((parameters(regularisation=n), {}, "regularisation") for n in (0, 1e300)),
        (parameters(tolerance=1.0), {}, "tolerance"),
        (labels_pb2.LabelPlan(unit_rows=True), {}, "offset"),
        (labels_pb2.LabelPlan(parameters=labels_pb2.LabelParameters(rank=2)), {}, "rank"),
        (LEML, {"label_factors": dense(FACTORS)}, "label_factors"),
        (LEML, {"label_names": labels_pb2.LabelNames(values=["a"])}, "label_names"),
        (LEML, {"label_names": labels_pb2.LabelNames(values=["a" * 2000])}, "label_names"),
        (FACTORS_PLAN, {}, "label_factors"),
        (FACTORS_PLAN, {"label_factors": dense(FACTORS)}, "feature_map"),
        (FACTORS_PLAN, PAIR | {"label_factors": dense(FACTORS[:3])}, "label_model"),
        (FACTORS_PLAN, PAIR | {"feature_map": dense(MAP[:4])}, "label_model"),
        (FACTORS_PLAN, PAIR | {"feature_map": dense(MAP[:, :1])}, "feature_map"),
        (FACTORS_PLAN, PAIR | {"label_factors": dense(FACTORS * np.nan)}, "label_factors"),
        (
            FACTORS_PLAN,
            {"feature_map": vectors_pb2.DenseMatrix(rows=2, cols=2)},
            "feature_map.data",
        ),
        (OFFSET, PAIR, "offset"),
        (LEML, edges([4], []), "hierarchy.children"),
        (LEML, edges([], []), "hierarchy"),
        (LEML, edges([2**32 - 1], [0]), "hierarchy"),
        (LEML, edges([4], [0], roots=[9]), "hierarchy"),
        (LEML, edges([4, 0], [0, 4]), "hierarchy"),
    ],
)
def test_a_wrong_plan_names_its_field(
    tmp_path: Path, plan: labels_pb2.LabelPlan, fields: dict[str, Any], field: str
) -> None:
    steps = (label_chunk(**fields), chunk(ONES, labels=GOOD), commit(3))
    assert wrong_field(tmp_path, header("a", labels=plan), *steps) == field


@pytest.mark.parametrize(
    ("plan", "steps", "field"),
    [
        (None, [chunk(ONES[:0], labels=sets([0, 1], [0])), commit(0)], "labels.ids"),
        (
            FACTORS_PLAN,
            [label_chunk(feature_map=dense(m)) for m in (MAP, MAP[:, :1])],
            "feature_map",
        ),
        (LEML, [chunk(ONES), commit(3)], "labels"),
        (None, [chunk(ONES, labels=GOOD), label_chunk(label_names=NAMES)], "label_chunk"),
    ],
    ids=["no rows", "factor of two widths", "nothing to learn from", "after rows"],
)
def test_labels_that_do_not_fit_earlier_messages(
    tmp_path: Path,
    plan: labels_pb2.LabelPlan | None,
    steps: list[index_pb2.BuildRequest],
    field: str,
) -> None:
    assert wrong_field(tmp_path, header("a", labels=plan), *steps) == field


@pytest.mark.parametrize(
    "limit", ["label_factor_numbers_max", "hierarchy_edges_max", "label_names_bytes_max"]
)
def test_label_chunks_over_a_limit_are_refused(
    limit: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Sizes of label chunks are added up and checked before the chunks are stored."""
    monkeypatch.setitem(LIMITS, limit, 7)
    part = labels_pb2.LabelChunk(
        label_factors=dense(np.ones((1, 2))), hierarchy=EDGES, label_names=NAMES
    )
    with closing(LabelUpload(index_pb2.BuildHeader(labels=FACTORS_PLAN), tmp_path)) as upload:
        upload.add(part)
        if limit != "label_names_bytes_max":
            # Each chunk has two factor values, two edges and four bytes of names.
            upload.add(part)
            upload.add(part)
        with pytest.raises(LimitExceededError, match="at most 7"):
            upload.add(part)
    assert not list(tmp_path.iterdir())


def test_a_cancelled_training_leaves_nothing(client: Client, clean: str) -> None:
    """If the caller leaves while labels are trained, the builder ends and its files are removed."""

    def stop(progress: Progress) -> None:
        if progress.stage == "training labels":
            raise KeyboardInterrupt

    documents = labelled_documents.documents(4_000)
    with pytest.raises(KeyboardInterrupt):
        client.build(
            clean,
            documents,
            labels=labelled_documents.labels_of(documents),
            label_model="leml",
            rank=30,
            regularisation=1.0,
            iterations=1_000,
            tolerance=0.0,
            progress=stop,
        )
    with pytest.raises(IndexNotFoundError):
        client.get_index(clean)
