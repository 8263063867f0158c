"""A tar file whose last member holds the SHA-256 digest of all bytes before it.

Programs such as `tar` list and unpack it. `ArchiveReader` is strict: it accepts no file that lacks
a byte, has one more, or has another one. Both classes go through the file once, so it may be a
pipe.
"""

import hashlib
import tarfile
from collections.abc import Iterable, Iterator
from typing import BinaryIO, Final, NamedTuple

from divgrpc.errors import IndexDamagedError
from divgrpc.storage.arrays import full_disk_errors

_DIGEST_NAME: Final = "SHA256"
_RECORD_BYTES: Final = tarfile.BLOCKSIZE
_END: Final = bytes(2 * _RECORD_BYTES)
_READ_BYTES: Final = 1 << 20
_NAME_BYTES_MAX: Final = 4_096


class Member(NamedTuple):
    """The name and the size in bytes of a file in an archive."""

    name: str
    size: int


def _header(member: Member) -> bytes:
    """Return the header; the time is always the same, so that equal files make equal archives."""
    info = tarfile.TarInfo(member.name)
    info.size = member.size
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "strict")


def _trailer(digest: str) -> bytes:
    """Return all bytes from the header of the last member on."""
    content = f"{digest}\n".encode()
    member = Member(_DIGEST_NAME, len(content))
    return _header(member) + content + _padding(len(content)) + _END


def _padding(size: int) -> bytes:
    return bytes(-size % _RECORD_BYTES)


def _parse(header: bytes) -> tarfile.TarInfo:
    try:
        return tarfile.TarInfo.frombuf(header, "utf-8", "strict")
    except (tarfile.HeaderError, ValueError) as error:
        raise _damaged() from error


def _damaged() -> IndexDamagedError:
    return IndexDamagedError("the file is not a snapshot, or it is damaged")


class ArchiveWriter:
    """Writes the members of an archive one after another."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._digest = hashlib.sha256()

    def add(self, member: Member, blocks: Iterable[bytes]) -> None:
        """Write a member from blocks of bytes; raises `StorageFullError`."""
        self._write(_header(member))
        for block in blocks:
            self._write(block)
        self._write(_padding(member.size))

    def finish(self) -> None:
        """Write the digest and the end of the archive; raises `StorageFullError`."""
        with full_disk_errors("the snapshot"):
            self._stream.write(_trailer(self._digest.hexdigest()))

    def _write(self, data: bytes) -> None:
        self._digest.update(data)
        with full_disk_errors("the snapshot"):
            self._stream.write(data)


class ArchiveReader:
    """Reads the members of an archive one after another.

    All methods raise `IndexDamagedError`. What was read is only certain at the end, when
    `read_member` has returned None.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._digest = hashlib.sha256()

    def read_member(self) -> Member | None:
        """Return the next member, or None at the end, where the digest is compared.

        The bytes of the member before must have been read.
        """
        digest = self._digest.hexdigest()
        header = self._read(_RECORD_BYTES)
        info = _parse(header)
        name = info.name
        if info.type == tarfile.GNUTYPE_LONGNAME:
            # A member with the name comes before the member.
            size = min(info.size, _NAME_BYTES_MAX)
            data = self._read(size + -size % _RECORD_BYTES)
            header += data + self._read(_RECORD_BYTES)
            info = _parse(header[-_RECORD_BYTES:])
            name = data[:size].rstrip(b"\0").decode("utf-8", "replace")
        member = Member(name, info.size)
        if name == _DIGEST_NAME:
            self._check_trailer(header, _trailer(digest))
            return None
        if header != _header(member):
            raise _damaged()
        return member

    def read_blocks(self, member: Member) -> Iterator[bytes]:
        """Yield the bytes of the member that `read_member` has returned."""
        left = member.size
        while left > 0:
            block = self._read(min(left, _READ_BYTES))
            left -= len(block)
            yield block
        if any(self._read(-member.size % _RECORD_BYTES)):
            raise IndexDamagedError("the snapshot is damaged: bytes between files were changed")

    def _check_trailer(self, header: bytes, trailer: bytes) -> None:
        # One byte more, to see that nothing follows.
        rest = self._take(len(trailer) - len(header) + 1)
        if header + rest != trailer:
            raise IndexDamagedError(
                "the snapshot is damaged: its bytes do not match its SHA-256 digest"
            )

    def _read(self, size: int) -> bytes:
        data = self._take(size)
        if len(data) < size:
            raise IndexDamagedError("the snapshot ends early: copy the whole file again")
        self._digest.update(data)
        return data

    def _take(self, size: int) -> bytes:
        """Read so many bytes, or fewer at the end of the file."""
        blocks = []
        # A pipe may return fewer bytes than were asked for.
        while size > 0 and (block := self._stream.read(size)):
            blocks.append(block)
            size -= len(block)
        return b"".join(blocks)
