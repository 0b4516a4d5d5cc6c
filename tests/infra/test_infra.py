"""infra/ has no fault, and each check finds faults that are put in."""

import re
import shutil
from pathlib import Path

import pytest

from tests.infra import cluster, detector, locks, manifests, monitoring, raycronjob

INFRA = Path(__file__).parents[2] / "infra"
CHECKS = {
    "manifests": manifests.problems,
    "alarms": monitoring.alarm_problems,
    "dashboard": monitoring.dashboard_problems,
    "launcher": cluster.launcher_problems,
    "versions": cluster.version_problems,
    "docker": cluster.docker_problems,
    "locks": locks.lock_problems,
    "submit": cluster.submit_problems,
    "raycronjob": raycronjob.raycronjob_problems,
    "detector": detector.detector_problems,
}
JOB, CRON, NET, MONITOR = "k8s/rayjob.yaml", "k8s/cronjob.yaml", "k8s/network.yaml", "k8s/monitoring.yaml"
DETECTOR, TOML = "k8s-detector/detector.yaml", "k8s-detector/detector.toml"
RAYCRON = "k8s-raycronjob/raycronjob.yaml"
BOARD, RAY, DOCKER = "grafana/brickscan.json", "ray/cluster.yaml", "docker/Dockerfile"

BROKEN = [
    # schemas of Kubernetes, in pod templates too
    ("manifests", CRON, "schedule:", "shedule:", "CronJob: spec: 'schedule' is a required property"),
    ("manifests", CRON, "backoffLimit: 0", "backoffLimit: none", "backoffLimit: 'none' is not of type"),
    ("manifests", JOB, "readinessProbe:", "readynessProbe:", "head: spec.containers.0: Additional properties"),
    ("manifests", JOB, "containerPort: 52365", 'containerPort: "52365"', "workers scan: spec.containers.0.ports.0"),
    ("manifests", NET, "podSelector: {}", "podSelector: {}\n  x: 1", "NetworkPolicy: spec: Additional properties"),
    ("manifests", JOB, "submissionMode:", "submitMode:", "RayJob: unknown field submitMode"),
    ("manifests", JOB, "rayVersion:", "version:", "rayClusterSpec: unknown field version"),
    ("manifests", JOB, "serviceType:", "service:", "headGroupSpec: unknown field service"),
    ("manifests", JOB, "      - groupName: scan", "      - name: x\n        groupName: scan", "unknown field name"),
    ("manifests", JOB, "ray.io/v1", "ray.io/v1alpha1", "RayJob is of ray.io/v1"),
    ("manifests", JOB, 'num-cpus: "0"', "num-cpus: 0", "rayStartParams: values are strings"),
    ("manifests", JOB, "maxReplicas: 4", "maxReplicas: 2", "between minReplicas and maxReplicas"),
    ("manifests", JOB, "mode: token", "mode: disabled", "must ask for a token"),
    # enums
    ("manifests", CRON, "Policy: Forbid", "Policy: Allow", "concurrencyPolicy = 'Allow'; allowed: ['Forbid']"),
    ("manifests", CRON, "restartPolicy: Never", "restartPolicy: Newer", "restartPolicy = 'Newer'"),
    ("manifests", JOB, "HTTPMode", "HttpMode", "submissionMode = 'HttpMode'"),
    ("manifests", NET, "[Ingress, Egress]", "[Ingress, Outgress]", "policyTypes"),
    ("manifests", JOB, "medium: Memory", "medium: memory", "medium = 'memory'"),
    # rights
    ("manifests", JOB, "runAsUser: 1000", "runAsUser: 0", "head: must not run as root"),
    ("manifests", JOB, "fsGroup: 1000", "fsGroup: 0", "secrets need defaultMode 0440 and an fsGroup"),
    ("manifests", JOB, "defaultMode: 0440", "defaultMode: 0444", "secrets need defaultMode 0440"),
    ("manifests", JOB, "drop: [ALL]", "drop: [KILL]", "rights that it does not need"),
    ("manifests", CRON, "limits: {memory: 128Mi}", "limits: {}", "submitter: no limit of memory"),
    ("manifests", CRON, "@sha256:", "", "nor pinned by a digest"),
    ("manifests", JOB, "image: BRICKSCAN_IMAGE", "image: brickscan:0.1.0", "nor pinned by a digest"),
    # names that must exist elsewhere
    ("manifests", JOB, "secretName: brickscan-keys", "secretName: other", "does not say how Secret other is made"),
    ("manifests", JOB, "name: brickscan-config", "name: other", "ConfigMap other is made nowhere"),
    ("manifests", JOB, "claimName: brickscan-registry", "claimName: other", "claim other is made nowhere"),
    ("manifests", JOB, "serviceAccountName: brickscan-scan", "serviceAccountName: a", "service account a"),
    ("manifests", JOB, "{name: registry, mountPath", "{name: other, mountPath", "not both declared and mounted"),
    ("manifests", JOB, "port: dashboard}", "port: board}", "readinessProbe asks a port that is not declared"),
    ("manifests", JOB, "config/scan.toml", "config/other.toml", "other.toml is mounted nowhere"),
    ("manifests", JOB, "-m jobs.scan", "-m jobs.other", "runs nothing of ours"),
    ("manifests", JOB, "image: BRICKSCAN_IMAGE", "image: r/b:1", "run different images"),
    ("manifests", CRON, "submit/submit.sh", "submit/start.sh", "start.sh is mounted nowhere"),
    ("manifests", "k8s/scan.toml", "false_positive_rate = 1e-8", "false_positive_rate = 2", "scan.toml"),
    ("manifests", "k8s/kustomization.yaml", "  - network.yaml\n", "", "resources ['network.yaml']"),
    ("manifests", "k8s/kustomization.yaml", "[scan.toml]", "[scan2.toml]", "scan2.toml does not exist"),
    ("manifests", "k8s/access.yaml", "kind: Role\n  name: brickscan-submit", "kind: Role\n  name: a", "role a is made"),
    ("manifests", MONITOR, "io/name: brickscan", "io/name: brickskan", "PodMonitor: no pod has"),
    ("manifests", NET, "name: brickscan-submit", "name: submit", "NetworkPolicy: no pod has"),
    ("manifests", MONITOR, "- port: metrics", "- port: metric", "head has no port metric"),
    ("manifests", NET, "port: 8080", "port: 8081", "nobody may ask head for metrics"),
    # alarms and dashboard
    ("alarms", MONITOR, "ray_brickscan_shards_left", "ray_brickscan_shards", "ray_brickscan_shards does not exist"),
    ("alarms", MONITOR, "[15m])", "[15m]", "does not parse"),
    ("alarms", MONITOR, "audit_alarms_total", 'audit_state{state="bad"}', "the audit has no state 'bad'"),
    ("alarms", MONITOR, "alert: BrickscanRetries", "alert: BrickscanTries", "does not say what to do"),
    ("alarms", MONITOR, "severity: warning", "severity: mild", "severity mild"),
    ("alarms", MONITOR, 'cronjob="brickscan-nightly"', 'cronjob="nightly"', "no such CronJob"),
    ("alarms", "README.md", "| `BrickscanStalled` |", "| `BrickscanStuck` |", "there is no alarm BrickscanStuck"),
    ("dashboard", BOARD, "ray_brickscan_tokens_total", "ray_brickscan_token_total", "token_total does not exist"),
    ("dashboard", BOARD, "ray_brickscan_worker_memory_bytes", "ray_brickscan_flagged_total", "is in no panel"),
    ("dashboard", BOARD, "rate(", "rate((", "does not parse"),
    ("dashboard", BOARD, '"type": "stat"', '"type": "stats"', "type stats"),
    ("dashboard", BOARD, "label_values(ray_", "label_values(", "asks for an unknown metric"),
    ("dashboard", BOARD, '"id": 2', '"id": 1', "two panels have one id"),
    # launcher
    ("launcher", RAY, "cluster_name:", "name:", "'cluster_name' is a required property"),
    ("launcher", RAY, "max_workers: 2", "max_workers: two", "max_workers: 'two' is not of type"),
    ("launcher", RAY, "container_name:", "containername:", "docker: Additional properties"),
    ("launcher", RAY, "type: local", "type: lokal", "provider 'lokal'"),
    ("launcher", RAY, "max_workers: 2", "max_workers: 1", "Ray refuses it"),
    ("launcher", RAY, "BRICKSCAN_IMAGE", "brickscan:0.0.9", "another image than that of the RayJob"),
    ("launcher", RAY, "RAY_AUTH_MODE=token", "RAY_AUTH_MODE=disabled", "must ask for a token"),
    ("launcher", RAY, "/registry:ro", "/data:ro", "/registry is in no volume"),
    ("launcher", RAY, "export-port=8080", "export-port=8081", "metrics are not at port 8080"),
    # versions
    ("versions", JOB, "rayVersion: 2.60.0", "rayVersion: 2.59.0", "rayVersion 2.59.0; constraints.txt has"),
    ("versions", JOB, 'metrics-export-port: "8080"', 'metrics-export-port: "80"', "not where Ray exports them"),
    ("versions", "README.md", "brickscan:0.1.0 .", "scan:0.1.0 .", "README: builds no image of version 0.1.0"),
    # image
    ("docker", DOCKER, "slim-bookworm@", "bookworm@", "no small image of one version"),
    ("docker", DOCKER, "=python:3.11.16-", "=python:3.11-", "no small image of one version"),
    ("docker", DOCKER, "bookworm@sha256:c425", "bookworm@sha256:", "Python 3.11, by its digest"),
    ("docker", DOCKER, "USER 1000:1000", "USER root", "runs as root"),
    (
        "docker",
        DOCKER,
        "COPY dist/brickscan-0.1.0",
        "COPY dist/brickscan-0.0.9",
        "0.0.9-py3-none-any.whl, which is not",
    ),
    ("docker", "docker/Dockerfile.dockerignore", "!dist", "!dust", "which is not there or is ignored"),
    ("docker", DOCKER, " --require-hashes", "", "installs files of no known digest"),
    ("docker", DOCKER, "# hadolint ignore=DL3008\n", "", "DL3008"),
    ("docker", DOCKER, "WORKDIR /home/", "WORKDIR ", "DL3000"),
    ("docker", DOCKER, "AS run-gpu", "AS run-cuda", "no stage run-gpu"),
    ("docker", DOCKER, "ARG DEVICE=cpu", "ARG KIND=cpu", "arguments"),
    # locks
    ("locks", "requirements.lock", "\nray==2.60.0 ", "\nray==2.61.0 ", "ray 2.61.0; constraints.txt has 2.60.0"),
    ("locks", "requirements.lock", "\nmpmath==1.3.0 ", "\nmpmat==1.3.0 ", "mpmath==1.3.0 is not met; run `make lock`"),
    ("locks", "requirements-gpu.lock", "\ntorch==", "\nother==1\ntorch==", "other has no digest"),
    # the other trigger
    ("raycronjob", RAYCRON, "timeZone:", "timezone:", "RayCronJob: unknown field timezone"),
    ("raycronjob", RAYCRON, '"0 1 * * *"', '"0 2 * * *"', "schedule is not the CronJob's"),
    (
        "detector",
        TOML,
        "SET: the address of the ingress, or a network such as 10.1.0.0/16",
        "10.0.0.1",
        "starts without",
    ),
    ("detector", TOML, 'caller = "X-Forwarded-For"', "", "names no header of its proxy"),
    ("detector", DETECTOR, "replicas: 1", "replicas: 2", "two pods would write one budget"),
    ("detector", DETECTOR, "path: /health", "path: /heath", "detector: probes ask"),
    (
        "detector",
        DETECTOR,
        "readOnlyRootFilesystem: true",
        "readOnlyRootFilesystem: false",
        "rights that it does not need",
    ),
    ("detector", DETECTOR, "egress: []", "egress: [{}]", "it needs no way out"),
    ("detector", DETECTOR, "claimName: brickscan-registry", "claimName: other", "claim other is made nowhere"),
    ("detector", "k8s-detector/detector.toml", "workers = 2", "workers = 0", "detector.toml"),
    ("detector", "k8s-detector/scan.toml", "1e-8", "1e-6", "another rate than the scan's"),
    ("raycronjob", RAYCRON, "--date yesterday", "--date DATE", "entrypoint differs from rayjob.yaml"),
    ("raycronjob", JOB, 'cpu: "4"', 'cpu: "8"', "rayClusterSpec differs from rayjob.yaml"),
    ("raycronjob", "k8s-raycronjob/kustomization.yaml", "kind: CronJob", "kind: Job", "two triggers would start"),
    ("raycronjob", "k8s-raycronjob/kustomization.yaml", "- ../k8s", "- ../k9s", "../k9s does not exist"),
    ("raycronjob", NET, "  name: submit\n", "  name: other\n", "NetworkPolicy submit, which infra/k8s does not make"),
    ("submit", "k8s/submit.sh", "failed with exit code", "ended with code", "other words than Ray's"),
]


@pytest.mark.parametrize("check", CHECKS)
def test_infra_holds_together(check):
    assert list(CHECKS[check](INFRA)) == []


@pytest.mark.parametrize(("check", "name", "old", "new", "complaint"), BROKEN)
def test_what_is_broken_is_found(tmp_path, check, name, old, new, complaint):
    infra = Path(shutil.copytree(INFRA, tmp_path / "infra"))
    text = (infra / name).read_text()
    assert old in text
    (infra / name).write_text(text.replace(old, new, 1))
    said = list(CHECKS[check](infra))
    assert any(complaint in problem for problem in said), said


def test_each_target_of_the_makefile_asks_for_the_marks_of_the_tests_that_it_names():
    """`make fuzz` ran none for as long as its test was marked costly."""
    recipes = re.findall(r"-m pytest (.* (tests/\S+\.py))", (INFRA.parent / "Makefile").read_text(encoding="utf-8"))
    assert len(recipes) >= 3
    for recipe, path in recipes:
        marks = {*re.findall(r"pytest\.mark\.(costly|long|chaos|model|vllm)", (INFRA.parent / path).read_text("utf-8"))}
        assert marks <= {*" ".join(re.findall(r"-m \"?([\w ]+)", recipe)).split()}, recipe
