"""Checks the folder of an index: the pointer to its generation, the generation, and leftovers."""

from dataclasses import replace
from pathlib import Path
from typing import Final

from divgrpc.doctor.files import RESTORE, damage, leftover
from divgrpc.doctor.generations import GenerationCheck, check_generation
from divgrpc.doctor.reports import Finding, Report, Step
from divgrpc.errors import IndexDamagedError, IndexNotFoundError
from divgrpc.storage.build_locks import build_lock_path
from divgrpc.storage.generations import (
    POINTER,
    IndexFolder,
    generation_numbers,
    leftovers,
)
from divgrpc.storage.meter import Meter

_NO_POINTER: Final = (
    "There is no index of this name. A first build was interrupted before it returned, or the file"
    " was lost."
)


def check_index(index: Path, meter: Meter, *, is_locked: bool = False) -> Report:
    """Check the index in a folder; nothing may use it meanwhile.

    is_locked: whether this process has the build lock.
    """
    report = _check_generations(index, meter)
    findings = report.findings
    if report.verdict in ("ok", "repairable"):
        # In a damaged index, these files may be the only ones that still have its points.
        findings += tuple(leftover(path, Step.SWEEP) for path in leftovers(index))
        lock = build_lock_path(index)
        if not is_locked and lock.exists():
            findings += (leftover(lock, Step.SWEEP),)
    relative = [
        replace(finding, file=str(Path(finding.file).relative_to(index.parent)))
        for finding in findings
    ]
    return replace(report, findings=tuple(relative))


def _check_generations(index: Path, meter: Meter) -> Report:
    """Check the current generation, and the others if it is damaged or not known."""
    pointer, numbers = index / POINTER, sorted(generation_numbers(index))
    try:
        current = IndexFolder(index).current()
    except IndexNotFoundError:
        if not numbers:
            return Report(index.name)
        finding = Finding(str(pointer), "is missing", _NO_POINTER, "damaged")
        return _choose(index, finding, _check_all(index, numbers, meter))
    except IndexDamagedError as error:
        finding = damage(pointer, error, "The index does not open.")
        return _choose(index, finding, _check_all(index, numbers, meter))
    if current in numbers:
        check = check_generation(index / str(current), meter)
    else:
        problem = f"names generation {current}, which is missing"
        finding = Finding(str(pointer), problem, f"Its points are lost. {RESTORE}", "damaged")
        check = GenerationCheck((finding,))
    report = Report(index.name, current, check.points, check.sequence, check.findings)
    if all(finding.severity != "damaged" for finding in check.findings):
        return report
    checks = _check_all(index, [number for number in numbers if number != current], meter)
    whole = [number for number, older in checks.items() if older.is_whole]
    return _fall_back(report, whole[-1]) if whole else report


def _check_all(index: Path, numbers: list[int], meter: Meter) -> dict[int, GenerationCheck]:
    return {number: check_generation(index / str(number), meter) for number in numbers}


def _choose(index: Path, finding: Finding, checks: dict[int, GenerationCheck]) -> Report:
    """Choose a generation if CURRENT names none; `finding` is about CURRENT."""
    whole = [number for number, check in checks.items() if check.is_whole]
    if len(whole) == len(checks) == 1:
        (number,) = whole
        repair = f"writes {number} into CURRENT: generation {number} is whole, and the only one"
        finding = replace(finding, severity="repairable", repair=repair, step=Step.POINT)
        return Report(index.name, number, findings=(finding, *checks[number].findings))
    if len(whole) == 1:
        return _fall_back(Report(index.name, findings=(finding,)), whole[0])
    if whole:
        several = " and ".join(map(str, whole))
        advice = f"Generations {several} are whole: write one of them into CURRENT."
        finding = replace(finding, meaning=f"{finding.meaning} {advice}")
    rest = [other for check in checks.values() for other in check.findings]
    return Report(index.name, findings=(finding, *rest))


def _fall_back(report: Report, number: int) -> Report:
    """Return the report with one repair of all findings, the use of generation `number`."""
    repair = f"puts all other generations aside, and uses generation {number}, which is whole"
    findings = [
        replace(finding, severity="lossy", repair=repair, step=Step.FALL_BACK)
        for finding in report.findings
    ]
    return Report(report.name, number, findings=tuple(findings))
