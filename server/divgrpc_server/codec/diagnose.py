"""Conversion of Diagnose requests, and of diagnoses.

This module loads the compiler, so only evaluators use it.
"""

from collections.abc import Sequence
from typing import Any

from divgrpc.diagnosis.survey import Survey
from divgrpc.engine import Engine
from divgrpc.parameters import check_index_name
from divgrpc.parameters.diagnose import DiagnoseParameters
from divgrpc.types import Diagnosis, Progress, ValueCopies
from divgrpc_protos.records import to_message
from divgrpc_protos.v1 import diagnose_pb2, filters_pb2, index_pb2
from divgrpc_server.codec.filters import parse_filter


class DiagnoseCall:
    """One Diagnose call; an invalid request raises `InvalidArgumentError`."""

    def __init__(self, payload: bytes) -> None:
        request = diagnose_pb2.DiagnoseRequest.FromString(payload)
        self.index = check_index_name(request.index)
        options: dict[str, Any] = {
            name: getattr(request, name) for name in ("sample", "seed") if request.HasField(name)
        }
        self._parameters = DiagnoseParameters(attributes=tuple(request.attributes), **options)
        self._filter = parse_filter(request.filter)

    def study(self, engine: Engine) -> Survey:
        """Check the call against the index, and return the survey to run."""
        return Survey(engine, self._parameters, self._filter)

    def pack_progress(self, progress: Progress) -> bytes:
        """Return the progress of the survey as a response."""
        message = to_message(progress, index_pb2.BuildProgress)
        return diagnose_pb2.DiagnoseResponse(progress=message).SerializeToString()

    def pack_rows(self, rows: Sequence[Diagnosis]) -> list[bytes]:
        """Return the response of the only diagnosis."""
        return [
            diagnose_pb2.DiagnoseResponse(done=_pack(diagnosis)).SerializeToString()
            for diagnosis in rows
        ]


def _pack(diagnosis: Diagnosis) -> diagnose_pb2.Diagnosis:
    by_value = [_pack_value(copies) for copies in diagnosis.by_value]
    return to_message(diagnosis, diagnose_pb2.Diagnosis, by_value=by_value)


def _pack_value(copies: ValueCopies) -> diagnose_pb2.ValueCopies:
    value = copies.value
    message = None
    if isinstance(value, str):
        message = filters_pb2.Value(keyword=value)
    elif isinstance(value, bool):
        message = filters_pb2.Value(boolean=value)
    elif isinstance(value, int):
        message = filters_pb2.Value(integer=value)
    elif value is not None:
        message = filters_pb2.Value(number=value)
    return to_message(copies, diagnose_pb2.ValueCopies, value=message)
