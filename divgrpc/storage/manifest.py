"""The manifest: what a generation holds, as one JSON file beside its arrays.

Its arrays are named, so that a later version may add some without a new format: an index with
cells has no tables, one of sparse points no `vectors`. `format_version` grows only when an old
reader would misread. It carries its own checksum: a changed digit would still parse, and quietly
probe fewer buckets.
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
# 2: cells, sparse points, other metrics than cosine. 3: sketches. 4: labels. 5: codes in cells are
# of ways from the centres, terms are packed. 6: those codes may have more bits of a margin than its
# sign. Older ones open without these.
FORMAT_VERSION: Final = 6
_PACKED_FROM: Final = 5
_PACKED: Final = frozenset(("scan_terms", "cell_rows"))
# What reading a document that somebody else wrote can come to.
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
    """What is known of labels: how many, and the model that scores them, if there is one.

    `rank` is 0 without a model, and `index` None, which is the index over its label factors; its
    arrays are the generation's. `parameters` are None too where the factors came from elsewhere;
    `losses` are those of the training. `unit_rows`: documents are scaled before they are embedded.
    """

    label_count: int
    rank: int = 0
    unit_rows: bool = False
    parameters: LabelParameters | None = None
    losses: tuple[float, ...] = ()
    index: "Manifest | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One generation: its parameters with defaults filled in, its findings and its arrays.

    `widest_row`: the most numbers that a row stores, `dims` where points are dense.
    `auto_search_dense`: what dense queries of sparse points take, None where Build did not ask.
    `duplicate_threshold`: what near-copies are, for a query that does not say.
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
        document = {"format": FORMAT, "format_version": FORMAT_VERSION} | asdict(self)
        return json.dumps(document | {"crc32": _checksum(document)}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> "Manifest":
        """Read the text of the file; raises `IndexDamagedError` and `OtherFormatError`."""
        try:
            document = json.loads(text)
            known, version = document["format"] == FORMAT, int(document["format_version"])
            manifest = cls._from_document(document) if known and version <= FORMAT_VERSION else None
        except _UNREADABLE as error:
            raise IndexDamagedError("the manifest cannot be read") from error
        if manifest is not None:
            # Those of labels have the name of their part before their own.
            names = {name.rsplit(".")[-1] for name in manifest.arrays}
            if version < _PACKED_FROM and _PACKED & names:
                raise OtherFormatError(
                    f"the index is of format {version}, whose cells and scan terms this version"
                    " does not read: build it again"
                )
            return manifest
        if not known:
            raise IndexDamagedError("the manifest is of another format")
        raise OtherFormatError(
            f"the index is of format {version}; this version reads up to {FORMAT_VERSION}"
        )

    @classmethod
    def _from_document(cls, document: dict[str, Any]) -> "Manifest":
        if document.pop("crc32") != _checksum(document):
            raise ValueError("checksum")
        return cls.of_section(document)

    @classmethod
    def of_section(cls, document: dict[str, Any]) -> "Manifest":
        """Take what a document says, of whatever version, its checksum left off."""
        of_version_1 = {"nonzeros": document["rows"] * document["dims"], "choices": ()}
        later = {"labels": None, "widest_row": document["dims"]}
        later |= {"auto_search_dense": None, "search_costs_dense": ()}
        # A cosine says the same of every index; what is a short distance Build has to measure.
        cosine = document["parameters"]["metric"] != "euclidean"
        later |= {"duplicate_threshold": DEFAULT_DUPLICATE_COSINE if cosine else None}
        document = of_version_1 | later | document
        known = {field.name: document[field.name] for field in fields(cls)}
        return cls(
            **known
            | {
                "parameters": BuildParameters(**document["parameters"]),
                **{
                    name: tuple(map(_search_cost, document[name]))
                    for name in ("search_costs", "search_costs_dense")
                },
                "choices": tuple(Choice(**c) for c in document["choices"]),
                "warnings": tuple(WarningInfo(**w) for w in document["warnings"]),
                "arrays": {
                    name: ArrayEntry(entry["dtype"], tuple(entry["shape"]), entry["crc32"])
                    for name, entry in document["arrays"].items()
                },
                "labels": _labels(document["labels"]),
            }
        )

    def info(self, name: str, defaults: Defaults | None = None) -> IndexInfo:
        """Return the same for callers, under the index's name and with its defaults."""
        kept = defaults or Defaults()
        return IndexInfo(
            name=name,
            generation=self.generation,
            rows=self.rows,
            dims=self.dims,
            parameters=asdict(self.parameters),
            code_bits=self.code_bits,
            n_probes=self.n_probes,
            auto_search=self.auto_search,
            search_costs=self.search_costs,
            has_categories="categories" in self.arrays,
            has_subtopics="subtopics" in self.arrays,
            arrays=tuple(
                ArrayInfo(key, entry.dtype, entry.shape, entry.bytes)
                for key, entry in sorted(self.arrays.items())
            ),
            points=self.points,
            nonzeros=self.nonzeros,
            choices=self.choices,
            warnings=self.warnings,
            query_default=kept.query,
            labels=self._label_info(kept),
            auto_search_dense=self.auto_search_dense,
            search_costs_dense=self.search_costs_dense,
            duplicate_threshold=self.duplicate_threshold,
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


def _search_cost(document: dict[str, Any]) -> SearchCost:
    pools = tuple(PoolCost(**pool) for pool in document.get("pools", ()))
    return SearchCost(**document | {"pools": pools})


def _labels(section: dict[str, Any] | None) -> LabelSection | None:
    if section is None:
        return None
    parameters, index = section["parameters"], section["index"]
    return LabelSection(
        **section
        | {
            "parameters": parameters and LabelParameters(**parameters),
            "losses": tuple(section["losses"]),
            "index": index and Manifest.of_section(index),
        }
    )


def _checksum(document: dict[str, Any]) -> int:
    """Return the CRC-32 of what the document says, however it is indented."""
    return zlib.crc32(json.dumps(document, sort_keys=True).encode())
