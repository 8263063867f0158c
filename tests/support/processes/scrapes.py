"""The HTTP port of a server's metrics, as Prometheus and Kubernetes use it."""

import json
import urllib.error
import urllib.request
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from support.processes.running_server import RunningServer, eventually

METRICS = ("--metrics", "127.0.0.1:0", "--log-format", "json")


class Response(NamedTuple):
    """A response: its status code, its text and its content type."""

    code: int
    text: str
    content_type: str


def metrics_address(server: RunningServer) -> str:
    """Return host:port of a server that was started with `METRICS`."""
    entries: list[dict[str, str]] = []

    def find() -> bool:
        lines = server.log.splitlines()
        entries[:] = [json.loads(line) for line in lines if '"serving metrics"' in line]
        return bool(entries)

    eventually(find)
    return entries[0]["address"]


def fetch(address: str, path: str, **headers: str) -> Response:
    """Return the response to a GET, whatever its status."""
    request = urllib.request.Request(f"http://{address}{path}", headers=headers)
    try:
        response = urllib.request.urlopen(request, timeout=20)  # noqa: S310  # always http
    except urllib.error.HTTPError as error:
        response = error
    with response:
        kind = response.headers.get("Content-Type", "")
        return Response(response.status, response.read().decode(), kind)


class Scrape:
    """The values of one scrape."""

    def __init__(self, address: str) -> None:
        self.text = fetch(address, "/metrics").text
        self.families = list(text_string_to_metric_families(self.text))
        self._values = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float:
        """Return the value of one series, 0 if there is none."""
        return self._values.get((name, frozenset(labels.items())), 0.0)

    def counters(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        """Return all values that may never fall."""
        suffixes = ("_total", "_count", "_sum", "_bucket")
        return {key: value for key, value in self._values.items() if key[0].endswith(suffixes)}
