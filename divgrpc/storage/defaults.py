"""The defaults file of a generation holds values for parameters that requests leave out.

    <root>/<name>/7.default.json       the defaults of generation 7, replaced by a rename

The file holds a `QueryDefault` for Query and thresholds for PredictLabels. It is not stored in the
folder of the generation, because that folder never changes. The file contains the checksum of the
generation's manifest, so the defaults apply only to this generation. A new generation has no
defaults. Like the manifest, the file also contains its own checksum.
"""

import json
import math
import os
import zlib
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final, get_args

from divgrpc.errors import DivgrpcError, IndexDamagedError
from divgrpc.parameters import QueryParameters
from divgrpc.storage.arrays import damage_errors, write_synced
from divgrpc.storage.manifest import MANIFEST, Manifest, checksum, with_checksum
from divgrpc.types import Defaults, Mode, QueryDefault

SUFFIX: Final = ".default.json"
_REMEDY: Final = f"without its file, <generation>{SUFFIX}, the built-in defaults hold"


def default_path(generation: Path) -> Path:
    """Return the path of the defaults file for the folder `generation`."""
    return generation.with_name(generation.name + SUFFIX)


def updated(defaults: Defaults, changes: Mapping[str, Any]) -> Defaults:
    """Return `defaults` with the fields in `changes` replaced.

    Thresholds are replaced for each mode separately; None removes the threshold of a mode.
    """
    if "thresholds" in changes:
        thresholds = {**defaults.thresholds, **changes["thresholds"]}
        thresholds = {mode: value for mode, value in thresholds.items() if value is not None}
        changes = {**changes, "thresholds": thresholds}
    return replace(defaults, **changes)


def read_defaults(generation: Path, manifest: Manifest) -> Defaults:
    """Return the defaults of a generation; raises `IndexDamagedError`.

    The defaults are empty if the generation has no defaults file, or a file of another build.
    """
    try:
        with damage_errors("the default"):
            text = default_path(generation).read_bytes()
            build = (generation / MANIFEST).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return Defaults()
    try:
        document = json.loads(text)
        intact = document.pop("crc32") == checksum(document)
        defaults, build_checksum = _parse(document), document["manifest"]
    except (ValueError, KeyError, TypeError, AttributeError, DivgrpcError) as error:
        raise IndexDamagedError(f"the defaults cannot be read; {_REMEDY}") from error
    if not intact:
        raise IndexDamagedError(f"the default does not match its checksum; {_REMEDY}")
    # A defaults file of another build, left by a crash between two renames, is ignored. The bytes
    # of the manifest are compared, because an older version wrote them in another way.
    is_current = build_checksum == zlib.crc32(build) and Manifest.from_json(build) == manifest
    return defaults if is_current else Defaults()


def write_defaults(generation: Path, defaults: Defaults) -> None:
    """Write the defaults of a generation; if there are none, remove the file.

    The caller must sync the folder.
    """
    path = default_path(generation)
    if defaults == Defaults():
        path.unlink(missing_ok=True)
        return
    build = (generation / MANIFEST).read_bytes()
    document: dict[str, Any] = {"manifest": zlib.crc32(build)}
    if defaults.query is not None:
        document["default"] = asdict(defaults.query)
    if defaults.thresholds:
        document["thresholds"] = dict(defaults.thresholds)
    temporary = path.with_name(path.name + ".new")
    write_synced(temporary, with_checksum(document))
    os.rename(temporary, path)


def is_default(name: str) -> bool:
    """Return whether `name` is the name of a defaults file, or of one that is being written."""
    return name.removesuffix(".new").endswith(SUFFIX)


def _parse(document: dict[str, Any]) -> Defaults:
    """Return the defaults in a JSON document; raises an error for invalid values."""
    query = None
    if "default" in document:
        query = QueryDefault(**document["default"])
        QueryParameters(**document["default"])
    thresholds = dict(document.get("thresholds", {}))
    for mode, threshold in thresholds.items():
        if mode not in get_args(Mode) or not math.isfinite(threshold):
            raise ValueError("not the threshold of a mode")
    return Defaults(query, thresholds)
