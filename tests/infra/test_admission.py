"""The policy that holds the submitter's account to the nightly scan, evaluated as Kubernetes does, by CEL."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import celpy
import pytest
import yaml

K8S = Path(__file__).parents[2] / "infra" / "k8s"


def refusals(job: dict[str, Any]) -> list[str]:
    """Return the messages of the validations that a RayJob fails; an error of an expression refuses too."""
    policy = next(yaml.safe_load_all((K8S / "admission.yaml").read_text()))["spec"]
    cel = celpy.Environment()
    values: dict[str, Any] = {"object": celpy.json_to_cel(job), "variables": celpy.celtypes.MapType()}

    def evaluate(expression: str) -> Any:
        return cel.program(cel.compile(expression)).evaluate(values)

    for variable in policy["variables"]:
        values["variables"][celpy.celtypes.StringType(variable["name"])] = evaluate(variable["expression"])
    failed = []
    for validation in policy["validations"]:
        try:
            holds = bool(evaluate(validation["expression"]))
        except celpy.CELEvalError:
            holds = False
        failed += [] if holds else [validation["message"]]
    return failed


@pytest.fixture(scope="module")
def nightly() -> dict[str, Any]:
    return yaml.safe_load((K8S / "rayjob.yaml").read_text().replace("DATE", "2026-11-20"))


def test_admit_the_nightly_job(nightly):
    assert refusals(nightly) == []


def change(job: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    changed = deepcopy(job)
    *parents, last = (int(part) if part.isdecimal() else part for part in path.split("/"))
    place: Any = changed
    for part in parents:
        place = place[part]
    place[last] = value
    return changed


CLUSTER = "spec/rayClusterSpec"
HEAD = f"{CLUSTER}/headGroupSpec"
WORKER = f"{CLUSTER}/workerGroupSpecs/0"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec/entrypoint", "python -m jobs.scan --config /etc/brickscan/config/scan.toml --date 2026-11-20; id"),
        ("spec/entrypoint", "cat /etc/brickscan/keys/summer"),
        ("spec/submitterPodTemplate", {"spec": {}}),
        ("spec/runtimeEnvYAML", "pip: [evil]"),
        ("spec/clusterSelector", {"a": "b"}),
        ("spec/submissionMode", "K8sJobMode"),
        (f"{CLUSTER}/enableInTreeAutoscaling", True),
        ("metadata/annotations", {"ray.io/overwrite-container-cmd": "true"}),
        (f"{HEAD}/template/metadata/annotations", {"a": "b"}),
        (f"{HEAD}/rayStartParams/num-cpus", "0; id"),
        (f"{WORKER}/rayStartParams/metrics-export-port", "$(id)"),
        (f"{HEAD}/template/spec/serviceAccountName", "default"),
        (f"{WORKER}/template/spec/automountServiceAccountToken", True),
        (f"{WORKER}/template/spec/containers/0/image", "evil@sha256:" + 64 * "0"),
        (f"{HEAD}/template/spec/containers/0/command", ["sh"]),
        (f"{HEAD}/template/spec/containers/0/args", ["-c", "id"]),
        (f"{HEAD}/template/spec/containers/0/env/0/name", "LD_PRELOAD"),
        (f"{HEAD}/template/spec/containers/0/envFrom", [{"secretRef": {"name": "other"}}]),
        (f"{HEAD}/template/spec/initContainers", [{"name": "x", "image": "evil"}]),
        (f"{HEAD}/template/spec/volumes/0", {"name": "config", "secret": {"secretName": "other"}}),
        (f"{WORKER}/template/spec/volumes/0", {"name": "config", "hostPath": {"path": "/"}}),
    ],
)
def test_refuse_any_other_job(nightly, path, value):
    assert refusals(change(nightly, path, value)), path
