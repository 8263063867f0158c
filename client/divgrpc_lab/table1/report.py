"""All that a run of Table 1 has found, with the verdicts that follow."""

from dataclasses import dataclass, field
from typing import Any

from divgrpc_lab.experiment import Facts
from divgrpc_lab.table1 import claims, gain
from divgrpc_lab.table1.beside import Coded, Growth, Spread
from divgrpc_lab.table1.gain import Kept
from divgrpc_lab.table1.printed import printed
from divgrpc_lab.table1.rows import FAMILIES, Row
from divgrpc_lab.table1.times import Timed
from divgrpc_lab.verdicts import Verdict


@dataclass
class Report:
    """All that a run has found: facts of the run, `data` of each set, and the measurements."""

    facts: Facts = field(default_factory=Facts)
    data: list[dict[str, str]] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    coded: list[Coded] = field(default_factory=list)
    spreads: list[Spread] = field(default_factory=list)
    growths: list[Growth] = field(default_factory=list)
    times: list[Timed] = field(default_factory=list)

    @property
    def kept(self) -> list[Kept]:
        """What greedy keeps of the gain in h."""
        return gain.gain_shares(self.rows)

    @property
    def verdicts(self) -> list[Verdict]:
        """What the run says of each claim, the project's own targets first."""
        kept = self.kept
        targets = [
            judge(kept, family)
            for judge in (gain.enough_is_kept, gain.hundred_times)
            for family in FAMILIES
        ]
        return [*targets, *claims.everything(self.rows, self.coded, self.spreads, self.growths)]

    def plain(self) -> dict[str, Any]:
        """Return everything for JSON, the paper's table beside it."""
        return {
            "facts": self.facts.values,
            "data": self.data,
            "rows": [row.plain() for row in self.rows],
            "gain": [kept.plain() for kept in self.kept],
            "claims": self.verdicts,
            "bits_and_tables": [
                {"n_bits": c.n_bits, "n_tables": c.n_tables, **c.row.plain()} for c in self.coded
            ],
            "uniformity": self.spreads,
            "growth": self.growths,
            "times": self.times,
            "paper": [
                {"method": method, "family": family, "k": k, **cell._asdict()}
                for (method, family, k), cell in printed().items()
            ],
        }
