"""The dashboard and the alerts query metrics and labels that a node really exposes."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from promql_parser import parse

from agent_tts.agent.turns import AgentMetrics
from agent_tts.config.settings import Settings
from agent_tts.engine_info import EngineInfo
from agent_tts.messages import EnginePong, Finished
from agent_tts.serve.access.fleet import Fleet
from agent_tts.serve.access.fleet_counts import RedisCounts
from agent_tts.serve.access.node_counts import NodeCounts
from agent_tts.serve.telemetry import pages
from agent_tts.serve.telemetry.metrics import ContextMeter, Metrics

MONITORING = Path(__file__).parents[2] / "configs" / "monitoring"
DASHBOARDS = [json.loads(path.read_text()) for path in sorted((MONITORING / "grafana" / "dashboards").glob("*.json"))]
PANELS = [panel for dashboard in DASHBOARDS for panel in dashboard["panels"]]
ALERTS = yaml.safe_load((MONITORING / "alerts.yml").read_text())

# Labels that Prometheus adds to every sample.
OF_PROMETHEUS = {"instance", "job"}

Labels = dict[str, dict[str, set[str]]]  # sample name -> label -> values seen


def exposed() -> Labels:
    """All samples of a fleet's node with several fronts and an agent, after some work, parsed by Prometheus' client."""
    metrics, counts, fronts = Metrics(), NodeCounts(Settings()), pages.NodePages()
    agent = AgentMetrics(metrics.registry)
    store = RedisCounts("redis://127.0.0.1", "")
    Fleet(counts.ledger.counts, store, False, time.monotonic, lambda *_: None).show(counts._registry)
    counts.engines.started(0, EngineInfo("tone", "tone", 4, (), "a", {}))
    counts.engines.pulse(0, EnginePong(1, 1, 0, 2.0))
    counts._up.labels(0).set(1)
    counts._starts.labels(0).inc()
    for transport in ("websocket", "http", "rtc"):
        meter = ContextMeter(metrics, transport, time.monotonic)
        meter.text(1)
        meter.audio(80)
        meter.cancelled()
        meter.finished(Finished("c", "error", code="at_capacity"))
    for labelled in (agent.calls.labels("rtc"), agent.turns.labels("answered"), agent.early.labels("spoken")):
        labelled.inc()
    agent.early_speech.labels("spoken").inc(0.1)
    agent.turn.labels("audio_first").observe(0.1)
    agent.page.labels("heard").observe(0.1)
    fronts.take(0, pages.read(pages.write(metrics.registry)))
    return read(fronts.merged(counts._registry))


def read(page: str) -> Labels:
    found: Labels = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            labels = found.setdefault(sample.name, {})
            for label, value in sample.labels.items():
                labels.setdefault(label, set()).add(value)
    return found


EXPOSED = exposed()


def queries() -> list[tuple[str, str]]:
    """Every PromQL expression, with its place."""
    panels = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]
    alerts = [(rule["alert"], rule["expr"]) for group in ALERTS["groups"] for rule in group["rules"]]
    return panels + alerts


def legends() -> list[tuple[str, str]]:
    return [(target["expr"], target["legendFormat"]) for panel in PANELS for target in panel["targets"]]


@pytest.mark.parametrize(("where", "query"), queries())
def test_a_query_uses_metrics_that_exist(where: str, query: str) -> None:
    asked = re.findall(r"\b(agent_tts_\w+)(?:\{([^}]*)\})?", query)
    assert asked or query.startswith("up{")
    labels: set[str] = set(OF_PROMETHEUS)
    for name, selectors in asked:
        assert name in EXPOSED, where
        labels |= EXPOSED[name].keys()
        for label, value in re.findall(r'(\w+)[=!~]+"([^"]*)"', selectors):
            assert label in EXPOSED[name].keys() | OF_PROMETHEUS, where
            assert label in OF_PROMETHEUS or value in EXPOSED[name][label], where
        if name.endswith("_total"):
            assert re.search(rf"(rate|increase)\({name}\b", query), f"{where}: a counter needs rate or increase"
        if name.endswith("_bucket"):
            assert "histogram_quantile" in query
            assert "by (" not in query or re.search(r"by \([^)]*\ble\b", query), where
    for group in re.findall(r"by \(([^)]*)\)", query):
        assert {label.strip() for label in group.split(",")} <= labels, where
    parse(re.sub(r"\$__rate_interval", "1m", query))


@pytest.mark.parametrize(("query", "legend"), legends())
def test_a_legend_uses_labels_of_its_query(query: str, legend: str) -> None:
    groups, *_ = re.findall(r"by \(([^)]*)\)", query)
    assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= {label.strip() for label in groups.split(",")}


@pytest.mark.parametrize(
    "rule", [rule for group in ALERTS["groups"] for rule in group["rules"]], ids=lambda r: r["alert"]
)
def test_the_text_of_an_alert_uses_labels_of_its_query(rule: dict[str, Any]) -> None:
    named = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
    metrics = re.findall(r"\bagent_tts_\w+", rule["expr"])
    grouped = re.findall(r"by \(([^)]*)\)", rule["expr"])
    kept = {label.strip() for group in grouped for label in group.split(",")}
    available = kept or OF_PROMETHEUS.union(*(EXPOSED[name].keys() for name in metrics))
    assert named <= available
    assert rule["labels"]["severity"] in ("page", "warn")


def test_panels_do_not_overlap_and_all_query_the_chosen_source() -> None:
    for dashboard in DASHBOARDS:
        places = [tuple(panel["gridPos"][key] for key in "xy") for panel in dashboard["panels"]]
        assert len(set(places)) == len(places)
    assert all(panel["datasource"]["uid"] == "${source}" for panel in PANELS)
    assert len({dashboard["uid"] for dashboard in DASHBOARDS}) == len(DASHBOARDS)


def test_prometheus_loads_the_alerts_and_grafana_finds_the_dashboard() -> None:
    prometheus = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    assert [(MONITORING / name).is_file() for name in prometheus["rule_files"]] == [True]
    compose = yaml.safe_load((MONITORING.parent / "docker" / "compose.yaml").read_text())["services"]
    cluster = yaml.safe_load((MONITORING / "cluster.yml").read_text())
    jobs = [config["job_name"] for config in cluster["scrape_configs"]]
    asked = {job for _, query in queries() for job in re.findall(r'job="([^"]*)"', query)}
    assert (cluster["rule_files"], asked <= {*jobs}) == (prometheus["rule_files"], True)
    provider = yaml.safe_load((MONITORING / "grafana/provisioning/dashboards/agent-tts.yaml").read_text())
    folder = provider["providers"][0]["options"]["path"]
    assert any(mount.split(":")[1] == folder for mount in compose["grafana"]["volumes"])
    (target,) = prometheus["scrape_configs"][0]["static_configs"][0]["targets"]
    assert target.split(":")[0] in compose["cpu"]["networks"]["default"]["aliases"]
    assert (
        prometheus["scrape_configs"][0]["authorization"]["credentials_file"]
        == compose["prometheus"]["configs"][0]["target"]
    )
