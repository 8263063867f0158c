"""grpc.health.v1, as much of it as waiting needs.

The two messages are one field each, and their package is a server's dependency, not a caller's; so
their bytes stand here.
"""

from typing import Final

from divgrpc_client.rpc.channels import SERVICE

WATCH: Final = "/grpc.health.v1.Health/Watch"
# HealthCheckRequest{service = 1}
WATCH_REQUEST: Final = b"\x0a" + bytes([len(SERVICE)]) + SERVICE.encode()
# HealthCheckResponse{status = 1}: SERVING = 1
SERVING: Final = b"\x08\x01"
# A server that refuses at once gives nothing to wait on; this keeps asking from becoming a storm.
PAUSE_SECONDS: Final = 0.1
