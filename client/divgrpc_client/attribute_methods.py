"""The methods of both clients that change the attributes of an index."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from divgrpc.types import IndexInfo
from divgrpc.types.records import AttributeTypes, IdsOf
from divgrpc_client import calls
from divgrpc_client.messages.attributes import attribute_upload
from divgrpc_client.messages.options import OnProgress, spelled_out
from divgrpc_client.methods import one_result
from divgrpc_client.rpc import sync_stack
from divgrpc_client.rpc.call import RpcCall
from divgrpc_client.rpc.security import Peer


class AttributeMethods:
    """Methods that a client inherits."""

    if TYPE_CHECKING:
        _stack = sync_stack
        _peer: Peer

        def _link(self) -> calls.Link: ...

    @one_result
    @spelled_out
    def add_attributes(
        self,
        name: str,
        attributes: Mapping[str, Any],
        *,
        ids: IdsOf = None,
        attribute_types: AttributeTypes = None,
        progress: OnProgress = None,
        timeout: float | None = None,
        request_id: str | None = None,
    ) -> IndexInfo:
        """Give the points of an index further attributes, and return its new description.

        attributes: values by the name of an attribute that the index does not have, as for `build`:
            of the points with `ids`, or of all points in the order in which they were built.
        ids: ids of m points, whose m values `attributes` has. Other points have no value.
        attribute_types: types of some attributes, as for `build`.
        progress: called with a `divgrpc.types.Progress` during the call. If it raises, the call is
            cancelled.
        timeout: seconds until the call fails. Default: no limit.

        The server makes a new generation of the index in the background. Queries continue
        meanwhile; their answers and defaults stay the same. Once the index was written to, writes
        continue too, a point that is written meanwhile has its value, and `ids` are required. A
        call that fails or is interrupted leaves the index as it was. It may raise
        `IndexNotFoundError`, `BuildUnderWayError`, `StorageFullError`, `IndexChangedError`, and
        `UnfitIndexError` if the index has no point.
        """
        upload = attribute_upload(name, attributes, ids, attribute_types)
        call = RpcCall("AddAttributes", self._peer, timeout=timeout, request_id=request_id)
        return self._stack.run(calls.build(self._link(), call, upload, progress))
