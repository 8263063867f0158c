"""The method of both clients that diagnoses whether a collection crowds."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from divgrpc.parameters.diagnose import DEFAULT_SAMPLE
from divgrpc.types import Diagnosis
from divgrpc.types.filters import FilterLike
from divgrpc_client import calls
from divgrpc_client.messages import diagnose as messages
from divgrpc_client.messages.options import OnProgress, spelled_out
from divgrpc_client.methods import one_result
from divgrpc_client.rpc import sync_stack
from divgrpc_client.rpc.call import RpcCall
from divgrpc_client.rpc.security import Peer


class DiagnosisMethods:
    """The method `diagnose`; the class of the clients sets the attributes."""

    if TYPE_CHECKING:
        _stack = sync_stack
        _peer: Peer

        def _link(self) -> calls.Link: ...

    @one_result
    @spelled_out
    def diagnose(
        self,
        name: str,
        *,
        attributes: str | Sequence[str] = (),
        sample: int = DEFAULT_SAMPLE,
        seed: int = 0,
        filter: FilterLike = None,  # noqa: A002  # the word that users expect
        progress: OnProgress = None,
        timeout: float | None = None,
        request_id: str | None = None,
    ) -> Diagnosis:
        """Return how much the points of an index crowd, and what the defaults of `query` change.

        Near-copies of a sample of points are counted among all points, exactly. Some of the sampled
        points are then used as queries, to measure each default.

        attributes: names of attributes. Near-copies are also counted by their values, for the 20
            values that the most sampled points have.
        sample: number of points to sample, at most 10,000. With 2,500 points, the 95 % interval of
            a share reaches at most 2 % to each side. If there are no more points than that, shares
            are exact.
        seed: seed of the sample; the same seed gives the same sample.
        filter: conditions as in `query`. Points that do not pass do not count.
        progress: called with a `divgrpc.types.Progress` during the call. If it raises, the call is
            cancelled.
        timeout: seconds until the call fails. Default: no limit.

        Raises `IndexNotFoundError`, `UnfitIndexError` if no point has a vector, and
        `LimitExceededError` if the server makes its maximum number of evaluations.
        """
        request = messages.request_of(name, attributes, sample, seed, filter)
        call = RpcCall("Diagnose", self._peer, timeout=timeout, request_id=request_id)
        return self._stack.run(calls.diagnose(self._link(), call, request, progress))
