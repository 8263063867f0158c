"""Runs the engine of a cluster until the control channel closes."""

import asyncio
import os
from typing import Final

from divgrpc.errors import UnavailableError
from divgrpc_server.engines.engine import Engine, HopelessError
from divgrpc_server.engines.indexes import follow_indexes
from divgrpc_server.engines.local import LocalEngine
from divgrpc_server.engines.ray_variables import set_variables
from divgrpc_server.ipc import control
from divgrpc_server.ipc.control import Message
from divgrpc_server.logging import logs

_FULL_SECONDS: Final = 0.05


async def _run(process: control.Process, log: logs.Logger) -> int:
    """Start the servers and tell the supervisor where they are; return the exit code."""
    logs.log_faults_of(asyncio.get_running_loop(), log)
    engine = _engine_of(process, log)
    is_over = asyncio.Event()

    def obey() -> None:
        if process.channel.receive() is None:
            is_over.set()

    asyncio.get_running_loop().add_reader(process.channel.fileno(), obey)
    work = asyncio.create_task(_serve(engine, process.channel))
    follower = asyncio.create_task(follow_indexes(engine, process.root, log))
    await asyncio.wait(
        (work, follower, asyncio.create_task(is_over.wait())), return_when=asyncio.FIRST_COMPLETED
    )
    (error, *_) = [task.exception() for task in (work, follower) if task.done()] or [None]
    for task in (work, follower):
        task.cancel()
    await engine.stop()
    if isinstance(error, HopelessError):
        process.channel.send(Message("hopeless", 0, str(error)))
    elif error is not None:
        if not isinstance(error, UnavailableError):
            raise error
        log.error("cannot start", reason=str(error))
    return int(error is not None)


def _engine_of(process: control.Process, log: logs.Logger) -> Engine:
    if process.config.engine == "ray":
        set_variables(process.config, os.environ)
        # Ray prints lines, and whoever started the server reads its address from that output.
        os.dup2(2, 1)
        # Ray is installed, and loaded, for this engine alone.
        from divgrpc_server.engines.ray import RayEngine

        return RayEngine(process.config, process.root, process.secret, log)
    return LocalEngine(process.config, process.root, process.secret, log)


async def _serve(engine: Engine, channel: control.Channel) -> None:
    await engine.start()
    is_ready = False
    async for topology in engine.watch():
        await _send(channel, Message("topology", topology.version, topology.pack()))
        if engine.is_whole and not is_ready:
            await _send(channel, Message("ready"))
            is_ready = True


async def _send(channel: control.Channel, message: Message) -> None:
    """Send a message once the supervisor has read enough of those before it."""
    while True:
        try:
            channel.send(message)
        except BlockingIOError:
            await asyncio.sleep(_FULL_SECONDS)
        else:
            return


def main() -> None:
    """Run an engine process, which the supervisor has started."""
    process = control.enter()
    log = logs.configure(process.config, "engine", process.serial)
    with logs.edge(log):
        code = asyncio.run(_run(process, log))
    os._exit(code)


if __name__ == "__main__":
    main()
