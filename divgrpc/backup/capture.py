"""Opens the files of an index as they are at one sequence number, while it may be written to.

No lock is taken. Files of a generation, of a layout and of a part never change, and open files stay
readable after they were removed. So it suffices that CURRENT and LAYOUT are the same before and
after all files are opened. Files that grow are read up to the items of the layout; the log has all
later ones.
"""

import os
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from divgrpc.backup.archive import Member
from divgrpc.errors import IndexChangedError, IndexDamagedError
from divgrpc.storage.arrays import HEADER_BYTES, ArrayEntry, damage_errors, header_of
from divgrpc.storage.defaults import default_path
from divgrpc.storage.generations import IndexFolder
from divgrpc.storage.layouts import LayoutInfo
from divgrpc.storage.manifest import MANIFEST, Manifest
from divgrpc.storage.published import LAYOUT, LOG, WRITES, open_published, was_written
from divgrpc.storage.shards import SHARDS, array_files
from divgrpc.writes.layout import WritesFolder
from divgrpc.writes.log import Log, entries, lost_write

# Merges are seconds apart, and opening the files takes milliseconds.
_ATTEMPTS_MAX: Final = 20
_READ_BYTES: Final = 1 << 20


class Block(NamedTuple):
    """Bytes of a file that follow one another: offset, number, and CRC-32, None if unknown."""

    start: int
    size: int
    crc32: int | None


@dataclass(frozen=True, slots=True)
class CapturedFile:
    """A file of an index, open for reading; `name` is relative to the folder of the index."""

    name: str
    descriptor: int
    blocks: tuple[Block, ...]

    @property
    def member(self) -> Member:
        """The name and the size."""
        return Member(self.name, sum(block.size for block in self.blocks))

    def read(self) -> Iterator[bytes]:
        """Yield all bytes; raises `IndexDamagedError` if they do not match a checksum."""
        for block in self.blocks:
            crc, position, end = 0, block.start, block.start + block.size
            while position < end:
                with damage_errors(self.name):
                    data = os.pread(self.descriptor, min(_READ_BYTES, end - position), position)
                if not data:
                    raise IndexDamagedError(f"{self.name} is too short")
                crc = zlib.crc32(data, crc)
                position += len(data)
                yield data
            if block.crc32 is not None and crc != block.crc32:
                raise IndexDamagedError(f"{self.name} does not match its checksum")


@dataclass(frozen=True, slots=True)
class Capture:
    """The files of an index at one state: its generation, and the number of its last write."""

    generation: int
    sequence: int
    files: tuple[CapturedFile, ...]


@contextmanager
def capture(index: IndexFolder) -> Iterator[Capture]:
    """Open the files of an index, and close them at the end of the `with` block.

    Raises `IndexNotFoundError`, `IndexDamagedError`, `OtherFormatError`, and `IndexChangedError` if
    merges follow one another too fast.
    """
    with ExitStack() as descriptors:
        yield index.read_current(lambda folder: _capture_generation(folder, descriptors))


def _capture_generation(folder: Path, descriptors: ExitStack) -> Capture:
    """Open the files of a generation, again if a merge made a layout meanwhile."""
    for _ in range(_ATTEMPTS_MAX):
        layout = _read_layout(folder)
        try:
            captured = _Opener(folder, layout, descriptors).capture()
        except (FileNotFoundError, IndexDamagedError):
            if layout == _read_layout(folder):
                raise
        else:
            if layout == _read_layout(folder):
                return captured
    raise IndexChangedError(f"index {folder.parent.name!r} is merged all the time; try again")


def _read_layout(folder: Path) -> bytes | None:
    """Return the file LAYOUT; None if nothing was written to the generation."""
    if not was_written(folder):
        return None
    with damage_errors("the layout"):
        return (folder / WRITES / LAYOUT).read_bytes()


class _Opener:
    """Opens the files of the generation in `folder`, with the layout whose file is given."""

    def __init__(self, folder: Path, layout: bytes | None, descriptors: ExitStack) -> None:
        self._folder, self._descriptors = folder, descriptors
        self._writes = WritesFolder(folder)
        self._info = None if layout is None else LayoutInfo.from_json(layout)
        self._files: list[CapturedFile] = []

    def capture(self) -> Capture:
        """Open all files."""
        with damage_errors("the manifest"):
            manifest = Manifest.from_json((self._folder / MANIFEST).read_bytes())
        self._add_whole(self._folder / MANIFEST)
        if default_path(self._folder).exists():
            self._add_whole(default_path(self._folder))
        if manifest.shards:
            self._add_shards(manifest)
            return Capture(manifest.generation, 0, tuple(self._files))
        grows = {} if self._info is None else self._growing(manifest, self._info)
        for name, entry in manifest.arrays.items():
            self._add_array(self._folder / f"{name}.npy", entry, grows.get(name))
        sequence = 0
        if self._info is not None:
            self._add_whole(self._writes.path / LAYOUT)
            for folder, arrays in self._writes.folders(self._info).items():
                for name, entry in arrays.items():
                    self._add_array(folder / f"{name}.npy", entry)
            sequence = self._add_log(self._info)
        return Capture(manifest.generation, sequence, tuple(self._files))

    def _add_shards(self, manifest: Manifest) -> None:
        for shard in range(len(manifest.shards)):
            self._add_whole(self._folder / SHARDS / str(shard) / MANIFEST)
        for path, entry in array_files(self._folder, manifest):
            self._add_array(path, entry)

    def _growing(self, manifest: Manifest, info: LayoutInfo) -> dict[str, tuple[Block, ...]]:
        """Return the blocks that merges have added to the files that grow, by their names."""
        sizes = self._writes.point_files(manifest).sizes()
        return {
            file.stem: tuple(
                Block(HEADER_BYTES + size * first, size * count, part.checksums[number])
                for part in info.parts
                for first, count in (part.items,)
            )
            for number, (file, size) in enumerate(sizes.items())
        }

    def _add_array(
        self, path: Path, entry: ArrayEntry, later: tuple[Block, ...] | None = None
    ) -> None:
        header = Block(0, HEADER_BYTES, zlib.crc32(header_of(entry)))
        build = Block(HEADER_BYTES, entry.bytes, entry.crc32)
        self._add(path, (header, build, *(later or ())))

    def _add_whole(self, path: Path) -> None:
        descriptor = self._open(path)
        block = Block(0, os.fstat(descriptor).st_size, None)
        self._files.append(CapturedFile(self._name(path), descriptor, (block,)))

    def _add(self, path: Path, blocks: tuple[Block, ...]) -> None:
        self._files.append(CapturedFile(self._name(path), self._open(path), blocks))

    def _add_log(self, info: LayoutInfo) -> int:
        """Add the records behind a layout; return the number of the last one."""
        # Before the log is read: so the log has all these records.
        published = open_published(self._writes.path)
        last = None
        if published is not None and published.is_current:
            last = max(published.sequence, info.sequence)
        sequence = info.sequence
        for first, path in Log(self._writes.path / LOG).files_above(sequence):
            if first > sequence + 1:
                break
            sequence = self._add_records(path, first, sequence, last)
        if last is not None and sequence < last:
            raise lost_write(sequence + 1)
        return sequence

    def _add_records(self, path: Path, first: int, sequence: int, last: int | None) -> int:
        """Add the records of a file from `sequence` + 1 to `last`, the number of the last one."""
        descriptor = self._open(path)
        data = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
        start, offset, first_added = -1, 0, sequence + 1
        for entry in entries(data, first):
            if last is not None and entry.sequence > last:
                break
            if entry.sequence == first_added:
                start = offset
            offset, sequence = entry.end, max(sequence, entry.sequence)
        if start >= 0:
            block = Block(start, offset - start, zlib.crc32(memoryview(data)[start:offset]))
            name = f"{first_added:020d}{path.suffix}"
            self._files.append(CapturedFile(self._name(path.with_name(name)), descriptor, (block,)))
        return sequence

    def _open(self, path: Path) -> int:
        with damage_errors(self._name(path)):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._descriptors.callback(os.close, descriptor)
        return descriptor

    def _name(self, path: Path) -> str:
        return path.relative_to(self._folder.parent).as_posix()
