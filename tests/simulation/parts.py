"""The parts of a server that are simulated: the path of writes, and the path of queries."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from simulation import runs
from simulation.failpoints import FailpointMap
from simulation.mutants import MUTANTS
from simulation.mutation import Changes, Mutant
from simulation.runs import Outcome
from simulation.serving import runs as serving
from simulation.serving.faults import failpoints
from simulation.serving.mutants import MUTANTS as SERVING_MUTANTS

# Runs a seed in an empty folder, given the folder of the templates.
Run = Callable[[int, Path, Path], Outcome]


@dataclass(frozen=True)
class Part:
    """One part.

    mutants: its known defects, by name.
    failpoints: returns the names of the failpoints in the code as it is loaded.
    make_templates: fills a folder with what runs begin with.
    prepare: returns what runs a seed in the code as it is loaded, given options that every seed has
        instead of those it draws.
    """

    name: str
    mutants: Mapping[str, Mutant]
    failpoints: Callable[[], list[str]]
    make_templates: Callable[[Path], None]
    prepare: Callable[[Changes], Run]


def _prepare(
    run_seed: Callable[[int, Path, Path, FailpointMap, Changes], Outcome], changes: Changes
) -> Run:
    places = FailpointMap()

    def run(seed: int, templates: Path, folder: Path) -> Outcome:
        return run_seed(seed, templates, folder, places, changes)

    return run


PARTS: Final = {
    part.name: part
    for part in (
        Part(
            "writes",
            MUTANTS,
            lambda: FailpointMap().names,
            runs.make_templates,
            partial(_prepare, runs.run_seed),
        ),
        Part(
            "serving",
            SERVING_MUTANTS,
            failpoints,
            serving.make_templates,
            partial(_prepare, serving.run_seed),
        ),
    )
}
