"""Trains a label model, or takes a given one, and indexes its label factors.

The arrays are described in `divgrpc.builder.labels`.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeAlias

import numpy as np

from divgrpc.build_rows import BuildRows
from divgrpc.builder.assembly import assemble
from divgrpc.builder.progress import Report
from divgrpc.builder.sample import SAMPLE_QUERIES
from divgrpc.columns.annotations import INDICES, INDPTR
from divgrpc.columns.writer import RowStore
from divgrpc.errors import invalid
from divgrpc.labels import LabelModel
from divgrpc.labels.model import as_labels
from divgrpc.labels.prediction import INDEX, embed
from divgrpc.labels.training import TrainedLabels, train_on
from divgrpc.labels.training_data import TrainingData, prepare_data
from divgrpc.parameters import BuildParameters, LabelParameters
from divgrpc.storage.manifest import LabelSection, Manifest
from divgrpc.storage.writers import ArrayStore, Store, put
from divgrpc.types import Progress, WarningInfo
from divgrpc.vectors import SparseRows, draw_numbers, prepare

# Trains on data that were prepared in a store.
TrainLabels: TypeAlias = Callable[
    [ArrayStore, TrainingData, LabelParameters, Callable[[Progress], None]], TrainedLabels
]

_BLOCK_ROWS: Final = 8_192
# Minimum target recall of the label index, because a label that is not found is never predicted.
_TARGET_RECALL_MIN: Final = 0.98
_STAGES: Final = {"choosing": "choosing label parameters", "training": "training labels"}
# Parameters of the training that are chosen if the request leaves them out.
_OPTIONAL: Final = ("rank", "regularisation", "iterations")


def train_here(
    _store: ArrayStore,
    data: TrainingData,
    parameters: LabelParameters,
    on_progress: Callable[[Progress], None],
) -> TrainedLabels:
    """Train on this machine; see `TrainLabels`."""
    return train_on(data, parameters, on_progress)


def build_model(
    store: Store,
    source: LabelModel | LabelParameters,
    label_count: int,
    documents: BuildRows,
    request: BuildParameters,
    *,
    rows: RowStore,
    report: Report,
    on_progress: Callable[[Progress], None] | None,
    train_labels: TrainLabels = train_here,
) -> tuple[LabelSection, tuple[WarningInfo, ...]]:
    """Write the arrays of a label model and of its index into a store.

    source: the model, or the parameters to train one on `documents` (n, d) and their label sets.
    request: the parameters of the build.
    rows: has the label sets.
    report, on_progress: receive the progress of the index, and of the training.
    train_labels: trains the model.

    Returns the label section of the manifest, and warnings. Raises `InvalidArgumentError` for a
    model whose factors are all zeros, and the errors of `divgrpc.labels.train`.
    """
    section = LabelSection(label_count=label_count)
    model = source
    if isinstance(model, LabelParameters):
        choices = tuple(name for name in _OPTIONAL if getattr(model, name) is None)
        sets = _label_sets(rows, label_count)
        scratch = store.scratch("training")
        try:
            data = prepare_data(scratch, documents, sets)
            training = train_labels(
                scratch, data, model, lambda progress: _relay(progress, on_progress)
            )
        finally:
            scratch.discard()
        section = replace(
            section,
            parameters=training.parameters,
            losses=training.losses,
            choices=choices,
        )
        model = training.model
    section = replace(section, rank=model.rank, unit_rows=model.unit_rows)
    put(store, "feature_map", model.feature_map)
    put(store, "label_offset", model.offset)
    factors = model.label_factors
    prepare("label_factors", factors, "inner_product")
    warnings = _check_zeros(int((~factors.any(axis=1)).sum()), model.label_count)
    index = _index_factors(store, model, documents, request, report)
    return replace(section, index=index), warnings


def _label_sets(store: RowStore, label_count: int) -> SparseRows:
    """Return the label sets in a store as rows of ones."""
    indptr, indices = store.read(INDPTR), store.read(INDICES)
    return as_labels(SparseRows(indptr, indices, np.ones(len(indices), np.float32), label_count))


def _index_factors(
    store: Store, model: LabelModel, documents: BuildRows, request: BuildParameters, report: Report
) -> Manifest:
    """Index the label factors of a model, and return the manifest of this index."""
    factors = model.label_factors
    squares = np.einsum("ij,ij->i", factors, factors, dtype=np.float64)
    order = np.argsort(-np.sqrt(squares), kind="stable")
    vectors = INDEX + "vectors"
    store.begin(vectors, np.float32, (model.rank,), len(order))
    for start in range(0, len(order), _BLOCK_ROWS):
        store.append(vectors, factors[order[start : start + _BLOCK_ROWS]])
    put(store, INDEX + "ids", order)
    rng = np.random.default_rng((request.seed, 3))
    rows = draw_numbers(len(documents), SAMPLE_QUERIES, rng)
    sample = embed(documents[rows], model.feature_map, model.offset, unit=model.unit_rows)
    return assemble(
        store,
        _factor_parameters(request, model.rank),
        store.read(vectors),
        report=lambda stage, count, total: report(f"label {stage}", count, total),
        prefix=INDEX,
        longest_first=True,
        queries=sample,
    )


def _check_zeros(zeros: int, count: int) -> tuple[WarningInfo, ...]:
    """Raise an error if all `count` label factors are zeros; warn if some (`zeros`) are."""
    if zeros == count:
        raise invalid("label_model", "must have label factors that are not all zeros")
    if not zeros:
        return ()
    sentence = f"{zeros} of {count} labels have factors of zeros: no document scores them"
    return (WarningInfo("ZERO_LABEL_FACTORS", sentence, "label_model"),)


def _relay(progress: Progress, on_progress: Callable[[Progress], None] | None) -> None:
    if on_progress is not None:
        on_progress(replace(progress, stage=_STAGES[progress.stage]))


def _factor_parameters(request: BuildParameters, rank: int) -> BuildParameters:
    """Return the parameters of the label index: those of `request`, changed to fit the `rank`."""
    components = min(request.n_components or rank, rank)
    n_tables, n_bits = request.n_tables, request.n_bits
    if request.hash_family == "pca_hash":
        # Each component gives one bit of one table, so there are at most as many bits as
        # components.
        n_bits = min(n_bits, components) if n_bits else None
        n_tables = n_tables if (n_tables or 1) * (n_bits or 1) <= components else None
    return BuildParameters(
        metric="inner_product",
        hash_family=request.hash_family,
        hyperplanes=request.hyperplanes,
        n_tables=n_tables,
        n_bits=n_bits,
        n_components=components if request.n_components else None,
        target_recall=max(request.target_recall, _TARGET_RECALL_MIN),
        seed=request.seed,
    )
