"""Valid requests of every method, which `support.requests.mutations` changes before it sends them.

They are the requests of `support.requests.golden_requests`, on copies of the golden indexes.
"""

from collections import defaultdict
from typing import Any, Final

from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from divgrpc_protos.v1 import index_pb2, labels_pb2, query_pb2, writes_pb2
from support.requests.golden_writes import calls
from support.requests.mutators import Draw

# Names of indexes to build. There are several, so that two builds seldom use the same name.
_SCRATCH: Final = ("scratch", "scratch-2", "scratch-3", "scratch-4")
_TRAINING_PLAN: Final = labels_pb2.LabelPlan(
    model=labels_pb2.LABEL_MODEL_LEML,
    parameters=labels_pb2.LabelParameters(rank=2, regularisation=1.0, iterations=1),
)
_REFLECTION: Final = reflection_pb2.ServerReflectionRequest(
    host="here", file_containing_symbol="divgrpc.v1.DiverseIndex"
)
# Share of the messages of a QueryStream that withdraw the query before.
_WITHDRAWALS: Final = 0.05


class Seeds:
    """Valid requests of every method, from which a request is drawn."""

    def __init__(self) -> None:
        health: list[Message] = [health_pb2.HealthCheckRequest(service="divgrpc.v1.DiverseIndex")]
        self._calls: dict[str, list[list[Message]]] = defaultdict(list)
        self._calls |= {"Check": [health], "Watch": [health], "Reflection": [[_REFLECTION]]}
        for method, messages in calls().values():
            self._calls[method].append(messages)

    def request(self, method: str, draw: Draw) -> Any:  # noqa: ANN401  # a message of the method
        """Return a valid request of a method that takes one message."""
        (seed,) = draw.choice(self._calls[method])
        message: Any = type(seed)()
        message.CopyFrom(seed)
        if method in ("BuildOnce", "DeleteIndex"):
            message.index = draw.choice(_SCRATCH)
        if method in ("Upsert", "Delete") and draw.random() < 0.8:
            # Most recorded writes are the first ones to their index.
            message.ClearField("if_sequence")
            message.write_id = str(draw.randrange(1_000)) if draw.random() < 0.2 else ""
        if method == "BuildOnce" and message.HasField("label_plan") and draw.random() < 0.5:
            _train(message.label_plan, message.label_chunk)
        return message

    def item(self, draw: Draw, number: int) -> query_pb2.QueryStreamRequest:
        """Return a valid message of a QueryStream."""
        if number and draw.random() < _WITHDRAWALS:
            return query_pb2.QueryStreamRequest(correlation_id=number - 1, withdraw=True)
        limit = draw.choice((None, 1, 50, 2**32 - 1))
        return query_pb2.QueryStreamRequest(
            correlation_id=number, query=self.request("Query", draw), time_limit_ms=limit
        )

    def write(self, draw: Draw, number: int) -> writes_pb2.WriteStreamRequest:
        """Return a valid message of a WriteStream, without a condition on other writes."""
        message = writes_pb2.WriteStreamRequest(correlation_id=number)
        if draw.random() < 0.5:
            message.upsert.CopyFrom(self.request("Upsert", draw))
        else:
            message.delete.CopyFrom(self.request("Delete", draw))
        return message

    def steps(self, method: str, draw: Draw) -> list[Message]:
        """Return the messages of a valid Build or AddAttributes, in order."""
        messages = draw.choice(self._calls[method])
        if method == "AddAttributes":
            return messages
        steps = [index_pb2.BuildRequest.FromString(step.SerializeToString()) for step in messages]
        header = steps[0].header
        header.index = draw.choice(_SCRATCH)
        header.parameters.metric = draw.choice(index_pb2.Metric.values()[1:3])
        header.parameters.hash_family = draw.choice(index_pb2.HashFamily.values()[1:])
        if header.HasField("labels") and draw.random() < 0.5:
            _train(header.labels, steps[1].label_chunk)
        return list(steps)


def _train(plan: labels_pb2.LabelPlan, chunk: labels_pb2.LabelChunk) -> None:
    """Change a plan that has label factors into a plan that trains them."""
    plan.CopyFrom(_TRAINING_PLAN)
    chunk.ClearField("label_factors")
    chunk.ClearField("feature_map")
