"""Checks the files of the writes to a generation, and applies their log."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

from divgrpc import compilation
from divgrpc.doctor.files import (
    check_array,
    check_bytes,
    count_of,
    damage,
    is_forbidden,
    leftover,
)
from divgrpc.doctor.logs import check_log
from divgrpc.doctor.reports import Finding, Step
from divgrpc.errors import IndexDamagedError
from divgrpc.storage.arrays import HEADER_BYTES
from divgrpc.storage.generations import Generation
from divgrpc.storage.layouts import LayoutInfo
from divgrpc.storage.manifest import Manifest
from divgrpc.storage.meter import Meter
from divgrpc.storage.published import (
    LAYOUT,
    LOG,
    PUBLISHED,
    WRITES,
    had_layout,
    open_published,
)
from divgrpc.writes.layout import WritesFolder
from divgrpc.writes.records import unpack
from divgrpc.writes.replica import arrays_without
from divgrpc.writes.state import State

_REBUILT: Final = "makes the files of all merges again from the build and the log"
_DROPPED: Final = "puts all writes aside, and goes back to the last build, retraining or vacuum"


@dataclass(slots=True)
class WritesCheck:
    """The state of the writes to a generation.

    has_writes: whether there were writes.
    points, sequence: number of points, and of the last write; None if they are not known.
    """

    findings: list[Finding] = field(default_factory=list)
    has_writes: bool = True
    points: int | None = None
    sequence: int | None = None


def check_writes(
    folder: Path, manifest: Manifest, generation: Generation | None, meter: Meter
) -> WritesCheck:
    """Check the writes to the generation in `folder`; it is None if its files are damaged."""
    if not (folder / WRITES).is_dir():
        return WritesCheck(has_writes=False)
    return _Checker(folder, manifest, generation, meter).run()


class _Checker:
    def __init__(
        self, folder: Path, manifest: Manifest, generation: Generation | None, meter: Meter
    ) -> None:
        self._writes = WritesFolder(folder)
        self._folder = folder
        self._files = self._writes.point_files(manifest).sizes()
        self._manifest, self._generation, self._meter = manifest, generation, meter
        self._outcome = WritesCheck()
        self._published = open_published(self._writes.path)
        numbers = {} if self._published is None else self._published.numbers
        self._acknowledged = numbers.get("sequence", 0)
        # Number of the last write that is merged; 0 if it is not known.
        self._merged = 0

    def run(self) -> WritesCheck:
        """Check all files."""
        try:
            info = self._writes.read_info()
        except IndexDamagedError as error:
            self._report_broken(self._writes.path / LAYOUT, error)
            return self._outcome
        if info is None:
            self._check_unwritten()
            return self._outcome
        self._merged = info.sequence
        broken = self._check_files(info)
        self._add_leftovers(Step.REOPEN)
        log = check_log(self._writes.log, info.sequence, self._published, self._manifest)
        self._outcome.findings += log.findings
        # Applying records to damaged arrays could end the process.
        if self._generation is not None and not broken and log.is_readable:
            self._replay(self._generation, info)
        return self._outcome

    def _check_unwritten(self) -> None:
        """Check a folder without a layout, which a first write that was interrupted leaves."""
        has_writes = had_layout(self._writes.path)
        self._outcome.has_writes = has_writes
        if has_writes:
            error = IndexDamagedError("the layout is missing")
            self._report_broken(self._writes.path / LAYOUT, error)
        else:
            self._add_leftovers(Step.SWEEP_WRITES)

    def _add_leftovers(self, step: Step) -> None:
        paths = [*self._writes.leftovers(), *self._writes.log.drafts()]
        self._outcome.findings += [leftover(path, step) for path in paths]

    def _check_files(self, info: LayoutInfo) -> bool:
        """Check the arrays of the layout; return whether any of them is damaged."""
        count = len(self._outcome.findings)
        for folder, entries in self._writes.folders(info).items():
            for name, entry in entries.items():
                file = folder / f"{name}.npy"
                if (error := check_array(file, entry, self._meter)) is not None:
                    self._report_broken(file, error)
        for file_number, (file, item_bytes) in enumerate(self._files.items()):
            self._check_vectors(info, file, item_bytes, file_number)
        return len(self._outcome.findings) > count

    def _check_vectors(
        self, info: LayoutInfo, file: Path, item_bytes: int, file_number: int
    ) -> None:
        """Check the length of a file of `point_files`, and the items that are merged."""
        items, items_max = info.items
        size = file.stat().st_size if file.exists() else 0
        if size < HEADER_BYTES + item_bytes * items:
            if self._generation is not None:
                self._report_broken(file, IndexDamagedError("is too short"))
            return
        for part in info.parts:
            first, count = part.items
            start, crc32 = HEADER_BYTES + item_bytes * first, part.checksums[file_number]
            try:
                check_bytes(file, start, item_bytes * count, crc32, self._meter)
            except IndexDamagedError as error:
                rows = f"{error} in rows {part.first} to {part.first + part.rows - 1}"
                self._report_broken(file, IndexDamagedError(rows))
        if size < HEADER_BYTES + item_bytes * items_max:
            self._report_recoverable(
                file,
                "is shorter than the layout needs",
                "The index does not open. The vectors that the file lacks are in the log.",
                "makes the file longer, and takes the vectors from the log",
            )

    def _report_broken(self, file: Path, error: Exception) -> None:
        """Add a finding about a file that merges have written."""
        name, problem = str(file), str(error)
        if self._generation is None or is_forbidden(error):
            finding = damage(file, error, "The writes to the index do not open.")
            self._outcome.findings.append(finding)
            return
        is_optional = self._generation.manifest.parameters.vectors_optional
        if self._has_whole_log and not is_optional:
            meaning = "The index does not open, or lacks writes. The log has all writes."
            finding = Finding(name, problem, meaning, "repairable", _REBUILT, Step.REBUILD)
        elif self._has_whole_log:
            meaning = (
                "The index does not open, or lacks writes. The log has all writes, but not the"
                " points without a vector that the last build had. A repair loses those that were"
                " not written again. A backup may have them."
            )
            finding = Finding(name, problem, meaning, "lossy", _REBUILT, Step.REBUILD)
        else:
            last = max(self._acknowledged, self._merged)
            writes = f"all writes, up to number {last:,}," if last else "all writes"
            meaning = (
                "The index does not open, or lacks writes. The log lacks older writes."
                f" A repair loses {writes} since the last build, retraining or vacuum"
                f"{', and all points without a vector' * is_optional}. A backup may have more."
            )
            finding = Finding(name, problem, meaning, "lossy", _DROPPED, Step.DROP_WRITES)
        self._outcome.findings.append(finding)

    @cached_property
    def _has_whole_log(self) -> bool:
        """Whether the log has all writes since the build.

        A vacuum or a retraining of written points begins a log with a later record than 1.
        """
        files = self._writes.log.files()
        if not files:
            # The first write makes the layout, and may then be refused.
            is_certain = self._published is not None and self._published.is_certain
            return is_certain and not max(self._acknowledged, self._merged)
        if files[0][0] != 1:
            return False
        last = 0
        try:
            for sequence, _ in self._writes.log.read(0):
                last = sequence
        except (IndexDamagedError, OSError):
            return False
        return last >= max(self._acknowledged, self._merged)

    def _replay(self, generation: Generation, info: LayoutInfo) -> None:
        """Apply the log, and compare the state with the published numbers."""
        compilation.ensure()
        state = State(generation, self._writes.open_layout(generation, verify=False))
        numbers = self._numbers_at(state)
        # The number of writes that each array of vectors lacks.
        writes_missing: dict[str, int] = {}
        try:
            for sequence, body in self._writes.log.read(info.sequence):
                record = unpack(body, generation.manifest.attributes)
                if record.rows is not None and not state.has_room(record.rows):
                    raise ValueError("no room")  # noqa: TRY301  # as any error of `apply`
                for name in arrays_without(state, record):
                    writes_missing[name] = writes_missing.get(name, 0) + 1
                state.apply(sequence, record)
                numbers |= self._numbers_at(state)
        except Exception as error:  # noqa: BLE001  # any error of a record that cannot be applied
            meaning = f"The index does not open ({error!r:.200})."
            problem = IndexDamagedError(f"record {state.sequence + 1} cannot be applied")
            self._outcome.findings.append(damage(self._writes.path / LOG, problem, meaning))
            return
        for name, count in writes_missing.items():
            self._report_recoverable(
                self._folder / f"{name}.npy",
                f"lacks vectors of {count_of(count, 'write')} of the log",
                "A loss of power kept them from the disk. The log has them, and nothing is lost.",
                "takes them from the log",
            )
        if state.sequence == self._acknowledged:
            numbers |= {"layout": info.number, "unmerged": state.rows_unmerged}
        self._check_published(info, numbers)
        self._outcome.points, self._outcome.sequence = state.live, state.sequence

    def _numbers_at(self, state: State) -> dict[str, int]:
        """Return the numbers that PUBLISHED must have if it names the last write of `state`."""
        is_last = state.sequence == self._acknowledged
        numbers = {
            "live": state.live,
            "rows": state.rows,
            "nonzeros": state.nonzeros,
            "absent": state.live - state.searched,
        }
        return numbers if is_last else {}

    def _check_published(self, info: LayoutInfo, numbers: dict[str, int]) -> None:
        """Compare the numbers in PUBLISHED with `numbers`, which follow from the log."""
        file = self._writes.path / PUBLISHED
        meaning = "A server may show wrong counts, or refuse calls. No points are lost."
        repair = "writes the file again"
        if self._published is None:
            self._report_recoverable(file, "is missing or too short", meaning, repair)
        elif self._published.is_current:
            wrong = {
                name: (self._published.numbers[name], number)
                for name, number in numbers.items()
                if self._published.numbers[name] != number
            }
            if wrong:
                pairs = [f"{name} is {a} and must be {b}" for name, (a, b) in wrong.items()]
                self._report_recoverable(
                    file, f"does not fit the log: {', '.join(pairs)}", meaning, repair
                )
            elif not numbers and self._acknowledged < info.sequence:
                problem = f"says that write {self._acknowledged} was the last, before the merge"
                self._report_recoverable(file, problem, meaning, repair)

    def _report_recoverable(self, file: Path, problem: str, meaning: str, repair: str) -> None:
        """Add a finding about a file that a writer corrects when it opens the index."""
        finding = Finding(str(file), problem, meaning, "repairable", repair, Step.REOPEN)
        self._outcome.findings.append(finding)
