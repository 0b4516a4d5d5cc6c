"""Faults of the image and of the file of Ray's cluster launcher."""

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import ray
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

from tests.infra.manifests import Manifests

ROOT = Path(__file__).parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
WHEEL = f"dist/brickscan-{VERSION}-py3-none-any.whl"
"""Wheel of `make release`, from which the image is built."""
PROVIDERS = {"local", "aws", "gcp", "azure", "vsphere", "aliyun"}
EXIT_CODE_MESSAGE = "failed with exit code {return_code}, "


def launcher_problems(infra: Path) -> Iterator[str]:
    config = yaml.safe_load((infra / "ray" / "cluster.yaml").read_text())
    schema = json.loads((Path(ray.__file__).parent / "autoscaler" / "ray-schema.json").read_text())
    for error in jsonschema.Draft7Validator(schema).iter_errors(config):
        yield f"cluster.yaml: {'.'.join(map(str, error.path))}: {error.message[:200]}"
        return
    if config["provider"].get("type") not in PROVIDERS:
        yield f"cluster.yaml: provider {config['provider'].get('type')!r}; allowed: {sorted(PROVIDERS)}"
        return
    try:
        validate_config(prepare_config(config))
    except (ValueError, AssertionError) as error:
        yield f"cluster.yaml: Ray refuses it: {str(error)[:200]}"
    if image_of(infra) != config.get("docker", {}).get("image"):
        yield "cluster.yaml: another image than that of the RayJob"
    options = config.get("docker", {}).get("run_options", ())
    if "--env=RAY_AUTH_MODE=token" not in options:
        yield "cluster.yaml: must ask for a token"
    yield from unmounted(infra, options)
    for command in (*config["head_start_ray_commands"], *config["worker_start_ray_commands"]):
        if "ray start" in command and f"--metrics-export-port={metrics_port(infra)}" not in command:
            yield f"cluster.yaml: metrics are not at port {metrics_port(infra)}: {command}"


def unmounted(infra: Path, options: list[str]) -> Iterator[str]:
    """Paths in the RayJob and its configuration that no --volume brings into the container."""
    inside = [option.split(":")[1] for option in options if option.startswith("--volume=")]
    token = [option.rpartition("=")[2] for option in options if "RAY_AUTH_TOKEN_PATH" in option]
    command = Manifests(infra).one("RayJob")["spec"]["entrypoint"].split()
    config = tomllib.loads((infra / "k8s" / "scan.toml").read_text())
    for path in (*token, command[command.index("--config") + 1], config["registry"]):
        if not any(Path(path).is_relative_to(volume) for volume in inside):
            yield f"cluster.yaml: {path} is in no volume"


def image_of(infra: Path) -> str:
    cluster = Manifests(infra).one("RayJob")["spec"]["rayClusterSpec"]
    return cluster["headGroupSpec"]["template"]["spec"]["containers"][0]["image"]


def metrics_port(infra: Path) -> int:
    container = dict(Manifests(infra).templates())["head"]["spec"]["containers"][0]
    return next(port["containerPort"] for port in container["ports"] if port["name"] == "metrics")


def version_problems(infra: Path) -> Iterator[str]:
    """Versions that differ between the places where they are written."""
    found = Manifests(infra)
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", (infra / "constraints.txt").read_text(), re.MULTILINE))
    cluster = found.one("RayJob")["spec"]["rayClusterSpec"]
    if cluster["rayVersion"] != pins["ray"]:
        yield f"RayJob: rayVersion {cluster['rayVersion']}; constraints.txt has {pins['ray']}"
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        ports = {port["name"]: port["containerPort"] for port in group["template"]["spec"]["containers"][0]["ports"]}
        if group["rayStartParams"].get("metrics-export-port") != str(ports["metrics"]):
            yield "RayJob: the port `metrics` is not where Ray exports them"
    docker = (infra / "docker" / "Dockerfile").read_text()
    for text, where in ((docker, "Dockerfile"), (found.readme, "README")):
        if f"/brickscan:{VERSION} ." not in text:
            yield f"{where}: builds no image of version {VERSION}"


def docker_problems(infra: Path) -> Iterator[str]:
    file = infra / "docker" / "Dockerfile"
    lint = subprocess.run(
        [Path(sys.executable).with_name("hadolint"), "--format", "json", file], capture_output=True, check=False
    )
    for complaint in json.loads(lint.stdout):
        yield f"hadolint: line {complaint['line']}: {complaint['code']} {complaint['message']}"
    lines = file.read_text().replace("\\\n", " ").splitlines()
    commands: list[Any] = [line.split() for line in lines if line and line[0].isalpha()]
    image = next(words[1].partition("=")[2] for words in commands if words[1].startswith("PYTHON_IMAGE="))
    if not re.fullmatch(r"python:3\.11\.\d+-slim-[a-z]+@sha256:[0-9a-f]{64}", image):
        yield f"Dockerfile: {image} is no small image of one version of Python 3.11, by its digest"
    users = [words[1] for words in commands if words[0] == "USER"]
    if not users or not re.fullmatch(r"[1-9]\d*:[1-9]\d*", users[-1]):
        yield "Dockerfile: runs as root, or as a user without a number, which Kubernetes cannot check"
    kept = {
        line[1:] for line in (infra / "docker" / "Dockerfile.dockerignore").read_text().splitlines() if line[:1] == "!"
    }
    for words in commands:
        if words[0] == "COPY" and not words[1].startswith("--from"):
            for source in words[1:-1]:
                if not ((ROOT / source).exists() or source == WHEEL) or source not in kept:
                    yield f"Dockerfile: copies {source}, which is not there or is ignored"
        if "install" in words and not {"--require-hashes", "--no-deps", "apt-get"} & set(words):
            yield "Dockerfile: installs files of no known digest"
    given = {words[1].partition("=")[0] for words in commands if words[0] == "ARG"}
    if given != {"PYTHON_IMAGE", "DEVICE"}:
        yield f"Dockerfile: arguments {sorted(given)}"
    stages = {words[3] for words in commands if words[0] == "FROM" and len(words) == 4}
    for name in ("build-cpu", "build-gpu", "run-cpu", "run-gpu"):
        if name not in stages:
            yield f"Dockerfile: no stage {name}"


def submit_problems(infra: Path) -> Iterator[str]:
    """Faults where submit.sh looks for another message than Ray writes."""
    source = Path(ray.__file__).parent / "dashboard" / "modules" / "job" / "job_supervisor.py"
    if EXIT_CODE_MESSAGE not in source.read_text():
        yield "Ray tells exit codes in other words"
    if EXIT_CODE_MESSAGE.partition("{")[0] not in (infra / "k8s" / "submit.sh").read_text():
        yield "submit.sh looks for other words than Ray's"
