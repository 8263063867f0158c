"""The messages of grpc.health.v1 that waiting for a server needs, as bytes.

Each has one field. The package with their classes is a dependency of the server alone.
"""

from typing import Final

from divgrpc_client.rpc.channels import SERVICE

WATCH: Final = "/grpc.health.v1.Health/Watch"
# HealthCheckRequest{service = 1}
WATCH_REQUEST: Final = b"\x0a" + bytes([len(SERVICE)]) + SERVICE.encode()
# HealthCheckResponse{status = 1}: SERVING = 1
SERVING: Final = b"\x08\x01"
# Between two attempts. A server that refuses at once would otherwise be asked without a pause.
PAUSE_SECONDS: Final = 0.1
