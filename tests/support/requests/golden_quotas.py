"""Recorded queries within quotas and in groups."""

from divgrpc_protos.v1 import filters_pb2, quotas_pb2
from support.requests.golden_requests import Calls, query, three


def calls() -> Calls:
    """Return queries within quotas that the points meet or miss, and a query in groups."""
    rules = [
        quotas_pb2.QuotaRule(value=filters_pb2.Value(keyword="b1"), min=1, max=2),
        quotas_pb2.QuotaRule(value=filters_pb2.Value(keyword="none"), min=1),
    ]
    quotas = [
        quotas_pb2.Quota(attribute="brand", rules=rules, max_each=2),
        quotas_pb2.Quota(attribute="sold", min_each=1),
    ]
    relaxed = quotas_pb2.ON_INFEASIBLE_RELAX
    missed = query("named", queries=three(), k=5, quotas=quotas, on_infeasible=relaxed)
    three_of_one = [quotas_pb2.QuotaRule(value=filters_pb2.Value(keyword="b2"), min=3)]
    two_unsold = [quotas_pb2.QuotaRule(value=filters_pb2.Value(boolean=False), min=2)]
    few = query("named", queries=three(), k=4, on_infeasible=relaxed)
    # All points of the brand are sold.
    few.quotas.add(attribute="brand", rules=three_of_one)
    few.quotas.add(attribute="sold", rules=two_unsold)
    met = query("named", queries=three(), k=4, on_infeasible=quotas_pb2.ON_INFEASIBLE_FAIL)
    met.quotas.add(attribute="brand", max_each=1)
    group_by = quotas_pb2.GroupBy(attribute="brand", groups=2, per_group=2)
    return {
        "query within quotas": ("Query", [met]),
        **_explained(group_by),
        "query that misses quotas": ("Query", [missed]),
        "query that misses a rule": ("Query", [few]),
        "query in groups": ("Query", [query("named", queries=three(), group_by=group_by)]),
    }


def _explained(group_by: quotas_pb2.GroupBy) -> Calls:
    """Return explained queries whose quotas and groups refuse points for different reasons."""
    explained = query("named", queries=three(), k=4, explain=True, keep_duplicates=True)
    explained.quotas.add(attribute="brand", max_each=1)
    explained.quotas.add(attribute="sold", min_each=1)
    # Each quota alone allows the nearest of three points. No second point goes with it.
    three_points = filters_pb2.HasId(string_ids=["n0", "n4", "n8"])
    together = query(
        "named",
        queries=three(),
        k=2,
        diversity=0,
        explain=True,
        keep_duplicates=True,
        filter=filters_pb2.Filter(must=[filters_pb2.Condition(has_id=three_points)]),
    )
    together.quotas.add(attribute="brand", max_each=1)
    together.quotas.add(attribute="sold", max_each=1)
    in_groups = query("named", queries=three(), group_by=group_by, explain=True)
    return {
        "query within quotas, explained": ("Query", [explained]),
        "query in groups, explained": ("Query", [in_groups]),
        "query between quotas, explained": ("Query", [together]),
    }
