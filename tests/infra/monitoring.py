"""Faults of alarms and dashboard: bad expressions, metrics that nobody exports, alarms that nobody can act on."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser

from scanner.cluster.commits import METRIC_NAMES
from schemas.words import AuditState
from tests.infra.manifests import Manifests

OURS = {f"ray_{name}" for name in METRIC_NAMES}
OTHERS = {"kube_job_status_failed", "kube_cronjob_status_last_successful_time"}
"""Metrics of kube-state-metrics."""

SEVERITIES = {"critical", "warning"}
PANELS = {"stat", "timeseries"}


def alarm_problems(infra: Path) -> list[str]:
    found = Manifests(infra)
    rules = [rule for group in found.one("PrometheusRule")["spec"]["groups"] for rule in group["rules"]]
    said = []
    for rule in rules:
        name = rule["alert"]
        if rule.keys() - {"for"} != {"alert", "expr", "labels", "annotations"}:
            said.append(f"{name}: fields {sorted(rule)}")
        if rule["labels"].get("severity") not in SEVERITIES:
            said.append(f"{name}: severity {rule['labels'].get('severity')}; allowed: {sorted(SEVERITIES)}")
        if f"\n| `{name}` |" not in found.readme:
            said.append(f"{name}: the README does not say what to do")
        said += [f"{name}: {problem}" for problem in expression_problems(rule["expr"])]
        if 'cronjob="' in rule["expr"] and f'cronjob="{found.one("CronJob")["metadata"]["name"]}"' not in rule["expr"]:
            said.append(f"{name}: no such CronJob")
    told = {line.split("`")[1] for line in found.readme.splitlines() if line.startswith("| `Brickscan")}
    said += [f"README: there is no alarm {name}" for name in told - {rule["alert"] for rule in rules}]
    return said


def dashboard_problems(infra: Path) -> list[str]:
    board = json.loads((infra / "grafana" / "brickscan.json").read_text())
    said, seen = [], set()
    for panel in board["panels"]:
        title = panel["title"]
        if panel["type"] not in PANELS:
            said.append(f"{title}: type {panel['type']}")
        for target in panel["targets"]:
            said += [f"{title}: {problem}" for problem in expression_problems(target["expr"])]
            seen |= metrics_of(target["expr"]) if not expression_problems(target["expr"]) else set()
    variables = {variable["name"] for variable in board["templating"]["list"]}
    text = json.dumps(board["panels"])
    said += [
        f"variable {name} is used nowhere"
        for name in variables
        if f"${name}" not in text and f"${{{name}}}" not in text
    ]
    query = next(variable["query"]["query"] for variable in board["templating"]["list"] if variable["type"] == "query")
    if query.removeprefix("label_values(").split(",")[0] not in OURS:
        said.append(f"the list of clusters asks for an unknown metric: {query}")
    if len({panel["id"] for panel in board["panels"]}) != len(board["panels"]):
        said.append("two panels have one id")
    said += [f"metric {name} is in no panel" for name in OURS - seen]
    return said


def expression_problems(text: str) -> list[str]:
    try:
        names = metrics_of(text)
    except ValueError as error:
        return [f"{text!r} does not parse: {error}"]
    said = [f"metric {name} does not exist" for name in sorted(names - OURS - OTHERS)]
    for selector in selectors(promql_parser.parse(text)):
        states = {matcher.value for matcher in selector.matchers.matchers if matcher.name == "state"}
        said += [f"the audit has no state {state!r}" for state in states - set(AuditState)]
    return said


def metrics_of(text: str) -> set[str]:
    """Names of the metrics in an expression.

    Raises:
        ValueError: the text is no expression.
    """
    return {selector.name for selector in selectors(promql_parser.parse(text))}


def selectors(node: Any) -> Iterator[Any]:
    """Vector selectors of a parsed expression."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    for part in ("lhs", "rhs", "expr", "param", "args", "vector_selector"):
        inner = getattr(node, part, None)
        for item in inner if isinstance(inner, list) else [inner]:
            if item is not None and not isinstance(item, str):
                yield from selectors(item)
