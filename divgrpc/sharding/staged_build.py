"""What a builder lets other machines do: encode and find points, measure searches, multiply."""

import threading
from pathlib import Path
from typing import Final, TypeAlias

from divgrpc.errors import UnsupportedError
from divgrpc.sharding import (
    staged_arrays,
    staged_finding,
    staged_points,
    staged_shards,
    staged_training,
)
from divgrpc.sharding.layouts import STAGED_QUESTION, STAGED_REQUEST, STAGED_SEARCH
from divgrpc.sharding.messages import Buffer
from divgrpc.sharding.staged_arrays import is_offered
from divgrpc.sharding.staged_finding import FIND, StagedFinding
from divgrpc.sharding.staged_points import ENCODE, StagedPoints
from divgrpc.sharding.staged_shards import MEASURE, OpenCopy, StagedShard
from divgrpc.sharding.staged_training import MULTIPLY, StagedTraining

OPERATIONS: Final = (ENCODE, FIND, MEASURE, MULTIPLY)
_OFFERS: Final = {
    ENCODE: staged_points.OFFER,
    FIND: staged_finding.OFFER,
    MEASURE: staged_shards.OFFER,
    MULTIPLY: staged_training.OFFER,
}
# The layouts of the messages that name the folder.
_LAYOUTS: Final = {
    ENCODE: STAGED_REQUEST,
    FIND: STAGED_SEARCH,
    MEASURE: STAGED_QUESTION,
    MULTIPLY: STAGED_REQUEST,
}
_Offer: TypeAlias = StagedPoints | StagedFinding | StagedShard | StagedTraining


def folder_of(name: str, message: Buffer) -> str:
    """Return the name of the staging folder in a message, or the path of the folder of a shard.

    name: one of `OPERATIONS`. Raises `InvalidArgumentError`.
    """
    return staged_arrays.folder_of(message, _LAYOUTS[name])


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
            offer = self._open(name)
            with self._lock:
                self._offers[name] = offer
        return offer.answer(message)

    def _open(self, name: str) -> _Offer:
        if name == MEASURE:
            return StagedShard(self._folder, self._open_copy)
        if name == FIND:
            return StagedFinding(self._folder)
        return StagedPoints(self._folder) if name == ENCODE else StagedTraining(self._folder)

    def close_ended(self) -> bool:
        """Forget what is no longer offered; return whether nothing is open.

        Looks only for files that were there: a network file system may remember for a minute that a
        file was not, and then a shard server would not see the next offer.
        """
        with self._lock:
            names = list(self._offers)
        ended = [name for name in names if not is_offered(self._folder, _OFFERS[name])]
        with self._lock:
            for name in ended:
                del self._offers[name]
            return not self._offers
