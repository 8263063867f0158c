"""An event loop that waits for simulated descriptors, and has the clock of the scheduler."""

import asyncio
import select
import selectors
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from simulation.scheduler import Scheduler
from simulation.serving.network import End, Event, Network

_MASKS: Final = {selectors.EVENT_READ: select.POLLIN, selectors.EVENT_WRITE: select.POLLOUT}


class _Selector(selectors.BaseSelector):
    """A selector of simulated descriptors; those of the system never become ready."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._keys: dict[int, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:  # noqa: ANN401  # as of the base
        number = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        self._keys[number] = selectors.SelectorKey(fileobj, number, events, data)
        return self._keys[number]

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:  # noqa: ANN401  # as of the base
        return self._keys.pop(fileobj if isinstance(fileobj, int) else fileobj.fileno())

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:  # noqa: ANN401  # as of the base
        return self.register(fileobj, events, data)

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:  # noqa: ANN401  # as of the base
        return self._keys[fileobj if isinstance(fileobj, int) else fileobj.fileno()]

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        scheduler = self._network.scheduler
        scheduler.pause()
        seconds = float("inf") if timeout is None else timeout
        scheduler.wait_until(lambda: bool(self._ready()), seconds)
        return self._ready()

    def _ready(self) -> list[tuple[selectors.SelectorKey, int]]:
        ready = []
        for number, key in self._keys.items():
            thing = self._network.things.get(number)
            events = 0
            for event, mask in _MASKS.items():
                if thing is not None and key.events & event and thing.is_ready(mask):
                    events |= event
            if events:
                ready.append((key, events))
        return ready


class Loop(asyncio.SelectorEventLoop):
    """The event loop of a simulated front."""

    def __init__(self, network: Network) -> None:
        self._scheduler: Scheduler = network.scheduler
        self._network = network
        super().__init__(_Selector(network))
        self.set_exception_handler(self._note)
        self.errors: list[str] = []
        self._signals: dict[int, Event] = {}

    def add_signal_handler(self, sig: int, callback: Callable[..., Any], *_: Any) -> None:  # type: ignore[override]  # noqa: ANN401  # a handler takes nothing
        """Call a function when `raise_signal` is called."""
        event = self._signals[sig] = Event(self._network)

        def handle() -> None:
            event.count = 0
            callback()

        self.add_reader(event.number, handle)

    def raise_signal(self, sig: int) -> None:
        """Let the handler of a signal run."""
        self._signals[sig].count = 1

    def time(self) -> float:
        """Return the time of the scheduler."""
        return self._scheduler.now

    def _note(self, _: object, context: dict[str, Any]) -> None:
        self.errors.append(f"{context['message']}: {context.get('exception')!r}")

    def end(self) -> None:
        """Drop all tasks, as the death of the process does, and close the loop."""
        for task in asyncio.all_tasks(self):
            with suppress(BaseException):
                task.get_coro().close()
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        self.close()


async def send_async(link: End, kind: Any, payload: bytes = b"") -> None:  # noqa: ANN401  # a Frame
    """Stand for `job_frames.send_async`."""
    link._network.faults.call("send", depth=0)
    await _wait(link, asyncio.get_running_loop(), is_write=True)
    link.put(kind, payload)


async def receive_async(link: End) -> tuple[Any, Any]:
    """Stand for `job_frames.receive_async`."""
    link._network.faults.call("receive", depth=0)
    await _wait(link, asyncio.get_running_loop(), is_write=False)
    frame = link.get()
    if frame is None:
        raise EOFError
    return frame


async def _wait(link: End, loop: asyncio.AbstractEventLoop, *, is_write: bool) -> None:
    """Wait until an end can be written to, or read from."""
    if link.is_writable if is_write else link.is_readable:
        return
    future = loop.create_future()
    add, remove = loop.add_reader, loop.remove_reader
    if is_write:
        add, remove = loop.add_writer, loop.remove_writer

    def settle() -> None:
        if not future.done():
            future.set_result(None)

    add(link.number, settle)
    try:
        await future
    finally:
        remove(link.number)
