"""What a build does about labels: their rows are kept, a model trained, its factors indexed.

    label_sets.indptr, .indices     which labels every point has, compressed sparse rows
    feature_map, label_offset       what embeds a document (see `divgrpc.labels.model`)
    label_index.*                   an index of its own over the label factors, under inner_product
    label_names.bytes, .ends        UTF-8, one name after the other, and where each ends
    label_tree.parents, .depths     the hierarchy as a tree, -1 for none

The label factors are the points of the inner index, which is told what the outer one is of hashes,
tables and seed. They lie by falling length with their labels as ids, so that an exact search ends
early where a few are long (`kernels.scoring.score_longest`).
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from divgrpc.build.assembly import assemble
from divgrpc.build.encoder import Report
from divgrpc.build.sample import SAMPLE_QUERIES
from divgrpc.errors import InvalidArgumentError
from divgrpc.labels import LabelModel, train
from divgrpc.labels.build_inputs import LabelPlan
from divgrpc.labels.model import label_rows
from divgrpc.labels.prediction import INDEX, embed
from divgrpc.parameters import LIMITS, BuildParameters
from divgrpc.storage.arrays import Array
from divgrpc.storage.manifest import LabelSection
from divgrpc.storage.writers import Arrays, Part
from divgrpc.types import Progress, WarningInfo
from divgrpc.vectors import Rows, SparseRows, as_rows, prepare

_BLOCK_ROWS: Final = 8_192
# Of the ten labels of largest products: what is missed is a prediction lost.
_TARGET_RECALL: Final = 0.98
_STAGES: Final = {"choosing": "choosing label parameters", "training": "training labels"}


class LabelBuilder:
    """Takes rows of labels as the points come, then builds what predicts them."""

    def __init__(
        self, store: Arrays, plan: LabelPlan, on_progress: Callable[[Progress], None] | None
    ) -> None:
        self._store = store
        self._plan = plan
        self._on_progress = on_progress
        self._label_count: int | None = None
        self._stored = 0
        self.warnings: tuple[WarningInfo, ...] = ()

    def check(self, labels: object, rows: int) -> SparseRows:
        """Return a block of labels (rows, L), sparse or dense: what is not 0 is a label.

        Raises `InvalidArgumentError` with the field `labels`.
        """
        given = as_rows("labels", labels, self._label_count)
        if len(given) != rows:
            raise InvalidArgumentError(
                "labels", f"labels must have one row per vector, {rows}, got {len(given)}"
            )
        _check_count("labels", given.shape[1])
        return label_rows(given)

    def append(self, block: SparseRows) -> None:
        """Keep the labels of the points that are kept."""
        if self._label_count is None:
            self._label_count = block.dims
            self._store.begin("label_sets.indptr", np.int64, ())
            self._store.append("label_sets.indptr", np.zeros(1, np.int64))
            self._store.begin("label_sets.indices", np.int32, ())
        self._store.append("label_sets.indptr", block.indptr[1:] + self._stored)
        self._store.append("label_sets.indices", block.indices)
        self._stored += len(block.indices)

    def build(self, documents: Rows, asked: BuildParameters, report: Report) -> LabelSection | None:
        """Train or take the model over all points, and index it; None where nothing was given."""
        count = self.agree(documents.shape[1])
        if count is None:
            return None
        self._keep_names()
        self._keep_tree(count)
        section = LabelSection(label_count=count)
        model = self._plan.model
        if isinstance(model, str):
            sets = SparseRows(
                self._store.read("label_sets.indptr"),
                self._store.read("label_sets.indices"),
                np.ones(self._stored, np.float32),
                count,
            )
            trained = train(documents, sets, self._plan.parameters, self._tell)
            model = trained.model
            section = replace(section, parameters=trained.parameters, losses=trained.losses)
        if model is None:
            return section
        return self._index(section, model, documents, asked, report)

    def agree(self, dims: int) -> int | None:
        """Return the number of labels, on which all that was given agrees; None for nothing.

        Raises `InvalidArgumentError` with the field named where it does not.
        """
        model, names = self._plan.model, self._plan.names
        if self._label_count is None and self._plan.is_empty:
            return None
        if isinstance(model, str) and self._label_count is None:
            raise InvalidArgumentError("labels", "labels must come with the vectors to be trained")
        if isinstance(model, LabelModel) and model.dims != dims:
            raise InvalidArgumentError(
                "label_model",
                f"label_model must have a feature map of {dims} rows, one per "
                f"dimension, got {model.dims}",
            )
        counts = {
            "labels": self._label_count,
            "label_model": model.label_count if isinstance(model, LabelModel) else None,
            "label_names": None if names is None else len(names),
        }
        known = {field: count for field, count in counts.items() if count is not None}
        for field, count in known.items():
            _check_count(field, count)
        if not known or list(known) == ["label_names"]:
            raise InvalidArgumentError("labels", "labels must come with every row or with none")
        first = next(iter(known.values()))
        for field, count in known.items():
            if count != first:
                raise InvalidArgumentError(
                    field, f"{field} must be of {first} labels as what else is given, got {count}"
                )
        return first

    def _keep_names(self) -> None:
        if self._plan.names is None:
            return
        texts = [name.encode() for name in self._plan.names]
        self._put("label_names.bytes", np.frombuffer(b"".join(texts), np.uint8))
        self._put("label_names.ends", np.cumsum([len(text) for text in texts], dtype=np.int64))

    def _keep_tree(self, count: int) -> None:
        tree = self._plan.tree(count)
        if tree is None:
            return
        self._put("label_tree.parents", tree.parents.astype(np.int32))
        self._put("label_tree.depths", tree.depths.astype(np.int32))
        unknown = len(tree.unknown)
        if unknown == count:
            raise InvalidArgumentError(
                "hierarchy", f"hierarchy must reach labels, 0 to {count - 1}, from its roots"
            )
        parents, children = np.asarray(self._plan.hierarchy).T
        ends = int((np.setdiff1d(children, parents) >= count).sum())
        if unknown or ends:
            of_labels = f"{unknown} of {count} labels are not reached from the hierarchy's roots"
            of_nodes = f"{ends} nodes of the hierarchy are neither labels nor parents"
            sentence = ", and ".join([of_labels] * bool(unknown) + [of_nodes] * bool(ends))
            self.warnings += (WarningInfo("LABELS_OUTSIDE_HIERARCHY", sentence, "hierarchy"),)

    def _index(
        self,
        section: LabelSection,
        model: LabelModel,
        documents: Rows,
        asked: BuildParameters,
        report: Report,
    ) -> LabelSection:
        self._put("feature_map", model.feature_map)
        self._put("label_offset", model.offset)
        part, factors = Part(self._store, INDEX), model.label_factors
        prepare("label_factors", factors, "inner_product")
        self._warn_of_zeros(int((~factors.any(axis=1)).sum()), model.label_count)
        lengths = np.sqrt(np.einsum("ij,ij->i", factors, factors, dtype=np.float64))
        order = np.argsort(-lengths, kind="stable")
        part.begin("vectors", np.float32, (model.rank,), len(order))
        for start in range(0, len(order), _BLOCK_ROWS):
            part.append("vectors", factors[order[start : start + _BLOCK_ROWS]])
        part.begin("ids", np.int64, (), len(order))
        part.append("ids", order)
        inner = _over_factors(asked, model.rank)
        rng = np.random.default_rng((asked.seed, 3))
        rows = np.sort(
            rng.choice(len(documents), min(SAMPLE_QUERIES, len(documents)), replace=False)
        )
        sample = embed(documents[rows], model.feature_map, model.offset, unit=model.unit_rows)
        manifest = assemble(
            part,
            inner,
            part.read("vectors"),
            report=lambda stage, done, total: report(f"label {stage}", done, total),
            queries=sample,
        )
        return replace(section, rank=model.rank, unit_rows=model.unit_rows, index=manifest)

    def _warn_of_zeros(self, zeros: int, count: int) -> None:
        """Refuse label factors that are all zeros, warn where some labels' are."""
        if zeros == count:
            raise InvalidArgumentError(
                "label_model", "label_model must have label factors that are not all zeros"
            )
        if zeros:
            sentence = f"{zeros} of {count} labels have factors of zeros: no document scores them"
            self.warnings += (WarningInfo("ZERO_LABEL_FACTORS", sentence, "label_model"),)

    def _put(self, name: str, array: Array) -> None:
        self._store.begin(name, array.dtype, array.shape[1:], len(array))
        self._store.append(name, array)

    def _tell(self, progress: Progress) -> None:
        if self._on_progress is not None:
            self._on_progress(replace(progress, stage=_STAGES[progress.stage]))


def _over_factors(asked: BuildParameters, rank: int) -> BuildParameters:
    """Return how the label factors are indexed: as the points are, as far as `rank` columns go."""
    components = min(asked.n_components or rank, rank)
    n_tables, n_bits = asked.n_tables, asked.n_bits
    if asked.hash_family == "pca_hash":
        # A component is one bit of one table.
        n_bits = min(n_bits, components) if n_bits else None
        n_tables = n_tables if (n_tables or 1) * (n_bits or 1) <= components else None
    return BuildParameters(
        metric="inner_product",
        hash_family=asked.hash_family,
        hyperplanes=asked.hyperplanes,
        n_tables=n_tables,
        n_bits=n_bits,
        n_components=components if asked.n_components else None,
        target_recall=max(asked.target_recall, _TARGET_RECALL),
        seed=asked.seed,
    )


def _check_count(field: str, count: int) -> None:
    if not 1 <= count <= LIMITS["labels_max"]:
        raise InvalidArgumentError(
            field, f"{field} must be of 1 to {LIMITS['labels_max']} labels, got {count}"
        )
