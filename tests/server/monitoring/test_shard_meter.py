"""What fronts count of shard servers, and what a scrape adds up."""

import os

from divgrpc_server.front.meter import ShardMeter
from divgrpc_server.monitoring import page as pages
from divgrpc_server.monitoring.page import Key, Page, Values, accumulate


def test_all_fronts_together_say_once_what_each_of_them_sees() -> None:
    """An engine that cannot be reached is 1 for any number of fronts, and so are states."""
    fronts = []
    for _ in range(3):
        descriptor = pages.create()
        fronts.append(Page(descriptor))
        os.close(descriptor)
    meters = [ShardMeter(page, len(fronts)) for page in fronts]

    def series() -> dict[Key, Values]:
        totals: dict[Key, Values] = {}
        for page in fronts:
            accumulate(totals, page.read())
        return {key: [round(value, 9) for value in values] for key, values in totals.items()}

    for meter in meters:
        meter.set_engine(is_unreachable=True)
        meter.set_states({"serving": 4, "faulty": 2}, 1)
        meter.add_hedge()
        meter.add_call("replied")
    assert series() == {
        ("divgrpc_engine_unreachable",): [1],
        ("divgrpc_shard_servers", "serving"): [4],
        ("divgrpc_shard_servers", "faulty"): [2],
        ("divgrpc_shard_places_missing",): [1],
        ("divgrpc_shard_hedges_total",): [3],
        ("divgrpc_shard_calls_total", "replied"): [3],
    }
    for meter in meters:
        meter.set_engine(is_unreachable=False)
    assert series()["divgrpc_engine_unreachable",] == [0]
    for page in fronts:
        page.close()
