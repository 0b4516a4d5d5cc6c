"""Faults of the detector's manifests: schemas, rights, probes, configurations, and what they take of infra/k8s."""

import contextlib
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import yaml

from jobs.serve import DETECTOR_PORT
from scanner.errors import Refused
from scanner.storage.toml import read_toml
from schemas.config import ScanConfig
from schemas.service import DetectorConfig
from tests.infra.manifests import Manifests, against_schema, container_problems


def detector_problems(infra: Path) -> Iterator[str]:
    folder, scan = infra / "k8s-detector", Manifests(infra)
    documents = list(yaml.safe_load_all((folder / "detector.yaml").read_text()))
    for document in documents:
        yield from against_schema(document["kind"], document)
    of_kind = {document["kind"]: document for document in documents}
    deployment, template = of_kind["Deployment"]["spec"], of_kind["Deployment"]["spec"]["template"]
    pod, (container,) = template["spec"], template["spec"]["containers"]
    if (deployment["replicas"], deployment["strategy"]["type"]) != (1, "Recreate"):
        yield "detector: two pods would write one budget"
    if not pod["securityContext"].get("runAsNonRoot") or pod["securityContext"]["runAsUser"] == 0:
        yield "detector: must not run as root"
    yield from container_problems("detector", container, {volume["name"] for volume in pod["volumes"]})
    paths = {name: container[name]["httpGet"]["path"] for name in ("startupProbe", "readinessProbe", "livenessProbe")}
    if paths != {"startupProbe": "/ready", "readinessProbe": "/ready", "livenessProbe": "/health"}:
        yield f"detector: probes ask {paths}"
    labels = template["metadata"]["labels"]
    policy, service = of_kind["NetworkPolicy"]["spec"], of_kind["Service"]["spec"]
    if (
        not labels
        == deployment["selector"]["matchLabels"]
        == service["selector"]
        == policy["podSelector"]["matchLabels"]
    ):
        yield "detector: labels of pod, service and network policy differ"
    if policy["egress"] or set(policy["policyTypes"]) != {"Ingress", "Egress"}:
        yield "detector: it needs no way out"
    if {port["port"] for rule in policy["ingress"] for port in rule["ports"]} != {DETECTOR_PORT}:
        yield f"detector: port {DETECTOR_PORT} alone is to be reached"
    claims = {
        volume["persistentVolumeClaim"]["claimName"] for volume in pod["volumes"] if "persistentVolumeClaim" in volume
    }
    yield from (
        f"detector: claim {claim} is made nowhere"
        for claim in claims
        - scan.names("PersistentVolumeClaim")
        - {of_kind["PersistentVolumeClaim"]["metadata"]["name"]}
    )
    if container["image"] != next(scan.templates())[1]["spec"]["containers"][0]["image"]:
        yield "detector: runs another image than the scan"
    as_shipped = (folder / "detector.toml").read_text()
    with contextlib.suppress(Refused):
        read_toml(folder / "detector.toml", DetectorConfig)
        yield "detector: starts without the address of its proxy, so that all callers would share one budget"
    try:
        with tempfile.TemporaryDirectory() as made:
            (Path(made) / "detector.toml").write_text(re.sub(r'"SET: [^"]*"', '"10.1.0.0/16"', as_shipped))
            config = read_toml(Path(made) / "detector.toml", DetectorConfig)
        if config.proxy is None or config.proxy.caller is None:
            yield "detector: names no header of its proxy"
        rate = read_toml(folder / "scan.toml", ScanConfig).false_positive_rate
    except Refused as error:
        yield f"detector: {error}"
        return
    if rate != read_toml(infra / "k8s/scan.toml", ScanConfig).false_positive_rate:
        yield "detector: another rate than the scan's"
