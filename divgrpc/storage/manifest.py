"""The manifest describes a generation in one JSON file, stored in the folder of its arrays.

Arrays are identified by name, so that a later version can add arrays without a new format. Which
arrays exist depends on the index: with cells there are no tables, and with sparse points there is
no array `vectors`. `format_version` increases only if an older version would misread the arrays.
The manifest contains its own checksum. Without the checksum, a changed digit could go unnoticed
and, for example, make queries probe fewer buckets.
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
    ShardInfo,
    WarningInfo,
)
from divgrpc.types.records import Attribute, IdKind

# Name of the file in the folder of a generation.
MANIFEST: Final = "manifest.json"
FORMAT: Final = "divgrpc-index"
# Version of the files that this program writes. Version 2 added cells, sparse points, and metrics
# other than cosine. Version 3 added count sketches. Version 4 added labels. Since version 5, codes
# in cells encode differences from the centre, and the scan terms of a point (an offset and a factor
# that turn its score into a distance) are packed into one number. Since version 6, codes in cells
# may have more than one bit per hyperplane. Since version 7, codes are stored in tiles
# (`divgrpc.kernels.tiles`); older codes are converted when an index is opened. Since version 8,
# ids may be texts, and points may have attributes and payloads (`divgrpc.columns.writer`). Since
# version 9, the arrays of points may be on shards (`divgrpc.storage.shards`); other indexes still
# have version 8. Indexes of older versions can still be opened, except indexes before version 5
# that have cells or scan terms.
FORMAT_VERSION: Final = 9
_WHOLE_VERSION: Final = 8
_PACKED_VERSION: Final = 5
_PACKED_ARRAYS: Final = frozenset(("scan_terms", "cell_rows"))
# Errors that parsing a damaged document can raise.
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
    """The part of a manifest that describes the labels and the label model.

    `rank` is the number of columns of the label factors, or 0 without a model. If `unit_rows` is
    true, documents are scaled to unit length before they are embedded. If Build trained the model,
    `parameters` and `losses` are those of the training; otherwise `parameters` is None and `losses`
    is empty. `index` describes the label index, or is None without a model. The arrays of the label
    index are stored as arrays of the generation. If `is_stale` is true, Build trained the model on
    other points: a vacuum has copied it. `choices` are the names of the parameters of the training
    that Build chose; it is empty in indexes of earlier versions.
    """

    label_count: int
    rank: int = 0
    unit_rows: bool = False
    parameters: LabelParameters | None = None
    losses: tuple[float, ...] = ()
    index: "Manifest | None" = None
    is_stale: bool = False
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """One shard: its number of points, the bytes of its arrays, and the CRC-32 of its manifest."""

    rows: int
    bytes: int
    crc32: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One generation: its parameters with defaults filled in, its measurements, and its arrays.

    `nonzeros` is the total number of stored values of all points. `widest_row` is the maximum
    number of values that one point stores (`dims` for dense points). `auto_search_dense` is the
    search that `auto` uses for dense queries on sparse points, None if Build did not measure such
    queries. `duplicate_threshold` is the default of queries. `shards` has an entry for each shard;
    it is empty for an index that is whole. The arrays of an index with shards are described as they
    were before it was divided. `divgrpc.types.IndexInfo` describes the other fields.
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
    id_kind: IdKind = "int64"
    attributes: tuple[Attribute, ...] = ()
    shards: tuple[ShardEntry, ...] = ()

    def to_json(self) -> str:
        """Return the manifest as the text of its file."""
        document = asdict(self)
        version = FORMAT_VERSION if self.shards else _WHOLE_VERSION
        # An index that is whole has the document of the earlier version, and so has a label index.
        if not self.shards:
            del document["shards"]
        if document["labels"] and document["labels"]["index"]:
            del document["labels"]["index"]["shards"]
        return with_checksum({"format": FORMAT, "format_version": version} | document)

    @classmethod
    def from_json(cls, text: str | bytes) -> "Manifest":
        """Parse the text of a manifest file; raises `IndexDamagedError` and `OtherFormatError`."""
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
        # Remove the prefix that the array names of the label index have.
        names = {name.rsplit(".")[-1] for name in manifest.arrays}
        if version < _PACKED_VERSION and _PACKED_ARRAYS & names:
            raise OtherFormatError(
                f"the index is of format {version}, whose cells and scan terms this version"
                " does not read: build it again"
            )
        return manifest

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> "Manifest":
        """Return the manifest in a JSON object of any readable version, without its checksum."""
        # Values of fields that older versions lack. A cosine means the same in every index, so a
        # fixed `duplicate_threshold` suits cosines. A distance does not mean the same in every
        # index, so only Build can measure a threshold for distances, and here it is None.
        cosine = document["parameters"]["metric"] != "euclidean"
        later = {
            "nonzeros": document["rows"] * document["dims"],
            "choices": (),
            "labels": None,
            "widest_row": document["dims"],
            "auto_search_dense": None,
            "search_costs_dense": (),
            "duplicate_threshold": DEFAULT_DUPLICATE_COSINE if cosine else None,
            "id_kind": "int64",
            "attributes": (),
            "shards": (),
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
                "attributes": tuple(Attribute(**values) for values in document["attributes"]),
                "shards": tuple(ShardEntry(**entry) for entry in document["shards"]),
            }
        )

    @property
    def has_payloads(self) -> bool:
        """Whether points have payloads."""
        return "payload.ends" in self.arrays

    def info(self, name: str, defaults: Defaults | None = None) -> IndexInfo:
        """Return the description of this generation of the index `name`, with its `defaults`."""
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
                "has_payloads": self.has_payloads,
                "shards": tuple(ShardInfo(shard.rows, shard.bytes) for shard in self.shards),
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
            "choices": tuple(section.get("choices", ())),
            "index": index and Manifest.from_document(index),
        }
    )


def renumbered(text: str, generation: int) -> str:
    """Return the text of a manifest, of any version, with another number of the generation."""
    document = json.loads(text)
    del document["crc32"]
    return with_checksum(document | {"generation": generation})


def with_checksum(document: dict[str, Any]) -> str:
    """Return the text of a JSON object, with its checksum `crc32` added as the last member."""
    return json.dumps(document | {"crc32": checksum(document)}, indent=1) + "\n"


def checksum(document: dict[str, Any]) -> int:
    """Return the CRC-32 of a JSON object, independent of white space and the order of keys."""
    return zlib.crc32(json.dumps(document, sort_keys=True).encode())
