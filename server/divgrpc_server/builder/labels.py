"""The label inputs of an upload: factors, names and hierarchy, but not the labels of rows.

Factors are written to unnamed temporary files as they arrive. The files vanish when the process
ends. Label names and hierarchy edges stay in memory, because limits keep them small. Import this
module late, because it loads scipy, which is slow.
"""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import IO, Final

import numpy as np

# Builds need this module later, when there may be no memory to load it.
import scipy.linalg  # noqa: F401

from divgrpc.errors import InvalidArgumentError, LimitExceededError, invalid
from divgrpc.labels import LabelModel
from divgrpc.labels.build_inputs import LabelInputs, check_trained
from divgrpc.parameters import LIMITS, LabelParameters
from divgrpc.types import FloatArray, IntArray
from divgrpc_protos import arrays
from divgrpc_protos.v1 import index_pb2, labels_pb2, vectors_pb2
from divgrpc_server.codec import results

_FACTORS: Final = ("label_factors", "feature_map")


class LabelUpload:
    """Collects the label chunks of one upload; `close` closes its temporary files.

    For invalid chunks, methods raise `InvalidArgumentError`, which names the field. If the chunks
    exceed a limit, methods raise `LimitExceededError`.
    """

    def __init__(self, header: index_pb2.BuildHeader, folder: Path) -> None:
        """Check the label plan in the header, and create temporary files in `folder`."""
        plan = header.labels
        self._model = results.set_values(plan).get("model")
        self._offset = np.array(plan.offset, np.float32)
        self._unit_rows = plan.unit_rows
        if self._model != "factors" and (plan.unit_rows or len(plan.offset)):
            raise invalid("offset", "and unit_rows go with factors alone")
        training = {field.name: value for field, value in plan.parameters.ListFields()}
        check_trained(self._model, training)
        self._parameters = LabelParameters(**{"seed": header.parameters.seed} | training)
        self._factors = {field: _FactorFile(field, folder) for field in _FACTORS}
        self._names: list[str] | None = None
        self._name_bytes = 0
        self._edges: list[IntArray] | None = None
        self._edge_count = 0
        self._roots: list[int] = []

    def close(self) -> None:
        """Close the files; the memory maps that `inputs` returned stay valid."""
        for factor in self._factors.values():
            factor.close()

    def add(self, chunk: labels_pb2.LabelChunk) -> None:
        """Append the contents of a chunk."""
        for field in _FACTORS:
            if chunk.HasField(field):
                if self._model != "factors":
                    raise invalid(field, "go with the label model factors")
                self._factors[field].add(getattr(chunk, field))
        if chunk.HasField("label_names"):
            self._add_names(list(chunk.label_names.values))
        if chunk.HasField("hierarchy"):
            self._add_edges(chunk.hierarchy)

    def inputs(self) -> LabelInputs:
        """Return the label inputs of all chunks; factors are memory-mapped."""
        return LabelInputs(
            model=self._factor_model() if self._model == "factors" else self._model,
            parameters=self._parameters,
            names=self._names,
            hierarchy=None if self._edges is None else np.concatenate(self._edges),
            roots=self._roots or None,
        )

    def _add_names(self, names: list[str]) -> None:
        if self._names is None:
            self._names = []
        self._names.extend(names)
        self._name_bytes += sum(len(name.encode()) for name in names)
        _check_limit("label_names", len(self._names), "labels_max")
        _check_limit("label_names", self._name_bytes, "label_names_bytes_max", " bytes")

    def _add_edges(self, hierarchy: labels_pb2.Hierarchy) -> None:
        parents, children = len(hierarchy.parents), len(hierarchy.children)
        if parents != children:
            raise InvalidArgumentError(
                "hierarchy.children",
                f"hierarchy must have one child per parent, got {parents} and {children}",
            )
        self._edge_count += parents
        self._roots.extend(hierarchy.roots)
        _check_limit("hierarchy", self._edge_count, "hierarchy_edges_max", " edges")
        _check_limit("roots", len(self._roots), "hierarchy_edges_max", " roots")
        edges = np.array([hierarchy.parents, hierarchy.children], np.int64).T
        largest = max(int(edges.max(initial=0)), max(hierarchy.roots, default=0))
        if largest >= LIMITS["hierarchy_nodes_max"]:
            raise invalid(
                "hierarchy", f"must have nodes below {LIMITS['hierarchy_nodes_max']}, got {largest}"
            )
        self._edges = [*(self._edges or []), edges]

    def _factor_model(self) -> LabelModel:
        factors = (self._factors[field].read() for field in _FACTORS)
        model = LabelModel.of_factors(*factors, unit_rows=self._unit_rows)
        if not len(self._offset):
            return model
        if len(self._offset) != model.rank or not np.isfinite(self._offset).all():
            raise invalid(
                "offset", f"must be {model.rank} finite numbers, one per column of factors"
            )
        return replace(model, offset=self._offset)


class _FactorFile:
    """A matrix that is received in blocks of rows and stored in an unnamed file."""

    def __init__(self, field: str, folder: Path) -> None:
        self._field = field
        self._folder = folder
        self._file: IO[bytes] | None = None
        self._rows, self._cols = 0, 0

    def add(self, matrix: vectors_pb2.DenseMatrix) -> None:
        block = _decode(self._field, matrix)
        cols = block.shape[1]
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115  # closed later
            self._cols = cols
        if cols != self._cols:
            raise invalid(self._field, f"must have {self._cols} columns everywhere, got {cols}")
        self._rows += len(block)
        _check_limit(self._field, self._rows * cols, "label_factor_numbers_max", " numbers")
        self._file.write(block.tobytes())

    def close(self) -> None:
        """Close the file; the memory map that `read` returned stays valid."""
        if self._file is not None:
            self._file.close()

    def read(self) -> FloatArray:
        """Return all rows as a memory-mapped float32 array (rows, cols), or (0, 0) if empty."""
        if self._file is None or not self._rows * self._cols:
            return np.empty((0, 0), np.float32)
        self._file.flush()
        return np.memmap(self._file, np.float32, "r", shape=(self._rows, self._cols))


def _decode(field: str, matrix: vectors_pb2.DenseMatrix) -> FloatArray:
    try:
        return arrays.decode_dense(matrix)
    except arrays.MatrixError as error:
        path = error.field.replace("dense", field)
        raise InvalidArgumentError(path, f"{field}: {error}") from None


def _check_limit(field: str, count: int, limit: str, unit: str = "") -> None:
    if count > LIMITS[limit]:
        raise LimitExceededError(f"{field} must be at most {LIMITS[limit]}{unit}, got {count}")
