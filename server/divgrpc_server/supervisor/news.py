"""What fronts must know of the other processes of a server, also those that start later."""

from typing import Final

from divgrpc_server.ipc.control import Kind, Message

_KERNELS: Final[tuple[Kind, int]] = ("kernels", 0)


class News:
    """The latest messages for fronts, in the order of their last change.

    There is one of each kind, but one promise of each front.
    """

    def __init__(self) -> None:
        self._messages: dict[tuple[Kind, int], Message] = {_KERNELS: Message("kernels", 0, "0")}

    def add(self, message: Message) -> None:
        """Keep a message in place of the one before it."""
        key = message.kind, message.number if message.kind == "promise" else 0
        self._messages.pop(key, None)
        self._messages[key] = message

    def drop_promise(self, front: int) -> None:
        """Forget the promise of a front that has ended."""
        self._messages.pop(("promise", front), None)

    @property
    def messages(self) -> list[Message]:
        """The messages for a front that starts now."""
        return [*self._messages.values()]

    @property
    def kernels(self) -> tuple[int, int]:
        """The number of compiled kernels, and of all."""
        message = self._messages[_KERNELS]
        return message.number, int(message.text)
