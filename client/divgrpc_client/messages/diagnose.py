"""Requests of Diagnose, and the diagnosis in a response."""

from collections.abc import Sequence

from divgrpc.parameters.diagnose import DiagnoseParameters
from divgrpc.types import Diagnosis, ValueCopies
from divgrpc.types.filters import FilterLike
from divgrpc_client.messages.filters import filter_fields
from divgrpc_client.messages.requests import index_name
from divgrpc_protos.records import from_message
from divgrpc_protos.v1 import diagnose_pb2


def request_of(
    name: str, attributes: str | Sequence[str], sample: int, seed: int, condition: FilterLike
) -> diagnose_pb2.DiagnoseRequest:
    """Return the request; raises `InvalidArgumentError` with the name of the argument."""
    parameters = DiagnoseParameters(attributes=attributes, sample=sample, seed=seed)
    return diagnose_pb2.DiagnoseRequest(
        index=index_name(name),
        attributes=parameters.attributes,
        sample=parameters.sample,
        seed=parameters.seed,
        **filter_fields(condition),
    )


def diagnosis_of(message: diagnose_pb2.Diagnosis) -> Diagnosis:
    """Return the diagnosis of a response."""
    by_value = tuple(_value_copies(copies) for copies in message.by_value)
    return from_message(message, Diagnosis, by_value=by_value)


def _value_copies(message: diagnose_pb2.ValueCopies) -> ValueCopies:
    kind = message.value.WhichOneof("kind")
    value = None if kind is None else getattr(message.value, kind)
    return from_message(message, ValueCopies, value=value)
