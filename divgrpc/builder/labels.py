"""The label part of a build stores labels, trains a model, and indexes the label factors.

This part of a build writes these arrays:

    label_sets.indptr, .indices     the labels of every point, as compressed sparse rows
    feature_map, label_offset       the embedding of documents (`divgrpc.labels.model`)
    label_index.*                   an index of the label factors under inner_product
    label_names.bytes, .ends        all names in UTF-8, concatenated, and the end offset of each
    label_tree.parents, .depths     the hierarchy as a tree (`divgrpc.metrics.LabelTree`)

The points of the label index are the label factors. Its hash family, hyperplanes, tables and seed
are those that were requested for the main index, except numbers that do not fit the rank. The
factors are sorted by decreasing length, and the id of a factor is its label. Because factors are
sorted, an exact search can stop early if only a few factors are long
(`divgrpc.kernels.exact.score_longest`).
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from divgrpc.arrays import Array
from divgrpc.builder.assembly import assemble
from divgrpc.builder.progress import Report
from divgrpc.builder.sample import SAMPLE_QUERIES
from divgrpc.errors import invalid
from divgrpc.labels import LabelModel, train
from divgrpc.labels.build_inputs import LabelInputs
from divgrpc.labels.model import label_rows
from divgrpc.labels.prediction import INDEX, embed
from divgrpc.parameters import LIMITS, BuildParameters
from divgrpc.storage.manifest import LabelSection
from divgrpc.storage.writers import Store
from divgrpc.types import Progress, WarningInfo
from divgrpc.vectors import Rows, SparseRows, as_rows, draw_numbers, prepare

_BLOCK_ROWS: Final = 8_192
# Minimum target recall of the label index, because a label that is not found is never predicted.
_TARGET_RECALL_MIN: Final = 0.98
_STAGES: Final = {"choosing": "choosing label parameters", "training": "training labels"}


class LabelBuilder:
    """Collects the labels of points block by block; `build` then makes the label arrays.

    `warnings` is complete when `build` returns.
    """

    def __init__(
        self, store: Store, inputs: LabelInputs, on_progress: Callable[[Progress], None] | None
    ) -> None:
        self._store = store
        self._inputs = inputs
        self._on_progress = on_progress
        self._label_count: int | None = None
        self._assignments = 0
        self.warnings: tuple[WarningInfo, ...] = ()

    def check(self, labels: object, rows: int) -> SparseRows:
        """Check `labels` (rows, L), dense or sparse, and return them as sparse rows.

        Row i has label j if labels[i, j] is not 0. Raises `InvalidArgumentError` with the field
        labels.
        """
        block = as_rows("labels", labels, self._label_count)
        if len(block) != rows:
            raise invalid("labels", f"must have one row per vector, {rows}, got {len(block)}")
        _check_label_count("labels", block.shape[1])
        return label_rows(block)

    def append(self, block: SparseRows) -> None:
        """Store the labels of the next points."""
        if self._label_count is None:
            self._label_count = block.dims
            self._store.begin("label_sets.indptr", np.int64, ())
            self._store.append("label_sets.indptr", np.zeros(1, np.int64))
            self._store.begin("label_sets.indices", np.int32, ())
        self._store.append("label_sets.indptr", block.indptr[1:] + self._assignments)
        self._store.append("label_sets.indices", block.indices)
        self._assignments += len(block.indices)

    def build(
        self, documents: Rows, request: BuildParameters, report: Report
    ) -> LabelSection | None:
        """Train a model on `documents` (n, d) or use the given model, and index its label factors.

        Returns None if the build has no labels. `report` is called with the stage, the number of
        rows done, and the total number of rows.
        """
        count = self.count_labels(documents.shape[1])
        if count is None:
            return None
        self._store_names()
        self._store_tree(count)
        section = LabelSection(label_count=count)
        model = self._inputs.model
        if isinstance(model, str):
            sets = SparseRows(
                self._store.read("label_sets.indptr"),
                self._store.read("label_sets.indices"),
                np.ones(self._assignments, np.float32),
                count,
            )
            training = train(documents, sets, self._inputs.parameters, self._relay)
            model = training.model
            section = replace(section, parameters=training.parameters, losses=training.losses)
        if model is None:
            return section
        return self._index(section, model, documents, request, report)

    def count_labels(self, dims: int) -> int | None:
        """Return the number of labels, or None if the build has no labels.

        Raises `InvalidArgumentError` with the name of the argument as the field if the labels of
        the points, the model and the names have different numbers of labels, if needed labels are
        missing, or if the model does not embed documents of `dims` dimensions.
        """
        model, names = self._inputs.model, self._inputs.names
        if self._label_count is None and self._inputs.is_empty:
            return None
        if isinstance(model, str) and self._label_count is None:
            raise invalid("labels", "must come with the vectors to be trained")
        if isinstance(model, LabelModel) and model.dims != dims:
            sentence = f"must have a feature map of {dims} rows, one per dimension"
            raise invalid("label_model", f"{sentence}, got {model.dims}")
        sizes = {
            "labels": self._label_count,
            "label_model": model.label_count if isinstance(model, LabelModel) else None,
            "label_names": None if names is None else len(names),
        }
        counts = {field: size for field, size in sizes.items() if size is not None}
        for field, count in counts.items():
            _check_label_count(field, count)
        if not counts or list(counts) == ["label_names"]:
            raise invalid("labels", "must come with every row or with none")
        first, label_count = next(iter(counts.items()))
        for field, count in counts.items():
            if count != label_count:
                raise invalid(field, f"must have {label_count} labels like {first}, got {count}")
        return label_count

    def _store_names(self) -> None:
        if self._inputs.names is None:
            return
        texts = [name.encode() for name in self._inputs.names]
        self._put("label_names.bytes", np.frombuffer(b"".join(texts), np.uint8))
        self._put("label_names.ends", np.cumsum([len(text) for text in texts], dtype=np.int64))

    def _store_tree(self, count: int) -> None:
        tree = self._inputs.tree(count)
        if tree is None:
            return
        self._put("label_tree.parents", tree.parents.astype(np.int32))
        self._put("label_tree.depths", tree.depths.astype(np.int32))
        unknown = len(tree.unknown)
        if unknown == count:
            raise invalid("hierarchy", f"must reach labels, 0 to {count - 1}, from its roots")
        parents, children = np.asarray(self._inputs.hierarchy).T
        ends = int((np.setdiff1d(children, parents) >= count).sum())
        parts = []
        if unknown:
            parts.append(f"{unknown} of {count} labels are not reached from the hierarchy's roots")
        if ends:
            parts.append(f"{ends} nodes of the hierarchy are neither labels nor parents")
        if parts:
            self._warn("LABELS_OUTSIDE_HIERARCHY", ", and ".join(parts), "hierarchy")

    def _index(
        self,
        section: LabelSection,
        model: LabelModel,
        documents: Rows,
        request: BuildParameters,
        report: Report,
    ) -> LabelSection:
        self._put("feature_map", model.feature_map)
        self._put("label_offset", model.offset)
        factors = model.label_factors
        prepare("label_factors", factors, "inner_product")
        self._check_zeros(int((~factors.any(axis=1)).sum()), model.label_count)
        squares = np.einsum("ij,ij->i", factors, factors, dtype=np.float64)
        order = np.argsort(-np.sqrt(squares), kind="stable")
        vectors = INDEX + "vectors"
        self._store.begin(vectors, np.float32, (model.rank,), len(order))
        for start in range(0, len(order), _BLOCK_ROWS):
            self._store.append(vectors, factors[order[start : start + _BLOCK_ROWS]])
        self._put(INDEX + "ids", order)
        inner = _factor_parameters(request, model.rank)
        rng = np.random.default_rng((request.seed, 3))
        rows = draw_numbers(len(documents), SAMPLE_QUERIES, rng)
        sample = embed(documents[rows], model.feature_map, model.offset, unit=model.unit_rows)
        manifest = assemble(
            self._store,
            inner,
            self._store.read(vectors),
            report=lambda stage, count, total: report(f"label {stage}", count, total),
            prefix=INDEX,
            longest_first=True,
            queries=sample,
        )
        return replace(section, rank=model.rank, unit_rows=model.unit_rows, index=manifest)

    def _check_zeros(self, zeros: int, count: int) -> None:
        """Raise an error if all `count` label factors are zeros; warn if some (`zeros`) are."""
        if zeros == count:
            raise invalid("label_model", "must have label factors that are not all zeros")
        if zeros:
            sentence = f"{zeros} of {count} labels have factors of zeros: no document scores them"
            self._warn("ZERO_LABEL_FACTORS", sentence, "label_model")

    def _warn(self, code: str, sentence: str, field: str) -> None:
        self.warnings += (WarningInfo(code, sentence, field),)

    def _put(self, name: str, array: Array) -> None:
        self._store.begin(name, array.dtype, array.shape[1:], len(array))
        self._store.append(name, array)

    def _relay(self, progress: Progress) -> None:
        if self._on_progress is not None:
            self._on_progress(replace(progress, stage=_STAGES[progress.stage]))


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


def _check_label_count(field: str, count: int) -> None:
    if not 1 <= count <= LIMITS["labels_max"]:
        raise invalid(field, f"must have 1 to {LIMITS['labels_max']} labels, got {count}")
