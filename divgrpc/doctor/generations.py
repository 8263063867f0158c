"""Checks the files of a generation: its manifest, its arrays, its defaults and its writes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from divgrpc.doctor.files import check_array, damage, forbidden, is_forbidden
from divgrpc.doctor.reports import Finding, Step
from divgrpc.doctor.writes import check_writes
from divgrpc.errors import IndexDamagedError, OtherFormatError
from divgrpc.storage.defaults import default_path, read_defaults
from divgrpc.storage.generations import GROWING, Generation, open_array_of, read_manifest
from divgrpc.storage.manifest import MANIFEST, Manifest
from divgrpc.storage.meter import Meter
from divgrpc.storage.published import WRITES
from divgrpc.storage.shards import SHARDS, array_files

# Prefixes of the names of arrays with data that users stored.
_STORED: Final = (
    *("vectors", "indptr", "indices", "values", "ids", "id_texts.", "attribute.", "payload."),
    *("categories", "subtopics", "label_names.", "label_sets.", "label_tree."),
)


@dataclass(frozen=True, slots=True)
class GenerationCheck:
    """The state of a generation.

    points, sequence: number of its points, and of the last write; None if they are not known.
    """

    findings: tuple[Finding, ...]
    points: int | None = None
    sequence: int | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it has all its points, or will have them after a repair."""
        return all(finding.severity == "repairable" for finding in self.findings)


def check_generation(folder: Path, meter: Meter) -> GenerationCheck:
    """Check the generation in `folder`, and the writes to it."""
    path = folder / MANIFEST
    try:
        manifest = read_manifest(folder)
    except OtherFormatError as error:
        meaning = "This version cannot check the index, and leaves it as it is."
        return GenerationCheck((Finding(str(path), str(error), meaning, "unchecked"),))
    except IndexDamagedError as error:
        return GenerationCheck((damage(path, error, "The index does not open."),))
    if manifest.shards:
        findings = [*_check_shards(folder, manifest, meter), *_check_defaults(folder, manifest)]
        return GenerationCheck(tuple(findings), None if findings else manifest.rows, 0)
    findings = _check_arrays(folder, manifest, meter)
    generation = None if findings else open_arrays(folder, manifest)
    writes = check_writes(folder, manifest, generation, meter)
    findings += [*_check_defaults(folder, manifest), *writes.findings]
    points = writes.points if writes.has_writes else manifest.rows
    return GenerationCheck(tuple(findings), points if generation else None, writes.sequence)


def open_arrays(folder: Path, manifest: Manifest) -> Generation:
    """Map the arrays of a generation, without its defaults and without a test of checksums."""
    arrays = {
        name: open_array_of(folder, name, entry, verify=False)
        for name, entry in manifest.arrays.items()
    }
    return Generation(manifest, arrays)


def _check_arrays(folder: Path, manifest: Manifest, meter: Meter) -> list[Finding]:
    findings = []
    for name, entry in manifest.arrays.items():
        path = folder / f"{name}.npy"
        # The first write makes its folder before it makes the files of vectors longer.
        grows = name in GROWING and (folder / WRITES).exists()
        if (error := check_array(path, entry, meter, grows=grows)) is not None:
            findings.append(damage(path, error, _meaning_of(name)))
    return findings


def _check_shards(folder: Path, manifest: Manifest, meter: Meter) -> list[Finding]:
    """Check the arrays of a generation that is divided among shards, and their manifests."""
    findings = []
    try:
        for path, entry in array_files(folder, manifest):
            if (error := check_array(path, entry, meter, grows=False)) is not None:
                findings.append(damage(path, error, _meaning_of(path.stem)))
    except (IndexDamagedError, OtherFormatError) as error:
        meaning = "The index does not answer. Later shards were not checked."
        findings.append(damage(folder / SHARDS, error, meaning))
    return findings


def _meaning_of(name: str) -> str:
    """Return what damage of an array means."""
    if name.startswith(_STORED):
        return "The index does not open, and some data that users stored is lost."
    return "The index does not open. The data that users stored is in other files."


def _check_defaults(folder: Path, manifest: Manifest) -> list[Finding]:
    path = default_path(folder)
    try:
        read_defaults(folder, manifest)
    except IndexDamagedError as error:
        if is_forbidden(error):
            return [forbidden(path, str(error))]
        meaning = "The index does not open. Default parameters are lost, but no points."
        repair = "puts the file aside, so that the built-in defaults apply"
        return [Finding(str(path), str(error), meaning, "lossy", repair, Step.DROP_DEFAULTS)]
    return []
