"""Runs of seeds: what a seed decides, and the outcome."""

import random
import shutil
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from divgrpc_server.config import Config
from simulation.failpoints import FailpointMap
from simulation.history import ViolationError
from simulation.mutation import Changes
from simulation.runs import Outcome
from simulation.scheduler import DeadlockError
from simulation.serving.faults import draw_faults, draw_focused, draw_stop, failpoints
from simulation.serving.processes import SimulatedChild, drive, kill_at_random, supervise
from simulation.serving.requests import FATAL_INDEX, Answers, Version, build_templates
from simulation.serving.world import INDEX, Action, Options, World

_ACTIONS: Final = ("query",) * 10 + ("burst", "burst", "stream", "stream")


def make_templates(folder: Path) -> None:
    """Build the indexes that runs begin with."""
    build_templates(folder)


def draw_options(seed: int, names: list[str]) -> Options:
    """Return what a seed decides."""
    rng = random.Random(f"serving options {seed}")
    # A source of its own, so that a draw which is added here changes no other.
    later = random.Random(f"later serving options {seed}")
    has_stop = later.random() < 0.2
    config = _draw_config(rng, has_stop=has_stop)
    has_writes = rng.random() < 0.4
    has_faults = rng.random() < 0.8
    return Options(
        config=config,
        share=rng.choice((0.05, 0.2, 0.6)),
        stall_share=rng.choice((0, 0, 0.002)),
        row_seconds=rng.choice((0.0001, 0.0005, 0.004)),
        start_seconds=rng.choice((0.1, 0.3, 2.0)),
        open_seconds=rng.choice((0.001, 0.05, 2.0)),
        # Answers for a front that stands still soon fill it.
        buffer_bytes=min(rng.choice((3_000, 70_000, 212_992)), 3_000 if has_stop else 212_992),
        callers=rng.choice((1, 3, 8)),
        actions=rng.choice((10, 30)),
        poison_share=rng.choice((0, 0.05, 0.2)),
        kills=rng.choice((0, 0, 2, 5)) if has_faults else 0,
        kill_seconds=rng.choice((0.05, 0.5)),
        builds=0 if has_writes else rng.choice((0, 1, 1, 2, 4)),
        writes=rng.choice((5, 20, 60)) if has_writes else 0,
        renewals=rng.choice((0, 1, 3)) if has_writes else 0,
        faults=[
            *(draw_faults(rng, names) if has_faults else ()),
            *([draw_stop(later, names)] if has_stop else ()),
        ],
        fatal_calls=later.choice((0, 0, 2, 4)),
    )


def _draw_config(rng: random.Random, *, has_stop: bool) -> Config:
    return Config(
        workers=rng.choice((1, 2, 3)),
        fronts=rng.choice((1, 1, 2)),
        queue_calls=rng.choice((4, 64, 1024)),
        queue_bytes=rng.choice((100_000, 2**26)),
        # A worker is silent while it waits for a front that stands still.
        worker_silence=20.0 if has_stop else 5.0,
        worker_awake=rng.choice((0.0, 0.001)),
        max_builds=rng.choice((1, 2)),
    )


def _draw_actions(rng: random.Random, later: random.Random, options: Options) -> list[Action]:
    names = [rng.choice(_ACTIONS) for _ in range(options.actions)]
    names = ["poison" if rng.random() < options.poison_share else name for name in names]
    names += ["build"] * options.builds + ["write"] * options.writes
    names += ["renewal"] * options.renewals
    rng.shuffle(names)
    for _ in range(options.fatal_calls):
        names.insert(later.randrange(len(names)), "fatal")
    return [(name, number) for number, name in enumerate(names, 1)]


def run_seed(
    seed: int,
    templates: Path,
    folder: Path,
    places: FailpointMap,
    changes: Changes,
) -> Outcome:
    """Run a seed in an empty folder; `places` are the calls of the code that change the disk.

    changes: options that replace those of the seed.
    """
    outcome = Outcome(seed)
    start = time.process_time()
    names = failpoints()
    options = replace(draw_options(seed, names), **changes)
    if options.focus is not None:
        # A source of its own, so that no other draw differs.
        fault = draw_focused(random.Random(f"focus {seed}"), names, options.focus)
        options = replace(options, faults=[*options.faults, fault])
    root = folder / "root"
    shutil.copytree(templates / "0", root / INDEX)
    if options.fatal_calls:
        shutil.copytree(templates / "0", root / FATAL_INDEX)
    rng = random.Random(f"actions {seed}")
    actions = _draw_actions(rng, random.Random(f"later actions {seed}"), options)
    answers = Answers(templates)
    world = World(seed, options, root, answers=answers, actions=actions, places=places)
    world.published.append(Version(1, 0))
    world.generation_floor = 1
    world.new_child = SimulatedChild
    world.note(str(options))
    try:
        _run(world)
    except (Exception, ViolationError, DeadlockError) as error:  # noqa: BLE001  # it is reported
        lines = traceback.format_exception(error)
        is_violation = isinstance(error, ViolationError)
        outcome.failure = str(error) if is_violation else "".join(lines[-12:])
    outcome.history = [line.replace(str(folder), "") for line in world.lines]
    outcome.counts, outcome.faults = dict(world.faults.counts), list(map(str, world.faults.log))
    outcome.unnamed = {n for n in outcome.counts if n not in names and "simulation" not in n}
    outcome.seconds = time.process_time() - start
    return outcome


def _run(world: World) -> None:
    with pytest.MonkeyPatch.context() as patch:
        world.patch(patch)
        world.process("supervisor", lambda process: supervise(world, process))
        world.process("driver", lambda process: drive(world, process))
        world.process("killer", lambda process: kill_at_random(world, process))
        world.scheduler.run()
