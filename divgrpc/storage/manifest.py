"""The manifest: the description of a generation, as one JSON file beside its arrays.

Arrays have names, so that a later version can add some without a new format. An index with cells
has no tables, and one of sparse points has no `vectors`. `format_version` grows only if an old
reader would misread the arrays. The manifest holds its own checksum, because a changed digit would
still parse and could make queries probe fewer buckets.
"""

import json
import zlib
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from divgrpc.errors import DivgrpcError, IndexDamagedError, OtherFormatError
from divgrpc.parameters import DEFAULT_DUPLICATE_COSINE, BuildParameters, LabelParameters
from divgrpc.storage.arrays import ArrayEntry
from divgrpc.types import (
    ArrayInfo,
    Choice,
    Defaults,
    IndexInfo,
    LabelInfo,
    Points,
    PoolCost,
    Search,
    SearchCost,
    WarningInfo,
)

FORMAT: Final = "divgrpc-index"
# 2: cells, sparse points, metrics other than cosine. 3: sketches. 4: labels. 5: codes in cells are
# codes of the difference from the centre, and scan terms are packed. 6: codes in cells may have
# more than one bit per margin. Indexes of older formats open without these.
FORMAT_VERSION: Final = 6
_PACKED_VERSION: Final = 5
_PACKED_ARRAYS: Final = frozenset(("scan_terms", "cell_rows"))
# Errors that parsing an arbitrary document can raise.
_UNREADABLE: Final = (
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    OverflowError,
    RecursionError,
    DivgrpcError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelSection:
    """The labels of a generation, and the model that scores them if there is one.

    `rank` is the number of columns of the label factors, 0 without a model. With `unit_rows`,
    documents are scaled to unit length before they are embedded. `parameters` and `losses` are
    those of the training, None and empty if the factors were not trained here. `index` describes
    the index of the label factors, whose arrays belong to the generation; None without a model.
    """

    label_count: int
    rank: int = 0
    unit_rows: bool = False
    parameters: LabelParameters | None = None
    losses: tuple[float, ...] = ()
    index: "Manifest | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One generation: its parameters with defaults filled in, its measurements, and its arrays.

    `nonzeros` are the numbers that all points store, `widest_row` those of the longest row (`dims`
    if points are dense). `auto_search_dense` is the search that `auto` takes for dense queries of
    sparse points, None if Build did not measure them. `duplicate_threshold` is the default of
    queries. The other fields are those of `divgrpc.types.IndexInfo`.
    """

    generation: int
    rows: int
    dims: int
    points: Points
    nonzeros: int
    widest_row: int
    parameters: BuildParameters
    code_bits: int
    n_probes: int
    auto_search: Search
    search_costs: tuple[SearchCost, ...]
    choices: tuple[Choice, ...]
    warnings: tuple[WarningInfo, ...]
    arrays: dict[str, ArrayEntry]
    labels: LabelSection | None = None
    auto_search_dense: Search | None = None
    search_costs_dense: tuple[SearchCost, ...] = ()
    duplicate_threshold: float | None = None

    def to_json(self) -> str:
        """Return the text of the file."""
        return with_checksum({"format": FORMAT, "format_version": FORMAT_VERSION} | asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> "Manifest":
        """Read the text of the file; raises `IndexDamagedError` and `OtherFormatError`."""
        try:
            document = json.loads(text)
            is_index, version = document["format"] == FORMAT, int(document["format_version"])
            manifest = None
            if is_index and version <= FORMAT_VERSION:
                if document.pop("crc32") != checksum(document):
                    raise ValueError("checksum")
                manifest = cls.from_document(document)
        except _UNREADABLE as error:
            raise IndexDamagedError("the manifest cannot be read") from error
        if not is_index:
            raise IndexDamagedError("the manifest is of another format")
        if manifest is None:
            raise OtherFormatError(
                f"the index is of format {version}; this version reads up to {FORMAT_VERSION}"
            )
        # Arrays of labels have a prefix.
        names = {name.rsplit(".")[-1] for name in manifest.arrays}
        if version < _PACKED_VERSION and _PACKED_ARRAYS & names:
            raise OtherFormatError(
                f"the index is of format {version}, whose cells and scan terms this version"
                " does not read: build it again"
            )
        return manifest

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> "Manifest":
        """Return the manifest of a JSON object of any version, without a checksum."""
        # Fields that came after version 1. A cosine means the same in every index, so it has a
        # default threshold; a distance does not, so only Build can measure one.
        cosine = document["parameters"]["metric"] != "euclidean"
        later = {
            "nonzeros": document["rows"] * document["dims"],
            "choices": (),
            "labels": None,
            "widest_row": document["dims"],
            "auto_search_dense": None,
            "search_costs_dense": (),
            "duplicate_threshold": DEFAULT_DUPLICATE_COSINE if cosine else None,
        }
        document = later | document
        values = {field.name: document[field.name] for field in fields(cls)}
        return cls(
            **values
            | {
                "parameters": BuildParameters(**document["parameters"]),
                "search_costs": _search_costs(document["search_costs"]),
                "search_costs_dense": _search_costs(document["search_costs_dense"]),
                "choices": tuple(Choice(**choice) for choice in document["choices"]),
                "warnings": tuple(WarningInfo(**warning) for warning in document["warnings"]),
                "arrays": {
                    name: ArrayEntry(entry["dtype"], tuple(entry["shape"]), entry["crc32"])
                    for name, entry in document["arrays"].items()
                },
                "labels": _labels(document["labels"]),
            }
        )

    def info(self, name: str, defaults: Defaults | None = None) -> IndexInfo:
        """Return the description of the index `name` for callers, with its `defaults`."""
        defaults = defaults or Defaults()
        values: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        del values["widest_row"]
        return IndexInfo(
            **values
            | {
                "name": name,
                "parameters": asdict(self.parameters),
                "has_categories": "categories" in self.arrays,
                "has_subtopics": "subtopics" in self.arrays,
                "arrays": tuple(
                    ArrayInfo(key, entry.dtype, entry.shape, entry.bytes)
                    for key, entry in sorted(self.arrays.items())
                ),
                "query_default": defaults.query,
                "labels": self._label_info(defaults),
            }
        )

    def _label_info(self, defaults: Defaults) -> LabelInfo | None:
        section = self.labels
        if section is None:
            return None
        index = section.index
        return LabelInfo(
            label_count=section.label_count,
            rank=section.rank,
            has_label_sets="label_sets.indptr" in self.arrays,
            has_names="label_names.ends" in self.arrays,
            has_hierarchy="label_tree.parents" in self.arrays,
            parameters=None if section.parameters is None else asdict(section.parameters),
            losses=section.losses,
            auto_search=None if index is None else index.auto_search,
            search_costs=() if index is None else index.search_costs,
            thresholds=dict(defaults.thresholds),
        )


def _search_costs(costs: list[dict[str, Any]]) -> tuple[SearchCost, ...]:
    return tuple(
        SearchCost(**cost | {"pools": tuple(PoolCost(**pool) for pool in cost.get("pools", ()))})
        for cost in costs
    )


def _labels(section: dict[str, Any] | None) -> LabelSection | None:
    if section is None:
        return None
    parameters, index = section["parameters"], section["index"]
    return LabelSection(
        **section
        | {
            "parameters": parameters and LabelParameters(**parameters),
            "losses": tuple(section["losses"]),
            "index": index and Manifest.from_document(index),
        }
    )


def with_checksum(document: dict[str, Any]) -> str:
    """Return the text of a JSON object with its own checksum, `crc32`, as the last member."""
    return json.dumps(document | {"crc32": checksum(document)}, indent=1) + "\n"


def checksum(document: dict[str, Any]) -> int:
    """Return the CRC-32 of a JSON object, which does not depend on its layout as text."""
    return zlib.crc32(json.dumps(document, sort_keys=True).encode())
