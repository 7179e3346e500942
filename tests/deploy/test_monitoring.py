"""What Grafana shows and Prometheus warns of is served by the program."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.figures import served

pytestmark = pytest.mark.tools

MONITORING = Path(__file__).parents[2] / "deploy" / "monitoring"
DASHBOARD: dict[str, Any] = json.loads((MONITORING / "grafana.json").read_text())
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
]
EXPRESSIONS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]


def names(expression: str) -> set[str]:
    """The metrics of an expression; labels and their values left out."""
    bare = re.sub(r"\{[^}]*\}", "", expression)
    return set(re.findall(r"\bheadgate_[a-z_]+", bare))


def test_metrics_of_dashboard_and_rules_are_served(tmp_path: Path) -> None:
    known = set(served(tmp_path))
    used = set().union(
        *(names(expression) for expression in [*EXPRESSIONS, *(rule["expr"] for rule in RULES)])
    )
    assert len(used) > 20
    assert used <= known


def test_counters_are_shown_as_rates(tmp_path: Path) -> None:
    kinds = {name: kind for name, (kind, _) in served(tmp_path).items()}
    for expression in [*EXPRESSIONS, *(rule["expr"] for rule in RULES)]:
        counted = {name for name in names(expression) if kinds[name] == "counter"} - {
            "headgate_event_sequence"
        }
        assert not counted or re.search(r"\b(rate|increase)\(", expression), expression


def test_panels_do_not_overlap_and_say_what_they_show() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
        assert panel["type"] == "row" or panel["description"]
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))


def test_rules_are_whole() -> None:
    wrong = [
        rule["alert"]
        for rule in RULES
        if not set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        or rule["labels"]["severity"] not in ("warning", "critical")
        or set(rule["annotations"]) != {"summary", "description"}
        or rule["expr"].count("(") != rule["expr"].count(")")
    ]
    assert wrong == []


def test_jobs_of_the_rules_are_those_of_the_service_monitor() -> None:
    """Of itself its job has the name of the Service, and no rule about `up` would ever fire."""
    path = MONITORING.parent / "kubernetes" / "overlays" / "production" / "monitor.yaml"
    (endpoint,) = yaml.safe_load(path.read_text())["spec"]["endpoints"]
    given = {each["targetLabel"]: each["replacement"] for each in endpoint["relabelings"]}
    jobs = {job for rule in RULES for job in re.findall(r'job="([^"]+)"', rule["expr"])}
    assert given["job"] in jobs
    assert jobs == {"headgate-broker", "headgate-gateway", "headgate-oslo"}


def test_variables_and_units_of_the_dashboard_are_there() -> None:
    variables = {each["name"] for each in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD["panels"]))) - {"__rate_interval", "__all"}
    assert used == variables
    kinds = {panel["type"] for panel in DASHBOARD["panels"]}
    assert kinds <= {"row", "stat", "timeseries"}  # of Grafana itself: no plugin is asked for


def test_prometheus_takes_the_rules_and_what_the_dashboard_asks(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("optional: promtool is not here (Debian: prometheus)")
    asked = [
        {"record": f"panel:{number}", "expr": expression.replace("$__rate_interval", "1m")}
        for number, expression in enumerate(EXPRESSIONS)
    ]
    panels = tmp_path / "panels.yaml"
    panels.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": asked}]}))
    told = subprocess.run(
        [promtool, "check", "rules", "--lint=none", str(MONITORING / "alerts.yaml"), str(panels)],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert told.returncode == 0, told.stdout + told.stderr
