"""Repairs an index in steps, so that another repair can follow a crash between any two of them.

No damaged file is removed. It is put aside: it gets a name that ends with `.damaged`.
"""

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from divgrpc.collection import Collection
from divgrpc.doctor.generations import open_arrays
from divgrpc.doctor.logs import records_to_keep, valid_records
from divgrpc.doctor.reports import Report, Step
from divgrpc.storage.arrays import (
    HEADER_BYTES,
    ArrayEntry,
    full_disk_errors,
    link_or_copy,
    sync_folder,
)
from divgrpc.storage.defaults import default_path
from divgrpc.storage.generations import (
    GROWING,
    POINTER,
    Generation,
    IndexFolder,
    generation_numbers,
    read_manifest,
    staging_path,
    sweep_index,
    write_pointer,
    writer_lock,
)
from divgrpc.storage.published import LAYOUT, LAYOUTS, PUBLISHED, WRITES
from divgrpc.writes.layout import PARTS, Source, WritesFolder
from divgrpc.writes.log import Log
from divgrpc.writes.records import unpack
from divgrpc.writes.state import State

_ASIDE: Final = ".damaged"


def repair_index(index: Path, report: Report) -> list[str]:
    """Take the steps of a report's findings; return a phrase about each step.

    The caller must have the build lock. Raises `StorageFullError`, `StorageInUseError` and
    `OSError`.
    """
    steps = {finding.step for finding in report.findings if finding.step is not None}
    if steps & {Step.REBUILD, Step.REWRITE_LOG}:
        # A writer publishes the numbers that follow.
        steps.add(Step.REOPEN)
    if Step.DROP_WRITES in steps:
        steps -= {Step.REBUILD, Step.REWRITE_LOG, Step.REOPEN}
    if Step.REBUILD in steps:
        steps -= {Step.REWRITE_LOG}
    if steps & {Step.POINT, Step.FALL_BACK}:
        # The other findings are about a generation that is not current yet.
        steps &= {Step.POINT, Step.FALL_BACK}
    outcomes = [_STEPS[step](index, report) for step in sorted(steps)]
    with suppress(FileNotFoundError):
        # Readers look at the index again.
        IndexFolder(index).touch()
    return outcomes


def _point(index: Path, report: Report) -> str:
    assert report.generation is not None  # noqa: S101  # the finding names it
    pointer = index / POINTER
    if pointer.exists():
        _put_aside(pointer)
    write_pointer(index, report.generation)
    return f"wrote {report.generation} into CURRENT"


def _fall_back(index: Path, report: Report) -> str:
    # First, because a server removes the generations that are not current.
    outcome, names = _point(index, report), []
    for number in generation_numbers(index):
        if number != report.generation:
            names.append(_put_aside(index / str(number)))
            if (path := default_path(index / str(number))).exists():
                names.append(_put_aside(path))
    return f"{outcome}, and kept {', '.join(names)}" if names else outcome


def _sweep(index: Path, _report: Report) -> str:
    sweep_index(index)
    return "removed the files of interrupted builds"


def _drop_defaults(index: Path, report: Report) -> str:
    name = _put_aside(default_path(_folder(index, report)))
    return f"removed the default parameters, and kept {name}"


def _drop_writes(index: Path, report: Report) -> str:
    folder = _folder(index, report)
    with writer_lock(folder):
        for name, entry in read_manifest(folder).arrays.items():
            if name in GROWING:
                _cut(index, folder / f"{name}.npy", entry)
        name = _put_aside(folder / WRITES)
    return f"put all writes aside, and kept {name}"


def _cut(index: Path, file: Path, entry: ArrayEntry) -> None:
    """Leave the items of Build in a file of vectors, and keep the whole file with the writes."""
    if file.stat().st_size <= HEADER_BYTES + entry.bytes:
        return
    # Readers may have mapped the file, so it is replaced and not cut.
    kept_file, cut_file = file.parent / WRITES / file.name, _draft(index) / file.name
    if not kept_file.exists():
        _link(file, kept_file)
    link_or_copy(file, cut_file, entry)
    os.replace(cut_file, file)
    cut_file.parent.rmdir()


def _rebuild(index: Path, report: Report) -> str:
    folder = _folder(index, report)
    writes, generation = WritesFolder(folder), open_arrays(folder, read_manifest(folder))
    with writer_lock(folder):
        # Without the layout, the index does not open until a repair has made all of it.
        paths = [writes.path / name for name in (LAYOUT, LAYOUTS, PARTS)]
        names = [_put_aside(path) for path in paths if path.exists()]
        _apply_log(writes, generation)
    return f"made the layout again, and kept {', '.join(names)}"


def _apply_log(writes: WritesFolder, generation: Generation) -> None:
    """Make the layout of the build, and apply and merge records until all later ones have room."""
    manifest = generation.manifest
    writes.merge(generation, Source.of_build(generation))
    state = State(generation, writes.open_layout(generation, verify=False))
    with writes.point_files(manifest).open() as files:
        for sequence, body in writes.log.read(0):
            record = unpack(body, manifest.attributes)
            if record.rows is not None:
                if not state.has_room(record.rows):
                    writes.merge(generation, state.source())
                    state = State(generation, writes.open_layout(generation, verify=False))
                files.put(record.rows.vectors, state.items)
            state.apply(sequence, record)


def _sweep_writes(index: Path, report: Report) -> str:
    folder = _folder(index, report)
    writes = WritesFolder(folder)
    with writer_lock(folder):
        writes.sweep()
        for draft in writes.log.drafts():
            draft.unlink()
    return "removed the files of an interrupted first write"


def _rewrite_log(index: Path, report: Report) -> str:
    folder = _folder(index, report)
    writes = WritesFolder(folder)
    with writer_lock(folder):
        info = writes.read_info()
        after = 0 if info is None else info.sequence
        records = records_to_keep(valid_records(writes.log), after)
        draft = Log(_draft(index))
        new_file = draft.write(records) if records else None
        old_files = writes.log.files()
        for _, path in old_files:
            _link(path, _free_name(path))
        writes.log.folder.mkdir(exist_ok=True)
        if new_file is not None:
            os.replace(new_file, writes.log.folder / new_file.name)
        for _, path in old_files:
            if new_file is None or path.name != new_file.name:
                path.unlink()
        sync_folder(writes.log.folder)
        # It may say that there were more writes, and the index would not open.
        (writes.path / PUBLISHED).unlink(missing_ok=True)
        draft.folder.rmdir()
    files_aside = f", and kept {len(old_files)} as *{_ASIDE}" if old_files else ""
    return f"made a log that ends with record {after + len(records)}{files_aside}"


def _reopen(index: Path, report: Report) -> str:
    folder = _folder(index, report)
    writes = WritesFolder(folder)
    info = writes.read_info()
    if info is not None:
        writes.point_files(read_manifest(folder)).reserve(info.items[1])
    with Collection.open(index) as collection:
        return f"recovered {len(collection):,} points, up to write {collection.sequence:,}"


_STEPS: Final[dict[Step, Callable[[Path, Report], str]]] = {
    Step.POINT: _point,
    Step.FALL_BACK: _fall_back,
    Step.SWEEP: _sweep,
    Step.DROP_DEFAULTS: _drop_defaults,
    Step.DROP_WRITES: _drop_writes,
    Step.REBUILD: _rebuild,
    Step.SWEEP_WRITES: _sweep_writes,
    Step.REWRITE_LOG: _rewrite_log,
    Step.REOPEN: _reopen,
}


def _folder(index: Path, report: Report) -> Path:
    return index / str(report.generation)


def _draft(index: Path) -> Path:
    """Make an empty folder for new files, which `sweep` removes after a crash."""
    folder = staging_path(index, "repair")
    shutil.rmtree(folder, ignore_errors=True)
    with full_disk_errors():
        folder.mkdir()
    return folder


def _put_aside(path: Path) -> str:
    """Rename a file or a folder; return its new name."""
    aside = _free_name(path)
    os.rename(path, aside)
    sync_folder(path.parent)
    return _label(aside)


def _free_name(path: Path) -> Path:
    """Return the name that a damaged file gets."""
    aside, number = path.with_name(path.name + _ASIDE), 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.name}{_ASIDE}-{number}")
    return aside


def _label(path: Path) -> str:
    """Return the last two names of a path."""
    return f"{path.parent.name}/{path.name}"


def _link(source: Path, target: Path) -> None:
    """Give a file a second name or, where that is not possible, copy it."""
    try:
        os.link(source, target)
    except OSError:
        with full_disk_errors():
            shutil.copy2(source, target)
