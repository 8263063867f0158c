"""Runs the calls of evaluations over shards, on as many threads as there are."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from divgrpc.sharding.messages import Buffer
from divgrpc.sharding.rounds import Exchange, Round
from divgrpc.sharding.router import Call, ResultT, Router


class Replies(NamedTuple):
    """The reply of each shard to its message of a round.

    seconds: the CPU time that all of these shards took together.
    """

    by_shard: Mapping[int, Buffer]
    seconds: float


class ShardRunner:
    """Runs calls until shards have sent all replies; see `divgrpc.evaluation.study.Runner`."""

    def __init__(self, router: Router, ask: Callable[[Round], Replies]) -> None:
        """Take the router of an index.

        ask: asks shards, and returns their replies. Several threads call it at the same time.
        """
        self._router, self._ask = router, ask

    def run(self, call: Call[ResultT]) -> ResultT:
        """Return the result of a call, which may run several times."""
        return self.run_timed(call)[0]

    def run_timed(self, call: Call[ResultT]) -> tuple[ResultT, float]:
        """Return the result of a call, and the CPU time of shards for it, in seconds."""
        exchanges, seconds = list[Exchange](), 0.0
        while isinstance(step := self._router.go_on(call, exchanges), Round):
            replies = self._ask(step)
            exchanges.append(Exchange(step, replies.by_shard))
            seconds += replies.seconds
        return step, seconds
