"""What the supervisor tells fronts about the engine of a cluster, and about other fronts."""

import asyncio
from pathlib import Path
from unittest.mock import Mock

from divgrpc_server.config import Config
from divgrpc_server.ipc.control import Message
from divgrpc_server.supervisor.supervisor import Supervisor


def test_fronts_learn_whether_the_engine_has_started_all_servers() -> None:
    """A front that starts later learns it too."""

    async def scene() -> None:
        supervisor = Supervisor(Config(shards=2), Path("/nowhere"), Mock())
        engine, front, late_front = (
            Mock(role=role, serial=serial, ready=False, start_time=0.0, page=None)
            for serial, role in enumerate(("engine", "front", "front"))
        )
        for child in (engine, front):
            child.exited = asyncio.get_running_loop().create_future()
            supervisor._children[child.serial] = child
        for child in (front, engine):
            supervisor._handle(child, Message("ready"))
        assert front.send.call_args.args[0] == Message("engine", 1)
        supervisor._handle(engine, Message("topology", 7, "[]"))
        engine.exited.set_result(-9)
        supervisor._fill = Mock()  # type: ignore[method-assign]
        await supervisor._outlive(engine)
        assert front.send.call_args.args[0] == Message("engine", 0)
        supervisor._handle(late_front, Message("ready"))
        late_front.send.assert_any_call(Message("engine", 0))
        # The fault of the engine is later than what it said about the servers.
        kinds = [call.args[0].kind for call in late_front.send.call_args_list]
        assert kinds.index("topology") < kinds.index("engine")

    asyncio.run(scene())


def test_fronts_learn_what_builds_of_others_may_take() -> None:
    """Until the front of these builds has ended."""

    async def scene() -> None:
        supervisor = Supervisor(Config(shards=2), Path("/nowhere"), Mock())
        fronts = [
            Mock(role="front", serial=n, ready=True, start_time=0.0, page=None) for n in range(2)
        ]
        for front in fronts:
            front.exited = asyncio.get_running_loop().create_future()
            supervisor._children[front.serial] = front
        supervisor._handle(fronts[0], Message("promise", 0, "300"))
        assert fronts[1].send.call_args.args[0] == Message("promise", 0, "300")
        fronts[0].exited.set_result(-9)
        supervisor._fill = Mock()  # type: ignore[method-assign]
        await supervisor._outlive(fronts[0])
        assert fronts[1].send.call_args.args[0] == Message("promise", 0, "0")
        # Other fronts keep theirs, which one that starts later learns.
        supervisor._handle(fronts[1], Message("promise", 0, "500"))
        late_front = Mock(role="front", serial=2, ready=False)
        supervisor._children[2] = late_front
        supervisor._handle(late_front, Message("ready"))
        news = [call.args[0] for call in late_front.send.call_args_list]
        assert [one for one in news if one.kind == "promise"] == [Message("promise", 1, "500")]

    asyncio.run(scene())
