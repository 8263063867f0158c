"""What a builder lets other machines do: encode points, and multiply data of a training."""

from pathlib import Path
from typing import Final

from divgrpc.errors import UnsupportedError
from divgrpc.sharding import staged_arrays, staged_points, staged_training
from divgrpc.sharding.messages import Buffer
from divgrpc.sharding.staged_points import ENCODE, StagedPoints
from divgrpc.sharding.staged_training import MULTIPLY, StagedTraining

OPERATIONS: Final = (ENCODE, MULTIPLY)
_OFFERS: Final = {ENCODE: staged_points.OFFER, MULTIPLY: staged_training.OFFER}


class StagedBuild:
    """A build that is under way; what it offers is opened at its first use. For one thread."""

    def __init__(self, folder: Path) -> None:
        """Take the staging folder."""
        self._folder = folder
        self._offers: dict[str, StagedPoints | StagedTraining] = {}

    def ask(self, name: str, message: Buffer) -> bytes:
        """Return the reply to a message; raises the errors of what is asked for.

        name: one of `OPERATIONS`.
        """
        if name not in OPERATIONS:
            raise UnsupportedError("name", f"must be one of {OPERATIONS}, got {name!r:.80}")
        if name not in self._offers:
            make = StagedPoints if name == ENCODE else StagedTraining
            self._offers[name] = make(self._folder)
        return self._offers[name].ask(name, message)

    def close_ended(self) -> bool:
        """Forget what is no longer offered; return whether nothing is."""
        offers = {name for name in _OFFERS if self._is_offered(name)}
        self._offers = {name: offer for name, offer in self._offers.items() if name in offers}
        return not offers

    def _is_offered(self, name: str) -> bool:
        return staged_arrays.is_offered(self._folder, _OFFERS[name])
