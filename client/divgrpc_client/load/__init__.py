"""Load tests: calls sent to a server at a rate, and figures of how it answered.

    from divgrpc_client.load import Call, constant, run_load
    report = run_load("127.0.0.1:50051", [Call("products", queries)], constant(500, seconds=30))
    print(report["latency"]["p99"], report["void"])

Lives here: schedules, calls, the processes that send them, records of runs, reports. May import the
client, messages, rpc, formats and, for its page, reports. Only the command line imports it.
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
