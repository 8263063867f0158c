"""Reads and writes points as archives of numpy arrays, without pickles.

An archive (.npz) has these arrays:

    divgrpc                      1, the version of this format
    vectors                      (n, dims) float32, of dense points
    has_vector                   (n,) bool if some points have no vector; the arrays of vectors have
                                 the others
    format, shape, indptr, indices, data
                                 sparse points, as scipy.sparse.save_npz writes them
    ids                          (n,) int64, or UTF-8 bytes of a JSON list if the ids are texts
    attributes                   UTF-8 bytes of a JSON object with n values by name
    payload_bytes, payload_ends  payloads one after another, and the end of each
    label_indptr, label_indices, label_count
                                 label sets, as compressed sparse rows, and the number of labels
    categories, subtopics        (n,) int32, -1 for none

The parts after `ids` are absent if the index has none. The functions hold all points in memory.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from divgrpc.errors import InvalidArgumentError
from divgrpc.types import IndexInfo
from divgrpc.types.records import Records, SparseVectors
from divgrpc_client.formats.json_lines import PointLines
from divgrpc_protos.arrays import Csr

Array = npt.NDArray[Any]

ARCHIVE: Final = ".npz"
_VERSION: Final = 1
_VERSION_NAME: Final = "divgrpc"


def is_archive(path: Path) -> bool:
    """Return whether a file is an archive that `archive_writer` wrote."""
    if path.suffix != ARCHIVE:
        return False
    try:
        with np.load(path, allow_pickle=False) as archive:
            return _VERSION_NAME in archive.files
    except Exception:  # noqa: BLE001  # whoever reads the file reports what is wrong with it
        return False


def read_archive(path: Path) -> PointLines:
    """Return the points of an archive; raises `InvalidArgumentError` if it is faulty."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return _points(archive)
    except Exception as error:  # noqa: BLE001  # zipfile, json and numpy raise many kinds
        text = f"{path} cannot be read as an archive of points: {error}"
        raise InvalidArgumentError("file", text) from None


@contextmanager
def archive_writer(path: Path, info: IndexInfo) -> Iterator[Callable[[Records], None]]:
    """Yield a function that collects `Records`, which are written at the end of the context."""
    pages: list[Records] = []
    yield pages.append
    arrays: dict[str, Array] = {_VERSION_NAME: np.array(_VERSION)}
    ids = np.concatenate([page.ids for page in pages]) if pages else np.empty(0, np.int64)
    arrays["ids"] = _as_bytes(ids.tolist()) if info.id_kind == "string" else ids
    arrays |= _vectors(pages, info)
    if info.attributes:
        names = [attribute.name for attribute in info.attributes]
        values = {name: [v for page in pages for v in page.attributes[name]] for name in names}
        arrays["attributes"] = _as_bytes(values)
    if info.has_payloads:
        payloads = [payload for page in pages for payload in page.payloads]
        arrays["payload_bytes"] = np.frombuffer(b"".join(payloads), np.uint8)
        arrays["payload_ends"] = np.cumsum([len(payload) for payload in payloads], dtype=np.int64)
    arrays |= _annotations(pages, info)
    with path.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # numpy's stubs take no dict here


def _vectors(pages: list[Records], info: IndexInfo) -> dict[str, Array]:
    parts: list[Any] = [page.vectors for page in pages]
    flags = np.concatenate(
        [
            np.empty(0, np.bool_),
            *(np.ones(len(p), np.bool_) if p.has_vector is None else p.has_vector for p in pages),
        ]
    )
    presence = {} if flags.all() else {"has_vector": flags}
    if info.points == "dense":
        vectors = np.concatenate([np.empty((0, info.dims), np.float32), *parts])
        return {"vectors": vectors[flags]} | presence
    sparse: list[SparseVectors] = parts
    widths = np.concatenate([np.empty(0, np.int64), *(np.diff(part.indptr) for part in sparse)])
    # Rows without a vector have no values.
    widths = widths[flags]
    return presence | {
        "format": np.array(b"csr"),
        "shape": np.array([len(widths), info.dims]),
        "indptr": np.concatenate(([0], np.cumsum(widths))),
        "indices": np.concatenate([np.empty(0, np.int32), *(part.indices for part in sparse)]),
        "data": np.concatenate([np.empty(0, np.float32), *(part.values for part in sparse)]),
    }


def _annotations(pages: list[Records], info: IndexInfo) -> dict[str, Array]:
    arrays: dict[str, Array] = {}
    if info.labels is not None and info.labels.has_label_sets:
        parts = [page.labels for page in pages if page.labels is not None]
        widths = np.concatenate([np.empty(0, np.int64), *(np.diff(p.indptr) for p in parts)])
        arrays["label_indptr"] = np.concatenate(([0], np.cumsum(widths)))
        arrays["label_indices"] = np.concatenate(
            [np.empty(0, np.int32), *(part.indices for part in parts)]
        )
        arrays["label_count"] = np.array(info.labels.label_count)
    for name, is_present in (
        ("categories", info.has_categories),
        ("subtopics", info.has_subtopics),
    ):
        if is_present:
            columns = [getattr(page, name) for page in pages if len(page)]
            arrays[name] = np.concatenate([np.empty(0, np.int32), *columns])
    return arrays


def _points(archive: Any) -> PointLines:  # noqa: ANN401  # numpy's stubs give no type
    if int(archive[_VERSION_NAME]) != _VERSION:
        raise ValueError(f"it has version {archive[_VERSION_NAME]}, and this release {_VERSION}")
    if "vectors" in archive.files:
        vectors: Any = archive["vectors"]
    else:
        rows, dims = map(int, archive["shape"])
        indptr, indices, data = (archive[name] for name in ("indptr", "indices", "data"))
        if not _match(indptr, indices, rows, dims) or data.shape != indices.shape:
            raise ValueError("its sparse arrays do not match")
        vectors = Csr(indptr, indices, data, dims)
    ids: Array = archive["ids"]
    attributes, payloads = {}, None
    if "attributes" in archive.files:
        attributes = _from_bytes(archive["attributes"])
    if "payload_ends" in archive.files:
        ends, texts = archive["payload_ends"].tolist(), archive["payload_bytes"].tobytes()
        bounds = zip([0, *ends], ends, strict=False)
        payloads = [texts[start:end] or None for start, end in bounds]
    id_list = _from_bytes(ids) if ids.dtype == np.uint8 else ids.tolist()
    has_vector = archive["has_vector"] if "has_vector" in archive.files else None
    annotations = _annotations_in(archive, len(id_list))
    return PointLines(vectors, id_list, attributes, payloads, has_vector, annotations)


def _annotations_in(archive: Any, rows: int) -> dict[str, Any]:  # noqa: ANN401  # numpy's stubs give no type
    names = [name for name in ("categories", "subtopics") if name in archive.files]
    annotations: dict[str, Any] = {name: archive[name] for name in names}
    if "label_indptr" in archive.files:
        indptr, indices = archive["label_indptr"], archive["label_indices"]
        count = int(archive["label_count"])
        if not _match(indptr, indices, rows, count):
            raise ValueError("the arrays of its labels do not match")
        ones = np.ones(len(indices), np.float32)
        annotations["labels"] = Csr(indptr, indices.astype(np.uint32), ones, count)
    return annotations


def _match(indptr: Array, indices: Array, rows: int, cols: int) -> bool:
    """Return whether two arrays are those of compressed sparse rows of this shape."""
    if indptr.shape != (rows + 1,) or indices.ndim != 1:
        return False
    if not {indptr.dtype.kind, indices.dtype.kind} <= {"i", "u"}:
        return False
    are_ends = indptr[0] == 0 and indptr[-1] == len(indices) and (indptr[1:] >= indptr[:-1]).all()
    are_columns = not len(indices) or 0 <= indices.min() <= indices.max() < cols
    return bool(are_ends and are_columns and 0 < cols < 2**32)


def _as_bytes(value: object) -> Array:
    return np.frombuffer(json.dumps(value, ensure_ascii=False).encode(), np.uint8)


def _from_bytes(array: Array) -> Any:  # noqa: ANN401  # any JSON value
    return json.loads(array.tobytes())
