"""What a builder lets other machines do: encode points, and multiply data of a training."""

import threading
from pathlib import Path
from typing import Final

from divgrpc.errors import UnsupportedError
from divgrpc.sharding import staged_points, staged_training
from divgrpc.sharding.messages import Buffer
from divgrpc.sharding.staged_arrays import is_offered
from divgrpc.sharding.staged_points import ENCODE, StagedPoints
from divgrpc.sharding.staged_training import MULTIPLY, StagedTraining

OPERATIONS: Final = (ENCODE, MULTIPLY)
_OFFERS: Final = {ENCODE: staged_points.OFFER, MULTIPLY: staged_training.OFFER}


class StagedBuild:
    """A build that is under way; what it offers is opened at its first use.

    One thread asks, and another one may close what is over.
    """

    def __init__(self, folder: Path) -> None:
        """Take the staging folder."""
        self._folder = folder
        self._offers: dict[str, StagedPoints | StagedTraining] = {}
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
            offer = StagedPoints(self._folder) if name == ENCODE else StagedTraining(self._folder)
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
        ended = [name for name in names if not is_offered(self._folder, _OFFERS[name])]
        with self._lock:
            for name in ended:
                del self._offers[name]
            return not self._offers
