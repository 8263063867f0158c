"""What a run of Table 1 has found, and the JSON in which it is kept to be said and drawn again."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from divgrpc_lab.table1 import claims, gain
from divgrpc_lab.table1.beside import Coded, Growth, Spread
from divgrpc_lab.table1.claims import Verdict
from divgrpc_lab.table1.gain import Kept
from divgrpc_lab.table1.printed import printed
from divgrpc_lab.table1.rows import FAMILIES, Row
from divgrpc_lab.table1.times import Timed


@dataclass
class Report:
    """All that a run has found: `facts` of the run, `data` of each set, and the measurements."""

    facts: dict[str, str]
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
        """What the run says of each claim, our own targets first."""
        kept = self.kept
        ours = [
            judge(kept, family)
            for judge in (gain.enough_is_kept, gain.hundred_times)
            for family in FAMILIES
        ]
        said = claims.everything(self.rows, self.coded, self.spreads, self.growths)
        return [*ours, *said]

    def plain(self) -> dict[str, Any]:
        """Return everything for JSON; `gain`, `claims` and `paper` follow from the rest."""
        most: dict[str, list[int]] = {}
        for row in self.rows:
            most[row.data] = max(most.get(row.data, []), row.categories.tolist(), key=len)
        told = {
            "facts": self.facts,
            "data": self.data,
            "categories": most,
            "rows": [row.plain() for row in self.rows],
            "gain": [_plain_gain(each) for each in self.kept],
            "claims": [asdict(each) for each in self.verdicts],
            "bits_and_tables": [
                {"n_bits": c.n_bits, "n_tables": c.n_tables, **c.row.plain()} for c in self.coded
            ],
            "uniformity": [asdict(each) for each in self.spreads],
            "growth": [
                asdict(each) | {"exponent": each.exponent._asdict()} for each in self.growths
            ],
            "times": [asdict(each) for each in self.times],
            "paper": [
                {"method": method, "family": family, "k": k, **cell._asdict()}
                for (method, family, k), cell in printed().items()
            ],
        }
        finite: dict[str, Any] = _finite(told)
        return finite

    def write(self, path: Path) -> None:
        """Write what `plain` returns."""
        path.write_text(json.dumps(self.plain(), allow_nan=False) + "\n", encoding="utf-8")


def _plain_gain(kept: Kept) -> dict[str, Any]:
    own = kept.row
    return {
        "data": own.data,
        "k": own.k,
        "row": claims.named(own),
        "h": own.h.value,
        "nearest": kept.nearest,
        "best": claims.named(kept.best),
        "best_h": kept.best.h.value,
        "share": None if kept.share is None else kept.share._asdict(),
        "than_best": kept.than_best,
        "than_greedy": kept.than_greedy,
        "than_exact": kept.than_exact,
    }


def _finite(told: Any) -> Any:  # whatever JSON may hold
    """Return it with null for NaN and a string for infinity, which JSON lacks."""
    if isinstance(told, Mapping):
        return {name: _finite(each) for name, each in told.items()}
    if isinstance(told, list | tuple):
        return [_finite(each) for each in told]
    if isinstance(told, float) and not math.isfinite(told):
        return None if math.isnan(told) else str(told)
    return told
