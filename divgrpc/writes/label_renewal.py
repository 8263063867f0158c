"""Takes the labels of an index over to a new generation of its points.

The label sets of the points are not among what these functions write.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np

from divgrpc.builder.assembly import requested_parameters
from divgrpc.builder.label_model import build_model
from divgrpc.builder.progress import Report
from divgrpc.columns.annotations import INDICES
from divgrpc.errors import UnfitIndexError
from divgrpc.labels import LabelModel
from divgrpc.labels.prediction import INDEX
from divgrpc.parameters import LabelParameters
from divgrpc.storage.generations import Generation, Staging
from divgrpc.storage.manifest import LabelSection
from divgrpc.types import Progress, WarningInfo
from divgrpc.vectors import Rows

# Names of the arrays that do not depend on the model, and of those of the model, or their first
# letters.
_DECLARED: Final = ("label_names.", "label_tree.")
_MODEL: Final = (INDEX, "feature_map", "label_offset")
# The code of a warning of Build that is about the hierarchy, which stays the same.
_OUTSIDE: Final = "LABELS_OUTSIDE_HIERARCHY"


def copy_labels(stage: Staging, generation: Generation, *, is_changed: bool) -> LabelSection | None:
    """Copy names, hierarchy and label model; return the label section of the new manifest.

    is_changed: whether points were written or deleted since the generation was made.
    """
    _copy(stage, generation, _DECLARED + _MODEL)
    section = generation.manifest.labels
    if section is None:
        return None
    is_trained = section.parameters is not None
    return replace(section, is_stale=section.is_stale or (is_changed and is_trained))


def retrain_labels(
    stage: Staging,
    generation: Generation,
    documents: Rows,
    report: Report,
    on_progress: Callable[[Progress], None],
) -> tuple[LabelSection | None, tuple[WarningInfo, ...]]:
    """Copy names and hierarchy, and train the label model on `documents` (n, d) if Build did.

    Returns the label section of the new manifest, and warnings. Raises `UnfitIndexError` if no
    document has a label to train with.
    """
    manifest = generation.manifest
    section = manifest.labels
    if section is None:
        return None, ()
    _copy(stage, generation, _DECLARED)
    warnings = tuple(warning for warning in manifest.warnings if warning.code == _OUTSIDE)
    if section.index is None:
        return section, warnings
    source: LabelModel | LabelParameters
    if section.parameters is None:
        source = _given_model(generation, section)
    else:
        unset: dict[str, Any] = dict.fromkeys(section.choices)
        source = replace(section.parameters, **unset)
        if not len(stage.read(INDICES)):
            raise UnfitIndexError("index", "no point has a label, so no label model can be trained")
    request = requested_parameters(manifest)
    section, model_warnings = build_model(
        stage,
        source,
        section.label_count,
        documents,
        request,
        rows=stage,
        report=report,
        on_progress=on_progress,
    )
    return section, warnings + model_warnings


def _copy(stage: Staging, generation: Generation, names: tuple[str, ...]) -> None:
    for name, array in generation.arrays.items():
        if name.startswith(names):
            stage.create(name, array.dtype, array.shape)[...] = array


def _given_model(generation: Generation, section: LabelSection) -> LabelModel:
    """Return the label model of a generation."""
    arrays = generation.arrays
    vectors = arrays[INDEX + "vectors"]
    factors = np.empty_like(vectors)
    factors[arrays[INDEX + "ids"]] = vectors
    return LabelModel(factors, arrays["feature_map"], arrays["label_offset"], section.unit_rows)
