"""The results of the check of an index."""

from dataclasses import dataclass
from enum import IntEnum, auto
from typing import Literal, TypeAlias

Severity: TypeAlias = Literal["repairable", "lossy", "damaged", "unchecked"]
Verdict: TypeAlias = Literal["ok", "repairable", "damaged", "unchecked"]


class Step(IntEnum):
    """A step of a repair; steps are taken in this order."""

    POINT = auto()  # write the number of the generation into CURRENT
    FALL_BACK = auto()  # put the current generation aside, and use an older one
    SWEEP = auto()  # remove the files of interrupted builds
    DROP_DEFAULTS = auto()  # put the defaults file aside
    DROP_WRITES = auto()  # put all writes aside
    REBUILD = auto()  # make the layout again, from the build and the log
    SWEEP_WRITES = auto()  # remove the files of an interrupted first write
    REWRITE_LOG = auto()  # keep the records of the log that can be applied, and put the files aside
    REOPEN = auto()  # let a writer recover the index


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem of an index.

    file: the file or folder, relative to the data folder.
    problem: the damage, without the name of the file.
    meaning: the consequences for the points and for the calls of users.
    severity: "repairable" if a repair loses nothing, "lossy" if a repair loses points, writes or
        defaults, "damaged" if there is no repair, and "unchecked" if this version or this user
        cannot read the file.
    repair: the effect of the repair; empty if there is none.
    step: the step of the repair.
    """

    file: str
    problem: str
    meaning: str
    severity: Severity
    repair: str = ""
    step: Step | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """The state of an index.

    generation, points, sequence: number of its generation, of its points, and of its last write;
        None if it is not known.
    findings: its problems.
    repairs: phrases about the steps of the repairs before this check.
    """

    name: str
    generation: int | None = None
    points: int | None = None
    sequence: int | None = None
    findings: tuple[Finding, ...] = ()
    repairs: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """Say "ok", or "repairable" if a repair loses nothing; see `Finding.severity`."""
        severities = {finding.severity for finding in self.findings}
        if severities & {"lossy", "damaged"}:
            return "damaged"
        if "unchecked" in severities:
            return "unchecked"
        return "repairable" if severities else "ok"

    def is_curable(self, *, accept_loss: bool) -> bool:
        """Whether a repair is allowed to correct every problem."""
        curable = {"repairable", "lossy"} if accept_loss else {"repairable"}
        return bool(self.findings) and all(f.severity in curable for f in self.findings)
