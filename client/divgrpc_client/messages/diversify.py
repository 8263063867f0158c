"""Requests of Diversify and DiversifyStream, and their results."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final, NamedTuple, Unpack, cast

import numpy as np
import numpy.typing as npt

from divgrpc.columns.ids import as_ids, encode_texts, is_texts
from divgrpc.columns.quotas import as_quotas
from divgrpc.errors import InvalidArgumentError, invalid
from divgrpc.parameters import LIMITS
from divgrpc.parameters.diversify import diversify_parameters
from divgrpc.types import Diversification, OnInfeasible, Pick
from divgrpc.types.quotas import GroupBy, Quotas, QuotasLike
from divgrpc.types.records import AttributesLike, IdsOf
from divgrpc_client.messages.options import DiversifyOptions
from divgrpc_client.messages.quotas import pack_values, place_group_fields, quota_fields
from divgrpc_client.messages.requests import index_name
from divgrpc_client.messages.vectors import VectorsLike, as_matrix, encode, whole_numbers
from divgrpc_protos.arrays import Matrix, row_count
from divgrpc_protos.records import from_message, message_fields
from divgrpc_protos.v1 import diversify_pb2

_CALL_ARGUMENTS: Final = ("timeout", "request_id")
# Arguments that a message has room for beside its vectors and scores.
_HEADROOM_BYTES: Final = 2**16


class QuotaArguments(NamedTuple):
    """The arguments of `diversify` about quotas and groups."""

    attributes: AttributesLike = None
    quotas: QuotasLike = None
    group_by: GroupBy | None = None
    on_infeasible: OnInfeasible = "fail"

    def check(self) -> Quotas | None:
        """Return what picks must meet, or None; raises `InvalidArgumentError`."""
        if self.attributes is not None and self.quotas is None and self.group_by is None:
            raise invalid("attributes", "go with quotas or group_by: set one of them too")
        return as_quotas(self.quotas, self.group_by, self.on_infeasible)


_NO_QUOTAS: Final = QuotaArguments()


def diversify_request(
    options: DiversifyOptions,
    *,
    vectors: VectorsLike | None,
    scores: npt.ArrayLike | None,
    name: str | None,
    ids: IdsOf,
    query: VectorsLike | None,
    limits: QuotaArguments = _NO_QUOTAS,
) -> diversify_pb2.DiversifyRequest:
    """Return the request of a call of `diversify`; raises `InvalidArgumentError`."""
    quotas = limits.check()
    of_quotas, options = quota_fields(quotas, options)
    fields: dict[str, Any] = dict(_cached_fields(options)) | of_quotas
    _check_sources(vectors, scores, name, ids, query)
    if name is not None:
        fields["index"] = index_name(name)
    if ids is not None:
        keys = as_ids(ids)
        if is_texts(keys):
            fields["string_ids"] = [text.decode() for text in encode_texts(keys, "ids")]
        else:
            fields["ids"] = whole_numbers("ids", keys, np.int64).tolist()
    candidates: Matrix | None = None
    if vectors is not None:
        # Without candidates, a list is empty.
        is_empty = isinstance(vectors, list) and not vectors
        matrix = np.empty((0, 0), np.float32) if is_empty else as_matrix("vectors", vectors)
        _check_size(matrix)
        candidates = matrix
        if quotas is not None:
            fields["attributes"] = pack_values(quotas, limits.attributes, row_count(matrix))
    if query is not None:
        matrix = as_matrix("query", query, one_row=True)
        fields["query"] = encode(matrix, 0, row_count(matrix))
    if scores is not None:
        fields["scores"] = _numbers(scores).tolist()
    request = diversify_pb2.DiversifyRequest(**fields)
    if candidates is not None:
        encode(candidates, 0, row_count(candidates), request.vectors)
    return request


def _check_sources(
    vectors: VectorsLike | None,
    scores: npt.ArrayLike | None,
    name: str | None,
    ids: IdsOf,
    query: VectorsLike | None,
) -> None:
    """Raise `InvalidArgumentError` for arguments that lack or exclude one another."""
    if vectors is None and name is None:
        raise invalid("vectors", "must be given, or an index and ids of its points")
    if vectors is not None and (name is not None or ids is not None):
        raise invalid("vectors", "stand for an index and ids: give one of the two")
    if query is not None and scores is not None:
        raise invalid("query", "stands for the scores: give one of the two")
    if name is not None and ids is None:
        raise invalid("ids", "must be given with the name of an index")


def _cached_fields(options: DiversifyOptions) -> dict[str, object]:
    try:
        return _fields(**options)
    except TypeError:  # an option cannot be hashed, or there is no such option
        return cast(Any, _fields).__wrapped__(**options)  # type: ignore[no-any-return]


@lru_cache(maxsize=1024, typed=True)
def _fields(**options: Unpack[DiversifyOptions]) -> dict[str, object]:
    """Return the fields of the options that a caller gave."""
    parameters = diversify_parameters(options, _CALL_ARGUMENTS)
    values = {name: getattr(parameters, name) for name in options}
    if values.get("diversity") == "auto":
        del values["diversity"]
        values["diversity_auto"] = True
    return message_fields(values, diversify_pb2.DiversifyRequest)


def _check_size(matrix: Matrix) -> None:
    size = matrix.nbytes if isinstance(matrix, np.ndarray) else matrix.data.nbytes
    most = LIMITS["message_bytes_max"] - _HEADROOM_BYTES
    if isinstance(matrix, np.ndarray) and matrix.dtype != np.float16:
        size = 4 * matrix.size
    if size > most:
        text = f"must fit one message, {most} bytes, got {size}; float16 takes half as many"
        raise invalid("vectors", text)


def _numbers(scores: npt.ArrayLike) -> npt.NDArray[np.float64]:
    try:
        numbers = np.asarray(scores)
        if numbers.size and numbers.dtype.kind not in "fiub":
            raise TypeError(numbers.dtype)  # noqa: TRY301  # handled like a failed conversion
    except (TypeError, ValueError):
        raise InvalidArgumentError("scores", "scores must be numbers") from None
    if numbers.ndim != 1:
        raise invalid("scores", f"must be one number for each candidate, got {numbers.ndim} axes")
    return numbers.astype(np.float64)


def diversification(response: diversify_pb2.DiversifyResponse) -> Diversification:
    """Return a response as a result."""
    return from_message(response, Diversification, **place_group_fields(response))


def picks(response: diversify_pb2.DiversifyStreamResponse) -> Iterator[Pick]:
    """Return the picks of one message of a stream."""
    return map(Pick, response.places, response.scores, response.selection_scores)
