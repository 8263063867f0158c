"""Faults between processes: full buffers, lost descriptors, delays, and the death of a process.

A failpoint is a call in the code under test that sends or receives something, or makes a memory
file, and is named after its place: `front.pool:Pool._send:send`.
"""

import ast
import importlib
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from simulation.failpoints import source_of
from simulation.faults import Focus
from simulation.scheduler import Process, Scheduler

# Kill: the process ends before the call. Delay, stop: it stands still for a while, or for longer
# than other processes wait for it. Full: the buffer of the socket is full. Lost: a descriptor does
# not arrive. Error: no descriptor is free.
Kind = Literal["kill", "delay", "stop", "full", "lost", "error"]
_KINDS_OF: Final[dict[str, tuple[Kind, ...]]] = {
    "send": ("kill", "delay", "full"),
    "send_waiting": ("kill", "delay"),
    "receive": ("kill", "delay", "lost"),
    "memfd_create": ("kill", "error"),
}
_ALIASES: Final = {"send_async": "send", "receive_async": "receive", "peek": "receive"}
_MODULES: Final = (
    *("front.pool", "front.jobs", "worker.process", "worker.front_link", "supervisor.child"),
    "builder.uploads",
    *("builder.process", "ipc.packets", "ipc.job_calls", "ipc.progress", "writer.renewals"),
)
_PACKAGE: Final = "divgrpc_server."
# What sends and receives, as the code names it.
_LINKS: Final = ("link", "_link", "channel", "_channel", "_control", "job_frames")
_DELAYS_SECONDS: Final = (0.0005, 0.02, 0.5, 3.0)
# A worker waits 10 s until a front reads an answer.
_STOPS_SECONDS: Final = (15.0, 40.0)


@dataclass
class Fault:
    """A fault that happens once: at the call `count` of a failpoint."""

    name: str
    kind: Kind
    count: int
    seconds: float


class Record(NamedTuple):
    """A fault that has happened: when, and in what process."""

    time: float
    kind: Kind
    name: str
    process: str


def failpoints() -> list[str]:
    """Return the names of all failpoints."""
    return sorted({name for module in _MODULES for name in _names_of(module)})


def _names_of(name: str) -> Iterator[str]:
    module = importlib.import_module(_PACKAGE + name)
    for scope, call in _calls(ast.parse(source_of(module))):
        target = ast.unparse(call.func).split(".")
        if len(target) < 2:
            continue
        operation = _ALIASES.get(target[-1], target[-1])
        is_memory = target == ["os", "memfd_create"]
        if is_memory or (operation in _KINDS_OF and target[-2] in _LINKS):
            yield f"{name}:{scope}:{operation}"


def _calls(tree: ast.AST, scope: str = "") -> Iterator[tuple[str, ast.Call]]:
    for node in ast.iter_child_nodes(tree):
        inside = scope
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            inside = f"{scope}.{node.name}".strip(".")
        if isinstance(node, ast.Call):
            yield scope, node
        yield from _calls(node, inside)


def draw_faults(rng: random.Random, names: list[str]) -> list[Fault]:
    """Return some faults at random failpoints."""
    faults = []
    for _ in range(rng.choice((0, 1, 2, 3, 5, 8))):
        name = rng.choice(names)
        kinds = _KINDS_OF[name.rpartition(":")[2]]
        # The death of the supervisor ends all processes.
        kind = rng.choice([k for k in kinds if k != "kill" or not name.startswith("supervisor")])
        faults.append(
            Fault(name, kind, rng.choice((1, 1, 2, 3, 5, 8, 20)), rng.choice(_DELAYS_SECONDS))
        )
    return faults


def draw_stop(rng: random.Random, names: list[str]) -> Fault:
    """Return a fault that lets a front stand still."""
    name = rng.choice([name for name in names if name.startswith("front.pool")])
    return Fault(name, "stop", rng.choice((5, 20, 50)), rng.choice(_STOPS_SECONDS))


def draw_focused(rng: random.Random, names: list[str], focus: Focus[Kind]) -> Fault:
    """Return the fault of a focus."""
    name, kind, count = focus.draw(rng, names)
    return Fault(name, kind, count, rng.choice(_DELAYS_SECONDS))


class Faults:
    """The faults of one run.

    counts: how often each failpoint was reached.
    log: the faults that have happened.
    """

    def __init__(self, scheduler: Scheduler, faults: list[Fault]) -> None:
        self._scheduler, self._waiting = scheduler, faults
        self.counts: Counter[str] = Counter()
        self.log: list[Record] = []
        self.on_kill: Callable[[Process], None] = lambda _: None

    def stop(self) -> None:
        """Let no more faults happen."""
        self._waiting.clear()

    def call(self, operation: str, depth: int = 0) -> Kind | None:
        """Let other tasks run, and perhaps something fail at the caller of the caller.

        Returns the kind of a fault that the caller has to show.
        """
        task = self._scheduler.task
        if task is None:
            return None
        frame = sys._getframe(2 + depth)
        module = str(frame.f_globals["__name__"]).removeprefix(_PACKAGE)
        scope = frame.f_code.co_qualname.replace("<locals>.", "")
        name = f"{module}:{scope}:{operation}"
        self.counts[name] += 1
        self._scheduler.pause()
        fault = self._fault_at(name)
        if fault is None:
            return None
        self.log.append(Record(self._scheduler.now, fault.kind, name, task.process.name))
        if fault.kind == "kill":
            self.on_kill(task.process)
            self._scheduler.kill(task.process)
        if fault.kind in ("delay", "stop"):
            self._scheduler.sleep(fault.seconds)
        return fault.kind

    def _fault_at(self, name: str) -> Fault | None:
        for fault in self._waiting:
            if fault.name == name:
                fault.count -= 1
                if not fault.count:
                    self._waiting.remove(fault)
                    return fault
        return None
