"""Faults of the Kubernetes manifests: schemas, enums, and names that must exist elsewhere."""

import functools
import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml

from scanner.errors import Refused
from scanner.storage.toml import read_toml
from schemas.config import ScanConfig

VERSION = "1.37"

FIELDS = {
    "RayJob": {
        *("entrypoint", "submissionMode", "backoffLimit", "activeDeadlineSeconds", "shutdownAfterJobFinishes"),
        *("ttlSecondsAfterFinished", "rayClusterSpec"),
    },
    "PodMonitor": {"selector", "podMetricsEndpoints"},
    "PrometheusRule": {"groups"},
}
"""Fields of `spec` that we use in kinds that Kubernetes' own schemas lack."""

CLUSTER_FIELDS = {"rayVersion", "authOptions", "headGroupSpec", "workerGroupSpecs"}
HEAD_FIELDS = {"serviceType", "rayStartParams", "template"}
WORKER_FIELDS = {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}

ENUMS = {
    "concurrencyPolicy": {"Forbid"},
    "restartPolicy": {"Never", "OnFailure", "Always"},
    "submissionMode": {"HTTPMode", "K8sJobMode", "SidecarMode"},
    "serviceType": {"ClusterIP"},
    "medium": {"", "Memory"},
    "protocol": {"TCP", "UDP"},
    "policyTypes": {"Ingress", "Egress"},
    "accessModes": {"ReadWriteMany", "ReadWriteOnce", "ReadOnlyMany", "ReadWriteOncePod"},
    "pod-security.kubernetes.io/enforce": {"restricted", "baseline"},
}


OUR_IMAGE = "BRICKSCAN_IMAGE"
"""What stands for the image of the scan until whoever deploys it has put its name and digest there."""


class Manifests:
    """All documents of a folder `k8s`, and the names in them."""

    def __init__(self, infra: Path) -> None:
        self.folder = infra / "k8s"
        self.readme = (infra / "README.md").read_text()
        self.documents: list[dict[str, Any]] = []
        for path in sorted(self.folder.glob("*.yaml")):
            self.documents += yaml.safe_load_all(path.read_text())
        self.kustomization = self.one("Kustomization")

    def one(self, kind: str) -> dict[str, Any]:
        (document,) = (document for document in self.documents if document["kind"] == kind)
        return document

    def names(self, kind: str) -> set[str]:
        return {document["metadata"]["name"] for document in self.documents if document["kind"] == kind}

    def config_maps(self) -> dict[str, list[str]]:
        return {made["name"]: made["files"] for made in self.kustomization["configMapGenerator"]}

    def templates(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Pod templates, each with its place."""
        cluster = self.one("RayJob")["spec"]["rayClusterSpec"]
        yield "head", cluster["headGroupSpec"]["template"]
        for group in cluster["workerGroupSpecs"]:
            yield f"workers {group['groupName']}", group["template"]
        yield "submitter", self.one("CronJob")["spec"]["jobTemplate"]["spec"]["template"]


def problems(infra: Path) -> list[str]:
    found = Manifests(infra)
    return [*schema_problems(found), *enum_problems(found), *pod_problems(found), *name_problems(found)]


def schema_problems(found: Manifests) -> Iterator[str]:
    for document in found.documents:
        kind = document["kind"]
        if kind in FIELDS:
            yield from (f"{kind}: unknown field {name}" for name in document["spec"].keys() - FIELDS[kind])
        elif kind != "Kustomization":
            yield from against_schema(kind, document)
    job = found.one("RayJob")
    if job["apiVersion"] != "ray.io/v1" or found.one("CronJob")["apiVersion"] != "batch/v1":
        yield "RayJob is of ray.io/v1, CronJob of batch/v1"
    cluster = job["spec"]["rayClusterSpec"]
    yield from (f"rayClusterSpec: unknown field {name}" for name in cluster.keys() - CLUSTER_FIELDS)
    yield from (f"headGroupSpec: unknown field {name}" for name in cluster["headGroupSpec"].keys() - HEAD_FIELDS)
    for group in cluster["workerGroupSpecs"]:
        yield from (f"workerGroupSpecs: unknown field {name}" for name in group.keys() - WORKER_FIELDS)
        if not group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]:
            yield "workerGroupSpecs: replicas are not between minReplicas and maxReplicas"
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        if not all(isinstance(value, str) for value in group["rayStartParams"].values()):
            yield "rayStartParams: values are strings"
    if cluster.get("authOptions") != {"mode": "token"}:
        yield "rayClusterSpec: authOptions must ask for a token"
    for where, template in found.templates():
        yield from against_schema(where, {"apiVersion": "v1", "kind": "Pod", **template})


def against_schema(where: str, document: dict[str, Any]) -> Iterator[str]:
    complaint = schema_complaint(json.dumps(document))
    if complaint:
        yield f"{where}: {complaint}"


@functools.cache  # most documents are the same in the next broken example
def schema_complaint(document: str) -> str:
    try:
        kubernetes_validate.validate(json.loads(document), VERSION, strict=True)
    except kubernetes_validate.ValidationError as error:
        return f"{'.'.join(map(str, error.path))}: {error.message[:200]}"
    return ""


def enum_problems(found: Manifests) -> Iterator[str]:
    def walk(value: object, where: str) -> Iterator[str]:
        if isinstance(value, list):
            for item in value:
                yield from walk(item, where)
        elif isinstance(value, dict):
            for name, inner in value.items():
                given = inner if isinstance(inner, list) else [inner]
                if name in ENUMS and not set(given) <= ENUMS[name]:
                    yield f"{where}: {name} = {inner!r}; allowed: {sorted(ENUMS[name])}"
                yield from walk(inner, where)

    for document in found.documents:
        yield from walk(document, document["kind"])


def pod_problems(found: Manifests) -> Iterator[str]:
    for where, template in found.templates():
        pod = template["spec"]
        user = pod["securityContext"]
        if not user.get("runAsNonRoot") or not user.get("runAsUser") or "seccompProfile" not in user:
            yield f"{where}: must not run as root, nor without a seccomp profile"
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        for secret in (volume["secret"] for volume in volumes.values() if "secret" in volume):
            if secret.get("defaultMode") != 0o440 or not user.get("fsGroup"):
                yield f"{where}: secrets need defaultMode 0440 and an fsGroup that reads them"
            if f"create secret generic {secret['secretName']} " not in found.readme:
                yield f"{where}: the README does not say how Secret {secret['secretName']} is made"
        for volume in volumes.values():
            made = volume.get("configMap", {}).get("name")
            if made is not None and made not in found.config_maps():
                yield f"{where}: ConfigMap {made} is made nowhere"
            claim = volume.get("persistentVolumeClaim", {}).get("claimName")
            if claim is not None and claim not in found.names("PersistentVolumeClaim"):
                yield f"{where}: claim {claim} is made nowhere"
        if pod["serviceAccountName"] not in found.names("ServiceAccount"):
            yield f"{where}: service account {pod['serviceAccountName']} is made nowhere"
        for container in pod["containers"]:
            yield from container_problems(where, container, set(volumes))


def container_problems(where: str, container: dict[str, Any], volumes: set[str]) -> Iterator[str]:
    image = container["image"]
    if image != OUR_IMAGE and not re.fullmatch(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}", image):
        yield f"{where}: image {image} is neither {OUR_IMAGE} nor pinned by a digest"
    rights = container["securityContext"]
    if rights != {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }:
        yield f"{where}: a container with rights that it does not need"
    if "memory" not in container["resources"].get("limits", {}):
        yield f"{where}: no limit of memory"
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    if mounted != volumes:
        yield f"{where}: volumes {sorted(mounted ^ volumes)} are not both declared and mounted"
    ports = {port["name"] for port in container.get("ports", ())}
    for probe in ("readinessProbe", "livenessProbe"):
        if probe in container and container[probe]["httpGet"]["port"] not in ports:
            yield f"{where}: {probe} asks a port that is not declared"


def name_problems(found: Manifests) -> Iterator[str]:
    folder = found.folder
    there = {path.name for path in folder.glob("*.yaml")} - {"kustomization.yaml", "rayjob.yaml"}
    if set(found.kustomization["resources"]) != there:
        yield f"kustomization: resources {sorted(set(found.kustomization['resources']) ^ there)}"
    for files in found.config_maps().values():
        yield from (f"kustomization: {name} does not exist" for name in files if not (folder / name).is_file())

    job, templates = found.one("RayJob"), dict(found.templates())
    options = job["spec"]["entrypoint"].split()
    if options[:2] != ["python", "-m"] or importlib.util.find_spec(options[2]) is None:
        yield f"RayJob: entrypoint {job['spec']['entrypoint']!r} runs nothing of ours"
    config = options[options.index("--config") + 1]
    if config not in mounted_files(found, templates["head"]):
        yield f"RayJob: configuration {config} is mounted nowhere"
    (script,) = templates["submitter"]["spec"]["containers"][0]["command"][1:]
    if script not in mounted_files(found, templates["submitter"]):
        yield f"CronJob: script {script} is mounted nowhere"
    try:
        read_toml(folder / "scan.toml", ScanConfig)
    except Refused as error:
        yield f"scan.toml: {error}"
    images = {where: template["spec"]["containers"][0]["image"] for where, template in templates.items()}
    if len({image for where, image in images.items() if where != "submitter"}) != 1:
        yield f"head and workers run different images: {images}"

    binding = found.one("RoleBinding")
    if binding["roleRef"]["name"] not in found.names("Role"):
        yield f"RoleBinding: role {binding['roleRef']['name']} is made nowhere"
    if {subject["name"] for subject in binding["subjects"]} != {templates["submitter"]["spec"]["serviceAccountName"]}:
        yield "RoleBinding: is not for the submitter's service account"

    labels = [template["metadata"]["labels"].items() for template in templates.values()]
    wanted = [("PodMonitor", found.one("PodMonitor")["spec"]["selector"]["matchLabels"])]
    wanted += [
        ("NetworkPolicy", document["spec"]["podSelector"].get("matchLabels", {}))
        for document in found.documents
        if document["kind"] == "NetworkPolicy"
    ]
    yield from (f"{kind}: no pod has {want}" for kind, want in wanted if not any(want.items() <= of for of in labels))
    for endpoint in found.one("PodMonitor")["spec"]["podMetricsEndpoints"]:
        for where in templates.keys() - {"submitter"}:
            ports = {port["name"]: port["containerPort"] for port in templates[where]["spec"]["containers"][0]["ports"]}
            if endpoint["port"] not in ports:
                yield f"PodMonitor: {where} has no port {endpoint['port']}"
            if ports.get("metrics") not in opened(found):
                yield f"NetworkPolicy: nobody may ask {where} for metrics"


def mounted_files(found: Manifests, template: dict[str, Any]) -> set[str]:
    """Paths of the files of ConfigMaps in a pod's first container."""
    paths = {mount["name"]: mount["mountPath"] for mount in template["spec"]["containers"][0]["volumeMounts"]}
    return {
        f"{paths[volume['name']]}/{name}"
        for volume in template["spec"]["volumes"]
        if "configMap" in volume and volume["name"] in paths
        for name in found.config_maps().get(volume["configMap"]["name"], ())
    }


def opened(found: Manifests) -> set[int]:
    """Ports of pods that somebody outside of the scan may reach."""
    return {
        port["port"]
        for document in found.documents
        if document["kind"] == "NetworkPolicy"
        for rule in document["spec"].get("ingress", ())
        for port in rule.get("ports", ())
    }
