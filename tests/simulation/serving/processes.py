"""The processes of a run: the supervisor with its children, callers in the fronts, and a killer."""

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from divgrpc_server.builder import process as builder
from divgrpc_server.front.jobs import Jobs
from divgrpc_server.front.pool import Pool
from divgrpc_server.front.writer import Writer as FrontWriter
from divgrpc_server.ipc import packets
from divgrpc_server.ipc.control import Message
from divgrpc_server.supervisor.child import Child, Role
from divgrpc_server.supervisor.supervisor import Supervisor
from divgrpc_server.worker.process import Worker
from divgrpc_server.writer.process import Writer
from simulation.scheduler import Process
from simulation.serving.callers import Callers
from simulation.serving.loop import Loop
from simulation.serving.network import Channel, End
from simulation.serving.world import World

_SETTLE_SECONDS: Final = 120.0
_BOUND_SECONDS: Final = 3_600.0


class ProcessWatch:
    """Stands for a descriptor of `os.pidfd_open`, which is ready when a process has ended."""

    def __init__(self, world: World, process: Process) -> None:
        self.owner: Process | None = world.network.process
        self._network, self._process = world.network, process
        self.number = world.network.number_of(self)

    def is_ready(self, _mask: int) -> bool:
        """Tell whether the process has ended."""
        return self._process.is_over

    def close(self) -> None:
        """Free the descriptor."""
        self._network.things.pop(self.number, None)


class SimulatedChild(Child):
    """A child of the supervisor whose process is simulated."""

    def __init__(
        self, world: World, role: Role, serial: int, *_: object, **_options: object
    ) -> None:
        loop = asyncio.get_running_loop()
        self.role, self.serial, self.ready = role, serial, False
        self.start_time, self.expiry = loop.time(), None
        self.page, self.cpu_seconds = None, 0.0
        end, child_end = world.network.pair()
        end.owner = world.network.process
        channel: Any = Channel(end)
        self.channel = channel
        self._world = world
        self.process = world.process(
            f"{role} {serial}", partial(_MAINS[role], world, serial, child_end)
        )
        self.pid = serial
        self._watch = ProcessWatch(world, self.process)
        self._pidfd = self._watch.number
        self.exited = loop.create_future()
        world.children[self.process] = self

    def kill(self) -> None:
        """Kill the process."""
        process, world = self.process, self._world
        if not self.exited.done():
            if process.is_alive and process not in world.deaths.hanging:
                world.note_kill(process)
            world.scheduler.kill(process)

    def _reap(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        self._watch.close()
        self.hang_up()
        del self._world.children[self.process]
        self.exited.set_result(0 if self.process.is_alive else -signal.SIGKILL)


def supervise(world: World, _process: Process) -> None:
    """Run the supervisor until it is told to stop."""
    loop = Loop(world.network)

    async def run() -> None:
        world.supervisor = Supervisor(world.options.config, world.root, world.log)
        await world.supervisor.run(None)

    world.supervisor_loop = loop
    _run(world, loop, run())


def _run(world: World, loop: Loop, work: Any) -> None:  # noqa: ANN401  # a coroutine
    try:
        loop.run_until_complete(work)
        world.check(not loop.errors, f"an error reaches the event loop: {loop.errors[:1]}")
    finally:
        loop.end()


def _run_worker(world: World, serial: int, end: End, process: Process) -> None:
    _run_kind(world, serial, end, process, kind=Worker, running=world.workers)


def _run_writer(world: World, serial: int, end: End, process: Process) -> None:
    _run_kind(world, serial, end, process, kind=Writer, running=world.writers)


def _run_kind(
    world: World,
    serial: int,
    end: End,
    process: Process,
    *,
    kind: type[Worker],
    running: dict[Process, Any],
) -> None:
    end.owner = process
    world.rest(world.options.start_seconds)
    identity = world.identity(serial, end)
    try:
        identity.channel.send(Message("ready"))
        running[process] = kind(identity, world.log)
        running[process].run()
    except BrokenPipeError:
        world.note("the supervisor is gone")
    finally:
        running.pop(process, None)


def _run_builder(world: World, serial: int, end: End, process: Process) -> None:
    end.owner = process
    world.rest(world.options.start_seconds)
    builder.serve(world.identity(serial, end), world.log)
    end.close()


class Front:
    """Stands for `divgrpc_server.front.__main__.Front`: its callers are tasks, not gRPC."""

    def __init__(self, world: World, serial: int, end: End) -> None:
        self._world = world
        identity = world.identity(serial, end)
        self._channel = identity.channel
        options: Any = {"report": self._report, "on_change": lambda: None, "stamp": world.stamp}
        self.writer_pool = Pool(identity.config, world.log, is_writer=True, **options)
        self.pool = Pool(identity.config, world.log, writer=self.writer_pool, **options)
        self.jobs = Jobs(identity.config, identity.channel, self.pool, world.root)
        self._stop = asyncio.Event()
        self._writer = FrontWriter(self.writer_pool, lambda: self._send(Message("write")))
        self.callers = Callers(world, self.pool, self.jobs, self._writer, f"front {serial}")

    async def run(self) -> None:
        """Let callers work until the supervisor says to drain."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._channel.fileno(), self._obey)
        self._send(Message("ready"))
        tasks = [
            asyncio.create_task(self.callers.work()) for _ in range(self._world.options.callers)
        ]
        await self._stop.wait()
        await asyncio.gather(*tasks)
        self.pool.close()
        self.writer_pool.close()

    def _obey(self) -> None:
        delivery = self._channel.receive()
        if delivery is None:
            self._world.scheduler.kill(self._world.network.process)
            return
        message, descriptor = delivery
        if message.kind == "worker" and descriptor >= 0:
            self.pool.attach(message.number, packets.Link(packets.adopt(descriptor)))
        elif message.kind == "writer" and descriptor >= 0:
            self.writer_pool.attach(message.number, packets.Link(packets.adopt(descriptor)))
        elif message.kind in ("job", "refused"):
            self.jobs.handle(message, descriptor)
        elif message.kind == "drain":
            self._stop.set()

    def _report(self, serial: int) -> None:
        links = (*self.pool._workers, *self.writer_pool._workers)
        self._world.check_report(serial, is_silent=serial in [link.serial for link in links])
        self._send(Message("lost", serial))

    def _send(self, message: Message) -> None:
        with suppress(OSError):
            self._channel.send(message)


def _run_front(world: World, serial: int, end: End, process: Process) -> None:
    end.owner = process
    world.rest(world.options.start_seconds)
    loop = Loop(world.network)

    async def run() -> None:
        front = Front(world, serial, end)
        world.fronts[process] = front
        world.front_starts += 1
        await front.run()

    try:
        _run(world, loop, run())
    finally:
        world.fronts.pop(process, None)
        end.close()


_MAINS: Final[dict[str, Callable[[World, int, End, Process], None]]] = {
    "worker": _run_worker,
    "writer": _run_writer,
    "front": _run_front,
    "builder": _run_builder,
}


def kill_at_random(world: World, _process: Process) -> None:
    """Kill processes until the run is quiet.

    A server gives up if its children end three times before they are ready, so it begins first.
    """
    world.scheduler.wait_until(lambda: world.supervisor is not None and world.supervisor._serving)
    for _ in range(world.options.kills):
        world.rest(world.options.kill_seconds)
        victims = [
            process for process in world.children if process.is_alive and not process.is_over
        ]
        if world.is_quiet or not victims:
            continue
        victim = world.rng.choice(victims)
        world.note(f"kills {victim.name}")
        world.note_kill(victim)
        world.scheduler.kill(victim)


def drive(world: World, _process: Process) -> None:
    """Wait until all actions are done and the server is idle, check it, and stop it."""
    scheduler = world.scheduler
    scheduler.wait_until(lambda: not world.actions and not world.busy_callers, _BOUND_SECONDS)
    world.check(not world.actions, f"the callers do not end; {len(world.actions)} actions are left")
    world.faults.stop()
    world.is_quiet = True
    scheduler.wait_until(lambda: world.why_not_idle() == "", _SETTLE_SECONDS)
    world.check(world.why_not_idle() == "", f"the server is not idle: {world.why_not_idle()}")
    world.check_folder()
    world.note("stop")
    world.supervisor_loop.raise_signal(signal.SIGTERM)
