"""Dashboard and alert rules ask for metrics that a query exports, with labels that these have."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from godwit.ops.figures import METRICS
from godwit.ops.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Iterator

DEPLOY = Path(__file__).parents[3] / "deploy"
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana/godwit.json").read_text())
RULES: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus/alerts.yaml").read_text())
ALERTS: list[dict[str, Any]] = RULES["groups"][0]["rules"]
ENDINGS = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "info": ("_info",)}
OF_PROMETHEUS = {"job", "instance", "le"}


def exported() -> dict[str, set[str]]:
    """Return the name of each series → its labels."""
    return {
        name + ending: {*metric.labels, *OF_PROMETHEUS}
        for name, metric in METRICS.items()
        for ending in ENDINGS.get(metric.kind, ("",))
    }


def expressions() -> Iterator[tuple[str, str, str]]:
    """Yield where an expression stands, it, and the text with labels that is shown of it."""
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"], target["legendFormat"]
    for note in DASHBOARD["annotations"]["list"]:
        yield note["name"], note["expr"], note["titleFormat"]
    for rule in ALERTS:
        yield rule["alert"], rule["expr"], rule["annotations"]["summary"]


EXPRESSIONS = list(expressions())


def test_what_is_exported_has_these_names() -> None:
    metrics = Metrics("delays")
    metrics.flush()
    families = {family.name for family in metrics.registry.collect()}
    assert families == set(METRICS)


@pytest.mark.parametrize(("where", "expression", "shown"), EXPRESSIONS)
def test_metrics_and_labels_that_are_asked_for_exist(
    where: str, expression: str, shown: str
) -> None:
    known = exported()
    names = re.findall(r"\bgodwit_\w+", expression)
    assert names or where == "GodwitQueryDown"
    assert set(names) <= set(known), where
    labels = {label for name in names for label in known[name]} | OF_PROMETHEUS
    asked = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", expression))
    for listed in re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", expression):
        asked |= {label.strip() for label in listed.split(",")}
    asked |= set(re.findall(r"\{\{\s*(?:\$labels\.)?([a-z]\w*)\s*\}\}", shown))
    assert asked <= labels, where


def test_every_kind_of_metric_that_tells_of_trouble_has_an_alert() -> None:
    watched = " ".join(rule["expr"] for rule in ALERTS)
    for name in ("epochs_aborted", "rows_left_out", "rows_unreadable", "key_groups_suspended"):
        assert f"godwit_{name}" in watched
    assert all({"summary", "description"} <= set(rule["annotations"]) for rule in ALERTS)
    assert len({rule["alert"] for rule in ALERTS}) == len(ALERTS)


def test_panels_lie_side_by_side_and_have_numbers_of_their_own() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool of Prometheus")
def test_prometheus_itself_reads_all_of_it(tmp_path: Path) -> None:
    plain = {"$__rate_interval": "5m", "$job": "godwit", "$instance": ".+"}
    rules = []
    for number, (_, expression, _) in enumerate(EXPRESSIONS):
        for variable, value in plain.items():
            expression = expression.replace(variable, value)  # noqa: PLW2901  Grafana's own
        rules.append({"record": f"panel:{number}", "expr": expression})
    panels = tmp_path / "panels.yaml"
    panels.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    for file in (panels, DEPLOY / "prometheus/alerts.yaml"):
        done = subprocess.run(
            ["promtool", "check", "rules", file], check=False, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
