"""The description of an index in a snapshot, and the names that its files may have.

<index>/SNAPSHOT.json            the description, before the files of the index
<index>/<generation>/...         the files, with the names that they have in a data directory
SHA256                           the digest (`divgrpc.backup.archive`)
"""

import json
import re
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from divgrpc.backup.archive import Member
from divgrpc.errors import IndexDamagedError, OtherFormatError
from divgrpc.parameters import INDEX_NAME

DESCRIPTION: Final = "SNAPSHOT.json"
DESCRIPTION_BYTES_MAX: Final = 64 << 20
_FORMAT: Final = "divgrpc-snapshot"
_FORMAT_VERSION: Final = 1
_UNREADABLE: Final = (
    *(ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError),
)
# No component of a name is hidden, so none is "..".
_FILE_NAME: Final = re.compile(r"[1-9][0-9]*(\.default\.json|(/[A-Za-z0-9_][A-Za-z0-9_.-]*)+)")


@dataclass(frozen=True, slots=True)
class SnapshotEntry:
    """An index in a snapshot.

    name: its name.
    generation: its generation, and `sequence` its last write, 0 if there was none. Answers of the
        restored index equal those of this state, byte for byte.
    bytes: the size of its files.
    """

    name: str
    generation: int
    sequence: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Contents:
    """An index in a snapshot, with its files in the order in which they follow."""

    entry: SnapshotEntry
    files: tuple[Member, ...]

    def to_json(self, version: str) -> bytes:
        """Return the description; `version` is the release that makes the snapshot."""
        document = {"format": _FORMAT, "format_version": _FORMAT_VERSION, "version": version}
        files = [list(file) for file in self.files]
        return (json.dumps(document | asdict(self.entry) | {"files": files}) + "\n").encode()

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        """Parse a description; raises `IndexDamagedError` and `OtherFormatError`."""
        try:
            document: dict[str, Any] = json.loads(text)
            is_snapshot = document["format"] == _FORMAT
            version = int(document["format_version"])
            if is_snapshot and version > _FORMAT_VERSION:
                raise OtherFormatError(
                    f"the snapshot is of format {version}, and this version reads up to"
                    f" {_FORMAT_VERSION}: use release {document['version']} or a later one"
                )
            names = ("name", "generation", "sequence", "bytes")
            entry = SnapshotEntry(*(document[name] for name in names))
            files = tuple(Member(str(name), int(size)) for name, size in document["files"])
            # The number becomes the name of a folder.
            numbers = (entry.generation, entry.sequence, entry.bytes)
            has_numbers = all(type(number) is int and number >= 0 for number in numbers)
            folder = f"{entry.generation}"
            is_safe = all(
                _FILE_NAME.fullmatch(file.name)
                and re.split("[./]", file.name)[0] == folder
                and file.size >= 0
                for file in files
            )
            if is_snapshot and is_safe and has_numbers and INDEX_NAME.fullmatch(entry.name):
                return cls(entry, files)
        except _UNREADABLE as error:
            raise IndexDamagedError("the snapshot is damaged: a description is invalid") from error
        raise IndexDamagedError("the snapshot is damaged: a description has invalid names")
