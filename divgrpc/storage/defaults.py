"""What is taken where the caller names nothing: kept beside a generation, never inside it.

    <root>/<name>/7.default.json       the defaults of generation 7, replaced by a rename

For Query they are a `QueryDefault`, for PredictLabels thresholds.

It belongs to one build of the points: it names the checksum of that build's manifest, and a new
generation begins without one. Like the manifest it carries its own checksum.
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
from divgrpc.storage.arrays import damage_reported, room_reported
from divgrpc.storage.manifest import Manifest
from divgrpc.types import Defaults, Mode, QueryDefault

SUFFIX: Final = ".default.json"
_REMEDY: Final = f"without its file, <generation>{SUFFIX}, the built-in defaults hold"


def default_path(generation: Path) -> Path:
    """Return where the default of a generation's folder is kept."""
    return generation.with_name(generation.name + SUFFIX)


def changed(defaults: Defaults, changes: Mapping[str, Any]) -> Defaults:
    """Return defaults with some fields changed; of `thresholds` those named, where None is none."""
    if "thresholds" in changes:
        merged = {**defaults.thresholds, **changes["thresholds"]}
        known = {mode: least for mode, least in merged.items() if least is not None}
        changes = {**changes, "thresholds": known}
    return replace(defaults, **changes)


def read_defaults(generation: Path, manifest: Manifest) -> Defaults:
    """Return the defaults of a generation, empty where it has none; raises `IndexDamagedError`."""
    try:
        with damage_reported("the default"):
            text = default_path(generation).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return Defaults()
    try:
        document = json.loads(text)
        whole = document.pop("crc32") == _checksum(document)
        defaults, build = _defaults_of(document), document["manifest"]
    except (ValueError, KeyError, TypeError, AttributeError, DivgrpcError) as error:
        raise IndexDamagedError(f"the defaults cannot be read; {_REMEDY}") from error
    if not whole:
        raise IndexDamagedError(f"the default does not match its checksum; {_REMEDY}")
    # One of another build, left by a crash between two renames, is nobody's.
    return defaults if build == _build_of(manifest) else Defaults()


def write_defaults(generation: Path, manifest: Manifest, defaults: Defaults) -> None:
    """Replace the defaults of a generation, or remove them; the caller syncs the folder."""
    path = default_path(generation)
    if defaults == Defaults():
        path.unlink(missing_ok=True)
        return
    document: dict[str, Any] = {"manifest": _build_of(manifest)}
    if defaults.query is not None:
        document["default"] = asdict(defaults.query)
    if defaults.thresholds:
        document["thresholds"] = dict(defaults.thresholds)
    new = path.with_name(path.name + ".new")
    with room_reported(), new.open("w", encoding="utf-8") as file:
        file.write(json.dumps(document | {"crc32": _checksum(document)}, indent=1) + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.rename(new, path)


def is_default(name: str) -> bool:
    """Tell whether a file in an index's folder is a default, whole or not."""
    return name.removesuffix(".new").endswith(SUFFIX)


def _defaults_of(document: dict[str, Any]) -> Defaults:
    """Return what a file says; what no call takes is damage too, and raises."""
    query = None
    if "default" in document:
        query = QueryDefault(**document["default"])
        QueryParameters(**document["default"])
    thresholds = dict(document.get("thresholds", {}))
    for mode, threshold in thresholds.items():
        if mode not in get_args(Mode) or not math.isfinite(threshold):
            raise ValueError("not the threshold of a mode")
    return Defaults(query, thresholds)


def _build_of(manifest: Manifest) -> int:
    return zlib.crc32(manifest.to_json().encode())


def _checksum(document: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(document, sort_keys=True).encode())
