"""Load on a server, and what it did to it: `divgrpc load`, and the same for scripts.

    from divgrpc_client.load import Call, constant, run_load
    report = run_load("127.0.0.1:50051", [Call("products", queries)], constant(500, seconds=30))
    print(report["latency"]["p99"], report["void"])

It needs divgrpc[load].
"""

from divgrpc_client.load.points import Points
from divgrpc_client.load.results import Report, read_report, write_report
from divgrpc_client.load.running import run_load
from divgrpc_client.load.schedules import Schedule, Step, constant, parse_schedule
from divgrpc_client.load.sessions import Session, Settings
from divgrpc_client.load.thresholds import Threshold, parse_threshold
from divgrpc_client.load.traffic import Call, read_mix

__all__ = [
    "Call",
    "Points",
    "Report",
    "Schedule",
    "Session",
    "Settings",
    "Step",
    "Threshold",
    "constant",
    "parse_schedule",
    "parse_threshold",
    "read_mix",
    "read_report",
    "run_load",
    "write_report",
]
