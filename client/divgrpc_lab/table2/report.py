"""All that a run of Table 2 has found: the page and the JSON are made from it."""

from dataclasses import dataclass, field
from typing import Any

from divgrpc_lab.experiment import Facts
from divgrpc_lab.table2 import claims
from divgrpc_lab.table2.bench import AtEpsilon
from divgrpc_lab.table2.printed import PRINTED
from divgrpc_lab.table2.rows import LabelRow
from divgrpc_lab.table2.times import TimedLabels
from divgrpc_lab.verdicts import Verdict


@dataclass
class Report:
    """All that a run has found: facts of the run, `data` of each set, and the measurements."""

    facts: Facts = field(default_factory=Facts)
    data: list[dict[str, str]] = field(default_factory=list)
    rows: list[LabelRow] = field(default_factory=list)
    curves: list[AtEpsilon] = field(default_factory=list)
    times: list[TimedLabels] = field(default_factory=list)

    @property
    def verdicts(self) -> list[Verdict]:
        """What the run says of each claim."""
        return claims.everything(self.rows, self.times)

    def plain(self) -> dict[str, Any]:
        """Return everything but the figures of each document, for JSON."""
        return {
            "facts": self.facts.values,
            "data": self.data,
            "rows": [row.plain() for row in self.rows],
            "claims": self.verdicts,
            "epsilon": self.curves,
            "times": self.times,
            "paper": [
                {"method": name, **row._asdict(), "most_h": row.most}
                for name, row in PRINTED.items()
            ],
        }
