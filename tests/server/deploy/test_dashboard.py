"""The dashboard and the alerts ask for metrics and labels that exist."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from divgrpc_server.monitoring.definitions import BY_NAME, METRICS

FOLDER: Final = Path(__file__).parents[3] / "server" / "deploy"
DASHBOARD: Final = json.loads((FOLDER / "grafana.json").read_text())
ALERTS: Final = yaml.safe_load((FOLDER / "alerts.yaml").read_text())
# Labels that Prometheus itself adds to each series, and the label of buckets.
ADDED: Final = {"instance", "job"}
SUFFIXES: Final = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}
WORDS: Final = {
    *("sum", "count", "min", "max", "by", "rate", "increase", "histogram_quantile"),
    "label_values",
}


def _series() -> dict[str, set[str]]:
    """Return the labels of each name that a scrape has, without those of Prometheus."""
    series = {}
    for metric in METRICS:
        for suffix in SUFFIXES.get(metric.kind, ("",)):
            series[metric.name + suffix] = {*metric.labels, *({"le"} if "bucket" in suffix else ())}
    return series


def faults_of(expression: str) -> list[str]:
    """Return what an expression of PromQL asks for that does not exist."""
    series, faults = _series(), []
    known = set(ADDED)
    text = re.sub(r"\[[^\]]*\]", "", expression)

    def check(match: re.Match[str]) -> str:
        name, selector = match[1], match[2] or ""
        if name not in series:
            faults.append(f"no metric {name}")
            return " "
        known.update(series[name])
        for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", selector):
            if label not in series[name] | ADDED:
                faults.append(f"{name} has no label {label}")
        return " "

    text = re.sub(r"\b(divgrpc_\w+)(\{[^}]*\})?", check, text)
    for labels in re.findall(r"\bby\s*\(([^)]*)\)", text):
        faults += [f"no label {x}" for x in re.findall(r"\w+", labels) if x not in known]
    text = re.sub(r"\bby\s*\([^)]*\)", " ", text)
    words = set(re.findall(r"[A-Za-z_]\w*", text)) - WORDS - ADDED
    return faults + [f"unknown word {word}" for word in sorted(words)]


def panels() -> Iterator[dict[str, Any]]:
    for panel in DASHBOARD["panels"]:
        yield panel
        yield from panel.get("panels", [])


CHARTS: Final = [panel for panel in panels() if panel["type"] != "row"]
RULES: Final = [rule for group in ALERTS["groups"] for rule in group["rules"]]


def _documented() -> Iterator[str]:
    """Yield the queries of the documentation."""
    page = FOLDER.parents[1] / "docs" / "pages" / "guide" / "monitoring.md"
    section = page.read_text().partition("## Useful queries")[2]
    for query in re.findall(r"^\|[^|]*\| `(.*)` \|$", section, re.MULTILINE):
        yield query.replace("\\|", "|")


def test_queries_of_the_documentation_are_read() -> None:
    assert len(list(_documented())) >= 5


def test_alerts_are_documented() -> None:
    page = FOLDER.parents[1] / "docs" / "pages" / "guide" / "monitoring.md"
    names = re.findall(r"^\| `(Divgrpc\w+)` \|", page.read_text(), re.MULTILINE)
    assert names == [rule["alert"] for rule in RULES]


def expressions() -> Iterator[str]:
    for panel in CHARTS:
        yield from (target["expr"] for target in panel["targets"])
    yield from (rule["expr"] for rule in RULES)
    yield from _documented()
    yield from (v["query"] for v in DASHBOARD["templating"]["list"] if v["type"] == "query")


@pytest.mark.parametrize("expression", sorted(set(expressions())))
def test_an_expression_asks_for_what_exists(expression: str) -> None:
    assert faults_of(expression) == []
    assert expression.count("(") == expression.count(")")
    assert "divgrpc_" in expression


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("divgrpc_nothing", "no metric divgrpc_nothing"),
        ("divgrpc_call_seconds", "no metric divgrpc_call_seconds"),
        ('rate(divgrpc_calls_total{role="x"}[5m])', "divgrpc_calls_total has no label role"),
        ("sum by (role) (rate(divgrpc_calls_total[5m]))", "no label role"),
        ("sum by (le) (rate(divgrpc_call_seconds_sum[5m]))", "no label le"),
        ("avg(other_metric)", "unknown word avg"),
    ],
)
def test_a_wrong_expression_is_found(expression: str, fault: str) -> None:
    assert fault in faults_of(expression)


def test_every_metric_is_on_the_dashboard_or_in_an_alert() -> None:
    """A metric that nobody looks at is not worth its series."""
    text = " ".join(expressions())
    names = {re.sub(r"_(bucket|sum|count)$", "", name) for name in re.findall(r"divgrpc_\w+", text)}
    unseen = set(BY_NAME) - names
    assert unseen <= {
        # A scrape shows them, and the dashboard has related ones.
        *("divgrpc_processes", "divgrpc_processes_started_total", "divgrpc_queries_total"),
        *("divgrpc_writes_total", "divgrpc_index_sequence"),
    }


def test_people_can_read_the_dashboard() -> None:
    """Each chart says what it shows, in which unit and by which legend; charts do not overlap."""
    for panel in CHARTS:
        assert panel["title"], panel["id"]
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert all(target["legendFormat"] for target in panel["targets"]), panel["title"]
    rows = [panel["title"] for panel in panels() if panel["type"] == "row"]
    assert rows[0] == "Is all well?"
    assert len({panel["id"] for panel in panels()}) == len(list(panels()))
    cells = [
        (x, y)
        for panel in panels()
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


def test_each_alert_says_what_to_do() -> None:
    assert 3 <= len(RULES) <= 10
    for rule in RULES:
        assert rule["alert"].startswith("Divgrpc")
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert set(rule["annotations"]) == {"summary", "runbook"}
        assert rule["annotations"]["runbook"].strip().endswith(".")
        labels = re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])
        grouped = re.search(r"by \(([^)]*)\)", rule["expr"])
        remaining = re.findall(r"\w+", grouped[1]) if grouped else ["instance"]
        assert set(labels) <= set(remaining), rule["alert"]
