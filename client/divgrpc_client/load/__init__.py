"""Load tests: send calls to a server at a given rate, and measure latency and errors.

    from divgrpc_client.load import Call, constant, run_load
    report = run_load("127.0.0.1:50051", [Call("products", queries)], constant(500, seconds=30))
    print(report["latency"]["p99"], report["void"])

This package holds schedules, kinds of calls, the processes that send them, records of runs and
reports. It may import the client, messages, rpc, formats and, for the HTML page, reports. Only the
command line imports it.
"""

from divgrpc_client.load.calls import Call, read_mix
from divgrpc_client.load.report import Report, write_report
from divgrpc_client.load.schedule import Schedule, Step, constant, parse_schedule
from divgrpc_client.load.session import Session, run_load
from divgrpc_client.load.settings import Settings
from divgrpc_client.load.thresholds import Threshold, parse_threshold

__all__ = [
    "Call",
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
    "run_load",
    "write_report",
]
