"""The text of a scrape: series of the server in the formats of Prometheus and OpenMetrics."""

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from divgrpc_server.monitoring import definitions
from divgrpc_server.monitoring.definitions import BUCKET_SECONDS, METRICS
from divgrpc_server.monitoring.page import Key, Values

_BOUNDS = (*(f"{bound:g}" for bound in BUCKET_SECONDS), "+Inf")


class _Series(Collector):
    """Gives the registry one state of all series."""

    def __init__(self, series: dict[Key, Values]) -> None:
        self._series = series

    def collect(self) -> Iterator[Metric]:
        """Yield each metric with its series, also a metric without any."""
        for metric in METRICS:
            keys = sorted(key for key in self._series if key[0] == metric.name)
            yield _family(metric, [(key[1:], self._series[key]) for key in keys])


def _family(metric: definitions.Metric, rows: list[tuple[Key, Values]]) -> Metric:
    name, text, labels = metric.name, metric.help, metric.labels
    if metric.kind == "histogram":
        histogram = HistogramMetricFamily(name, text, labels=labels)
        for values, (*counts, total) in rows:
            buckets = list(zip(_BOUNDS, accumulate(counts), strict=True))
            histogram.add_metric(values, buckets, total)
        return histogram
    if metric.kind == "summary":
        summary = SummaryMetricFamily(name, text, labels=labels)
        for values, (total, count) in rows:
            summary.add_metric(values, int(count), total)
        return summary
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = kind(name, text, labels=labels)
    for values, (value,) in rows:
        family.add_metric(values, value)
    return family


def expose(series: dict[Key, Values], accept: str) -> tuple[bytes, str]:
    """Return the text of a scrape, and its content type; `accept` is the header of the request."""
    registry = CollectorRegistry()
    registry.register(_Series(series))
    try:
        encode, content_type = choose_encoder(accept)
    except ValueError:  # an invalid version in the header
        encode, content_type = choose_encoder("")
    return encode(registry), content_type
