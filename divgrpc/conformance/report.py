"""The results of checks."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Outcome = Literal["passed", "failed", "not supported"]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check.

    name: name of the check.
    title: sentence about what the check requires.
    outcome: "passed", "failed", or "not supported" if the adapter lacks a feature for the check.
    detail: what was measured, what was wrong, or which features are missing.
    """

    name: str
    title: str
    outcome: Outcome
    detail: str


@dataclass(frozen=True, slots=True)
class Report:
    """The results of the checks of one store, in their order. `str()` is a table for people.

    store: name and version of the store.
    results: one result for each check.
    """

    store: str
    results: tuple[CheckResult, ...]

    def __iter__(self) -> Iterator[CheckResult]:
        return iter(self.results)

    def __getitem__(self, name: str) -> CheckResult:
        """Return the result of the check of this name; raises `KeyError`."""
        return {result.name: result for result in self.results}[name]

    @property
    def failures(self) -> tuple[CheckResult, ...]:
        """The results of the checks that failed."""
        return tuple(result for result in self.results if result.outcome == "failed")

    def __str__(self) -> str:
        width = max((len(result.name) for result in self.results), default=0)
        lines = [self.store]
        for result in self.results:
            lines.append(f"  {result.outcome:<13}  {result.name:<{width}}  {result.title}")
            lines.append(f"  {'':<13}  {'':<{width}}  {result.detail}")
        counts = [
            f"{sum(result.outcome == outcome for result in self.results)} {outcome}"
            for outcome in ("passed", "failed", "not supported")
        ]
        return "\n".join([*lines, ", ".join(counts)])
