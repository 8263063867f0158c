"""What a builder lets other machines do: encode and find points, measure searches, multiply."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from divgrpc.errors import UnsupportedError
from divgrpc.sharding import (
    staged_arrays,
    staged_finding,
    staged_points,
    staged_shards,
    staged_training,
)
from divgrpc.sharding.layouts import STAGED_QUESTION, STAGED_REQUEST, STAGED_SEARCH
from divgrpc.sharding.messages import Buffer, Layout
from divgrpc.sharding.staged_arrays import is_offered
from divgrpc.sharding.staged_finding import FIND, StagedFinding
from divgrpc.sharding.staged_points import ENCODE, StagedPoints
from divgrpc.sharding.staged_shards import MEASURE, OpenCopy, StagedShard
from divgrpc.sharding.staged_training import MULTIPLY, StagedTraining

_Offer: TypeAlias = StagedPoints | StagedFinding | StagedShard | StagedTraining


class _Operation(NamedTuple):
    """What a builder lets others do.

    offer: the name of the file that describes what is offered. layout: of the messages, which name
    the folder. open: opens what is offered in a folder, perhaps from copies.
    """

    offer: str
    layout: Layout
    open: Callable[[Path, OpenCopy | None], _Offer]


_OPERATIONS: Final = {
    ENCODE: _Operation(staged_points.OFFER, STAGED_REQUEST, lambda path, _: StagedPoints(path)),
    FIND: _Operation(staged_finding.OFFER, STAGED_SEARCH, lambda path, _: StagedFinding(path)),
    MEASURE: _Operation(staged_shards.OFFER, STAGED_QUESTION, StagedShard),
    MULTIPLY: _Operation(
        staged_training.OFFER, STAGED_REQUEST, lambda path, _: StagedTraining(path)
    ),
}
OPERATIONS: Final = (*_OPERATIONS,)


def folder_of(name: str, message: Buffer) -> str:
    """Return the name of the staging folder in a message, or the path of the folder of a shard.

    name: one of `OPERATIONS`. Raises `InvalidArgumentError`.
    """
    return staged_arrays.folder_of(message, _OPERATIONS[name].layout)


class StagedBuild:
    """A build that is under way; what it offers is opened at its first use.

    One thread asks, and another one may close what is over.
    """

    def __init__(self, folder: Path, open_copy: OpenCopy | None = None) -> None:
        """Take the staging folder, or that of a shard in it, and how shards are opened."""
        self._folder, self._open_copy = folder, open_copy
        self._offers: dict[str, _Offer] = {}
        self._lock = threading.Lock()

    def ask(self, name: str, message: Buffer) -> bytes:
        """Return the reply to a message.

        name: one of `OPERATIONS`.

        Raises `UnsupportedError` for another name, `InvalidArgumentError` for a message that is
        malformed or does not fit, and `IndexNotFoundError` if this is not offered, or no longer.
        """
        if name not in OPERATIONS:
            raise UnsupportedError("name", f"must be one of {OPERATIONS}, got {name!r:.80}")
        with self._lock:
            offer = self._offers.get(name)
        if offer is None:
            offer = _OPERATIONS[name].open(self._folder, self._open_copy)
            with self._lock:
                self._offers[name] = offer
        return offer.answer(message)

    def close_ended(self) -> bool:
        """Forget what is no longer offered; return whether nothing is open.

        Looks only for files that were there: a network file system may remember for a minute that a
        file was not, and then a shard server would not see the next offer.
        """
        with self._lock:
            names = list(self._offers)
        ended = [name for name in names if not is_offered(self._folder, _OPERATIONS[name].offer)]
        with self._lock:
            for name in ended:
                del self._offers[name]
            return not self._offers
