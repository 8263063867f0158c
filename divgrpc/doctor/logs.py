"""Checks the files of a log, and says which writes are lost if records are damaged."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from divgrpc.doctor.files import count_of, forbidden
from divgrpc.doctor.reports import Finding, Severity, Step
from divgrpc.errors import IndexDamagedError
from divgrpc.storage.manifest import Manifest
from divgrpc.storage.published import Published
from divgrpc.writes.log import Entry, Log, end_of, entries_behind
from divgrpc.writes.records import unpack


@dataclass(frozen=True, slots=True)
class LogCheck:
    """The state of a log; `is_readable` says whether all of its records can be applied."""

    findings: tuple[Finding, ...] = ()
    is_readable: bool = True


def check_log(log: Log, after: int, published: Published | None, manifest: Manifest) -> LogCheck:
    """Check the records of a log above `after`, the last one that was merged."""
    return _Checker(log, after, published, manifest).run()


def records_to_keep(records: Mapping[int, Entry], after: int) -> list[Entry]:
    """Return all of the `valid_records` above `after` up to the first that is missing."""
    kept_records: list[Entry] = []
    while (entry := records.get(after + 1 + len(kept_records))) is not None:
        kept_records.append(entry)
    return kept_records


def valid_records(log: Log) -> dict[int, Entry]:
    """Return all valid records of a log by their numbers, also those behind damaged ones.

    A file that the disk cannot read has none. Raises `PermissionError`.
    """
    records: dict[int, Entry] = {}
    for first, path in log.files():
        behind = 0
        for offset, entry in entries_behind(_read(path), 0, first):
            # The body of a record may look like a record.
            if offset >= behind:
                records[entry.sequence] = entry
                behind = entry.end
    return records


def _read(path: Path) -> bytes:
    """Return the bytes of a file; none if the disk cannot read it."""
    try:
        return path.read_bytes()
    except PermissionError:
        raise
    except OSError:
        return b""


def _rewritable(file: Path, problem: str, meaning: str, severity: Severity, repair: str) -> Finding:
    """Return a finding about a log that a repair writes again."""
    return Finding(str(file), problem, meaning, severity, repair, Step.REWRITE_LOG)


def _repair_to(last: int) -> str:
    return f"puts the files of the log aside, and makes a log that ends with write {last:,}"


class _Checker:
    def __init__(
        self, log: Log, after: int, published: Published | None, manifest: Manifest
    ) -> None:
        self._log, self._after, self._manifest = log, after, manifest
        self._acknowledged = 0 if published is None else published.numbers["sequence"]
        self._is_current = published is not None and published.is_current

    def run(self) -> LogCheck:
        """Check all files."""
        last = self._after
        try:
            for sequence, _ in self._log.read(self._after):
                last = sequence
        except PermissionError:
            finding = forbidden(self._log.folder, "cannot be read")
            return LogCheck((finding,), is_readable=False)
        except (IndexDamagedError, OSError) as error:
            return LogCheck((self._explain(error),), is_readable=False)
        end_finding = self._check_end(last)
        return LogCheck(() if end_finding is None else (end_finding,))

    def _check_end(self, last: int) -> Finding | None:
        """Check the bytes behind `last`, the last record that is whole."""
        files = self._log.files()
        path = files[-1][1] if files else self._log.folder
        end = end_of(path.read_bytes(), files[-1][0]) if files else None
        if self._acknowledged > last:
            problem = f"ends with write {last:,}, and PUBLISHED says that there were more"
            return _rewritable(path, problem, self._lost(last), "lossy", _repair_to(last))
        if end is None or not end.rest:
            return None
        if end.sequence < self._after:
            problem = f"record {end.sequence + 1:,} is damaged"
            meaning = "It was merged, so nothing is lost."
            repair = "puts the files of the log aside"
            return _rewritable(path, problem, meaning, "repairable", repair)
        problem = f"record {end.sequence + 1:,} was not written in full ({end.rest:,} bytes)"
        meaning = "A crash interrupted this write before it returned. Nothing else is lost."
        repair = "overwrites it with zeros"
        return Finding(str(path), problem, meaning, "repairable", repair, Step.REOPEN)

    def _explain(self, error: Exception) -> Finding:
        """Say which records are lost if some between others are damaged."""
        records = valid_records(self._log)
        kept_records = records_to_keep(records, self._after)
        last = self._after + len(kept_records)
        behind = [entry for number, entry in sorted(records.items()) if number > last]
        path, problem = self._place_of_damage(error)
        if not behind and self._acknowledged <= last:
            meaning = "All damaged records were merged. No points and no writes are lost."
            return _rewritable(path, problem, meaning, "repairable", _repair_to(last))
        before = f"{count_of(len(kept_records), 'write')} ({self._points(kept_records)})"
        after = f"{count_of(len(behind), 'write')} ({self._points(behind)})"
        meaning = (
            f"The index does not open. Between the last merge and the damage, the log has {before},"
            f" which can be kept. Behind the damage it has {after}, which cannot be applied."
        )
        if last < self._acknowledged:
            meaning += f" {self._lost(last)}"
        return _rewritable(path, problem, meaning, "lossy", _repair_to(last))

    def _place_of_damage(self, error: Exception) -> tuple[Path, str]:
        """Return the file that ends too early, and its problem."""
        files = self._log.files_above(self._after)
        expected = self._after + 1
        if files[0][0] > expected:
            return self._log.folder, f"lacks the file with record {expected:,}"
        for place, (first, path) in enumerate(files):
            try:
                end = end_of(path.read_bytes(), first)
            except IndexDamagedError as damage:
                return path, str(damage)
            except OSError as unread:
                return path, f"cannot be read ({unread.strerror})"
            is_last = place + 1 == len(files)
            if not is_last and files[place + 1][0] > end.sequence + 1:
                return path, f"record {end.sequence + 1:,} is damaged or missing"
        return self._log.folder, str(error)

    def _points(self, records: list[Entry]) -> str:
        count = 0
        for entry in records:
            record = unpack(entry.body, self._manifest.attributes)
            count += len(record.removed) if record.rows is None else len(record.rows)
        return count_of(count, "point")

    def _lost(self, last: int) -> str:
        """Say which writes are lost if the log ends with a record."""
        first, end = last + 1, self._acknowledged
        several = f"write {first:,} was" if first == end else f"writes {first:,} to {end:,} were"
        text = f"PUBLISHED says that {several} made: they are lost, unless a backup has them."
        if not self._is_current:
            text += " A loss of power may do this, if the durability is not sync."
        return text
