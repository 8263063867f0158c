"""What Query takes where the caller names nothing: kept beside a generation, never inside it.

    <root>/<name>/7.default.json       the default of generation 7, replaced by a rename

It belongs to one build of the points: it names the checksum of that build's manifest, and a new
generation begins without one. Like the manifest it carries its own checksum.
"""

import json
import os
import zlib
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from divgrpc.array_files import damage_reported, room_reported
from divgrpc.errors import DivgrpcError, IndexDamagedError
from divgrpc.manifest import Manifest
from divgrpc.parameters import QueryParameters
from divgrpc.types import QueryDefault

SUFFIX: Final = ".default.json"
_REMEDY: Final = f"without its file, <generation>{SUFFIX}, the built-in defaults hold"


def default_path(generation: Path) -> Path:
    """Return where the default of a generation's folder is kept."""
    return generation.with_name(generation.name + SUFFIX)


def read_default(generation: Path, manifest: Manifest) -> QueryDefault | None:
    """Return the default of a generation, None where it has none; raises `IndexDamagedError`."""
    try:
        with damage_reported("the default for Query"):
            text = default_path(generation).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        document = json.loads(text)
        whole = document.pop("crc32") == _checksum(document)
        default, build = QueryDefault(**document["default"]), document["manifest"]
        QueryParameters(**document["default"])  # what no query takes is damage too
    except (ValueError, KeyError, TypeError, AttributeError, DivgrpcError) as error:
        raise IndexDamagedError(f"the default for Query cannot be read; {_REMEDY}") from error
    if not whole:
        raise IndexDamagedError(f"the default for Query does not match its checksum; {_REMEDY}")
    # One of another build, left by a crash between two renames, is nobody's.
    return default if build == _build_of(manifest) else None


def write_default(generation: Path, manifest: Manifest, default: QueryDefault | None) -> None:
    """Replace the default of a generation, or remove it; the caller syncs the folder."""
    path = default_path(generation)
    if default is None:
        path.unlink(missing_ok=True)
        return
    document: dict[str, Any] = {"manifest": _build_of(manifest), "default": asdict(default)}
    new = path.with_name(path.name + ".new")
    with room_reported(), new.open("w", encoding="utf-8") as file:
        file.write(json.dumps(document | {"crc32": _checksum(document)}, indent=1) + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.rename(new, path)


def is_default(name: str) -> bool:
    """Tell whether a file in an index's folder is a default, whole or not."""
    return name.removesuffix(".new").endswith(SUFFIX)


def _build_of(manifest: Manifest) -> int:
    return zlib.crc32(manifest.to_json().encode())


def _checksum(document: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(document, sort_keys=True).encode())
