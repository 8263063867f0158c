"""Compares single files with the entries that describe them, and makes findings about them."""

from pathlib import Path
from typing import Final

from divgrpc.doctor.reports import Finding, Step
from divgrpc.errors import IndexDamagedError
from divgrpc.storage.arrays import (
    HEADER_BYTES,
    ArrayEntry,
    checksum_in_file,
    damage_errors,
    open_array,
)
from divgrpc.storage.meter import Meter

RESTORE: Final = "Restore the folder from a backup, or build the index again."
_LEFTOVER: Final = "An interrupted build, merge or deletion left it behind. No points are lost."


def check_array(
    path: Path, entry: ArrayEntry, meter: Meter, *, grows: bool = False
) -> IndexDamagedError | None:
    """Compare header, length and checksum of an array file with its entry; return the error.

    grows: whether the file may be longer.
    """
    try:
        open_array(path, entry, verify=False, grows=grows)
        check_bytes(path, HEADER_BYTES, entry.bytes, entry.crc32, meter)
    except IndexDamagedError as error:
        return error
    return None


def check_bytes(path: Path, start: int, size: int, crc32: int, meter: Meter) -> None:
    """Raise `IndexDamagedError` unless the bytes of an array file have a checksum."""
    with damage_errors(f"array {path.stem}"):
        checksum = checksum_in_file(path, start, size, meter.add)
    if checksum != crc32:
        raise IndexDamagedError(f"array {path.stem} does not match its checksum")


def is_forbidden(error: Exception) -> bool:
    """Return whether this user may not read a file, which is the cause of `error`."""
    return isinstance(error.__cause__, PermissionError)


def forbidden(path: Path, problem: str) -> Finding:
    """Return a finding about a file that this user may not read."""
    meaning = "This user may not read it. Run the command as the user who wrote the index."
    return Finding(str(path), problem, meaning, "unchecked")


def damage(path: Path, error: Exception, meaning: str) -> Finding:
    """Return a finding about a file that no repair can correct, or that this user may not read.

    meaning: sentences for `Finding.meaning`. Advice to restore the folder is added to them.
    """
    if is_forbidden(error):
        return forbidden(path, str(error))
    return Finding(str(path), str(error), f"{meaning} {RESTORE}", "damaged")


def leftover(path: Path, step: Step) -> Finding:
    """Return a finding about a file or folder that an interrupted build or merge left behind."""
    return Finding(str(path), "is not used", _LEFTOVER, "repairable", "removes it", step)


def count_of(number: int, noun: str) -> str:
    """Return a number with a noun, which is in the singular: "1 write", "2 writes"."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
