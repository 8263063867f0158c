"""Checks of what a store promises about diverse results, for divgrpc and for any other store.

    from divgrpc.conformance import check_store
    report = check_store(store)

`store` is an adapter with the methods and attributes of `Store`. The checks build an index of small
synthetic points, send queries, and compare the answers with what the options promise. The package
needs numpy alone.
"""

from divgrpc.conformance.checks import CHECKS, check_store
from divgrpc.conformance.protocol import Answer, Feature, Points, Request, Store
from divgrpc.conformance.report import CheckResult, Outcome, Report
from divgrpc.conformance.stores import IndexStore, ServerStore

__all__ = [
    "CHECKS",
    "Answer",
    "CheckResult",
    "Feature",
    "IndexStore",
    "Outcome",
    "Points",
    "Report",
    "Request",
    "ServerStore",
    "Store",
    "check_store",
]
